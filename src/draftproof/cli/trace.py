"""Trace files for the command line: `generate --trace FILE` and `trace FILE.jsonl --html OUT`.

Guarantees: a path whose kind is unknown or whose folder is missing is refused before anything is generated.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftproof.errors import InvalidValue
from draftproof.trace import Trace, read_trace, trace_page, write_trace

File = Annotated[Path, typer.Argument(help="A trace written by generate --trace FILE.jsonl.")]
Html = Annotated[Path, typer.Option("--html", help="Where to write the page.")]

KINDS = (".html", ".jsonl")


def trace(file: File, html: Html) -> None:
    """Make the page of a trace: text coloured by origin, rounds, acceptance."""
    trace_to_html(file, html)


def check_trace_path(path: Path) -> None:
    """Raise InvalidValue unless a trace can be written there as .html or .jsonl."""
    if path.suffix not in KINDS:
        raise InvalidValue(f"trace file {path}", "its name ends in .html or .jsonl")
    if not path.parent.is_dir():
        raise InvalidValue(f"trace file {path}: no such folder", "make the folder first")


def write_trace_file(trace: Trace, path: Path) -> None:
    """Write a trace as the page or as JSON Lines, by the name's ending."""
    check_trace_path(path)
    if path.suffix == ".html":
        path.write_text(trace_page(trace), encoding="utf-8")
    else:
        write_trace(trace, path)


def trace_to_html(jsonl: Path, out: Path) -> None:
    """Make the page of a trace that was kept as JSON Lines."""
    if out.suffix != ".html":
        raise InvalidValue(f"--html {out}", "a name ending in .html")
    check_trace_path(out)
    out.write_text(trace_page(read_trace(jsonl)), encoding="utf-8")
