"""What the commands that train drafters share: where texts come from, writing them, and a progress bar.

Guarantees: a target is loaded only after the options were checked; interrupted writing goes on where it was. What it
does not do: write; that is `draftproof.train.corpus`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from draftproof.errors import InvalidValue

if TYPE_CHECKING:
    from draftproof.load import LoadOptions
    from draftproof.train.corpus import CorpusPlan

Target = Annotated[str, typer.Option("--target", "-m", help="Alias, folder, GGUF file or Hub id.")]
Out = Annotated[Path, typer.Option("--out", "-o", help="Folder for data, state and what is made of them.")]
Prompts = Annotated[
    Path | None, typer.Option(help="Prompts, one a line, or .jsonl; default: the target writes its own.")
]
Count = Annotated[
    int | None,
    typer.Option("--prompts-count", help="Prompts the target writes itself [500, or 0 beside a file].", min=0),
]
Opening = Annotated[
    list[str] | None, typer.Option(help="Beginning of the target's own prompts; repeat it to have them in turn.")
]
PromptTokens = Annotated[int, typer.Option(help="Most tokens of a prompt of the target's own.", min=8)]
PromptTemperature = Annotated[float, typer.Option(help="At which the target writes prompts.")]
MaxTokens = Annotated[int, typer.Option(help="Most tokens of an answer.", min=8)]
Together = Annotated[int, typer.Option(help="Answers written at once.", min=1)]
Seed = Annotated[int, typer.Option(help="Of data, weights and batches.", min=0)]

Device = Annotated[str | None, typer.Option(help="cpu or cuda; default: cuda where there is one.")]
Threads = Annotated[int | None, typer.Option(help="CPU threads.", min=1)]

OWN_PROMPTS = 500


@dataclass(frozen=True, slots=True)
class Source:
    """prompts: a file of them. count: how many more the target writes. openings: of those."""

    prompts: Path | None
    count: int
    openings: tuple[str, ...]

    @classmethod
    def checked(cls, prompts: Path | None, count: int | None, opening: list[str] | None) -> Source:
        """As given on the command line. Raises InvalidValue where no prompt would come."""
        if count is None:
            count = OWN_PROMPTS if prompts is None else 0
        if not count and (prompts is None or opening):
            raise InvalidValue("--prompts-count 0", "--prompts FILE without --opening, or a count of prompts to write")
        return cls(prompts, count, tuple(opening or ("",)))


@dataclass(frozen=True, slots=True)
class Written:
    """texts: the file of them, `total` in all. vocab_size, tokenizer (its fingerprint): of the target."""

    texts: Path
    total: int
    prompts: int
    vocab_size: int
    tokenizer: str


def write(target: str, options: LoadOptions, source: Source, out: Path, plan: CorpusPlan, console: Console) -> Written:
    """Prompts and the target's answers to them, in `out`."""
    from draftproof.load import load_engine
    from draftproof.train.corpus import own_prompts, read_corpus, read_prompts, write_corpus

    # Text is the same by law whatever drafts it; many requests at once leave nothing for a drafter to gain.
    engine = load_engine(target, draft="none", schedule="fixed", draft_length=0, options=options)
    asked = read_prompts(source.prompts) if source.prompts is not None else []
    if source.count:
        console.print(f"{target} writes {source.count} prompts ...")
        asked += own_prompts(engine, source.count, out / "prompts.jsonl", plan, source.openings)
        asked = list(dict.fromkeys(asked))
    path = out / "texts.jsonl"
    total = len(asked) * len(plan.temperatures)
    done = sum(1 for _ in read_corpus(path)) if path.is_file() else 0
    with bar(console, "answers", total, done) as step:
        write_corpus(engine, asked, path, plan, on_text=lambda text: step())
    assert engine.tokenizer is not None, "an engine that was loaded by name has one"
    return Written(path, total, len(asked), engine.target.vocab_size, engine.tokenizer.fingerprint())


@contextmanager
def bar(console: Console, what: str, total: int, done: int) -> Iterator[Callable[..., None]]:
    """A progress bar with the time that remains; call what it gives with a note after every step."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=total, completed=done, note="")

        def step(note: str = "") -> None:
            progress.update(task, advance=1, note=note)

        yield step
