"""The command line: `draftproof generate | prove | explain | trace | bench | calibrate | audit | train`.

Guarantees: an error of ours is one line on standard error and exit code 2; a failed proof is exit code 1; Ctrl-C is
130. Nothing but the asked-for answer goes to standard output. What it does not do: work; each command has its file.
"""

from __future__ import annotations

import os
import sys

import typer
from rich.console import Console

from draftproof import __version__
from draftproof.cli import explain, generate, prove, trace
from draftproof.cli.audit import audit_app
from draftproof.cli.bench import bench
from draftproof.cli.calibrate import calibrate
from draftproof.cli.train import app as train_app
from draftproof.errors import DraftproofError

app = typer.Typer(
    name="draftproof",
    help="Lossless speculative decoding, proved.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command("generate")(generate.generate)
app.command("prove")(prove.prove)
app.command("explain")(explain.explain)
app.command("trace")(trace.trace)
app.command("bench")(bench)
app.command("calibrate")(calibrate)
app.add_typer(audit_app)
app.add_typer(train_app, name="train")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"draftproof {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    pass


def main() -> None:
    """The entry point of the `draftproof` program."""
    try:
        app()
    except DraftproofError as error:
        Console(stderr=True, soft_wrap=True, highlight=False).print(f"[bold red]error:[/] {_plain(str(error))}")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader (head, less) has gone; pointing stdout elsewhere keeps the interpreter's exit quiet.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)


def _plain(message: str) -> str:
    return " ".join(message.split()).replace("[", r"\[")
