"""`draftproof train dspark`: a drafter for your own target, from nothing but the target.

Guarantees: every stage shows its progress and can be interrupted; the same command goes on where it was. Nothing is
downloaded but the target itself. What it does not do: work; that is `draftproof.train`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from draftproof.errors import InvalidValue

if TYPE_CHECKING:
    from draftproof.train.evaluate import Replay
    from draftproof.train.pipeline import Evaluation
    from draftproof.train.trainer import StepReport

app = typer.Typer(help="Train a drafter.", no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Train a drafter."""


@app.command("dspark")
def dspark(
    target: Annotated[str, typer.Option("--target", "-m", help="Alias, folder, GGUF file or Hub id.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for data, state and checkpoint.")],
    prompts: Annotated[
        Path | None, typer.Option(help="Prompts, one a line, or .jsonl; default: the target writes its own.")
    ] = None,
    count: Annotated[
        int | None,
        typer.Option("--prompts-count", help="Prompts the target writes itself [500, or 0 beside a file].", min=0),
    ] = None,
    opening: Annotated[
        list[str] | None, typer.Option(help="Beginning of the target's own prompts; repeat it to have them in turn.")
    ] = None,
    prompt_tokens: Annotated[int, typer.Option(help="Most tokens of a prompt of the target's own.", min=8)] = 96,
    temperature: Annotated[
        list[float] | None, typer.Option("--temperature", "-t", help="Of the answers; may be repeated [1.0, 0.7].")
    ] = None,
    prompt_temperature: Annotated[float, typer.Option(help="At which the target writes prompts.")] = 1.0,
    max_tokens: Annotated[int, typer.Option(help="Most tokens of an answer.", min=8)] = 256,
    together: Annotated[int, typer.Option(help="Answers written at once.", min=1)] = 48,
    head: Annotated[str, typer.Option(help="markov, rnn or none.")] = "markov",
    baseline: Annotated[
        bool, typer.Option("--baseline", help="Also train the `none` head with the same budget, and compare.")
    ] = False,
    layers: Annotated[int, typer.Option(help="Draft layers.", min=1)] = 2,
    block: Annotated[int, typer.Option(help="Draft rows per pass.", min=1)] = 5,
    rank: Annotated[int, typer.Option(help="Of the sequential head.", min=1)] = 128,
    draft_vocab: Annotated[int, typer.Option(help="Ids the drafter may propose.", min=1)] = 8192,
    steps: Annotated[int, typer.Option(help="Training steps.", min=1)] = 2000,
    sequences: Annotated[int, typer.Option(help="Sequences per step.", min=1)] = 8,
    anchors: Annotated[int, typer.Option(help="Blocks per sequence.", min=1)] = 32,
    held_out: Annotated[int, typer.Option(help="Sequences kept for evaluation and calibration.", min=1)] = 24,
    seed: Annotated[int, typer.Option(help="Of data, weights and batches.", min=0)] = 0,
    precision: Annotated[str, typer.Option(help="bfloat16 or float32, of forward and backward passes.")] = "bfloat16",
    device: Annotated[str | None, typer.Option(help="cpu or cuda; default: cuda where there is one.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads.", min=1)] = None,
    plot: Annotated[Path | None, typer.Option(help="Write the loss curve: FILE.png or FILE.svg.")] = None,
) -> None:
    """Write texts with the target, train a DSpark drafter on them, calibrate it and save its checkpoint."""
    import torch

    from draftproof.train.corpus import CorpusPlan
    from draftproof.train.pipeline import DrafterPlan
    from draftproof.train.trainer import TrainingPlan

    if precision not in ("bfloat16", "float32"):
        raise InvalidValue(f"--precision {precision}", "bfloat16 or float32")
    if head not in ("markov", "rnn", "none"):
        raise InvalidValue(f"--head {head}", "markov, rnn or none")
    if plot is not None and plot.suffix not in (".png", ".svg"):
        raise InvalidValue(f"--plot {plot}", "FILE.png or FILE.svg")
    if threads is not None:
        torch.set_num_threads(threads)
    corpus = CorpusPlan(
        temperatures=tuple(temperature or (1.0, 0.7)),
        max_tokens=max_tokens,
        prompt_tokens=prompt_tokens,
        prompt_temperature=prompt_temperature,
        together=together,
        seed=seed,
    )
    if count is None:
        count = 500 if prompts is None else 0
    if not count and (prompts is None or opening):
        raise InvalidValue("--prompts-count 0", "--prompts FILE without --opening, or a count of prompts to write")
    drafter = DrafterPlan(
        head=head,  # type: ignore[arg-type]  # checked above
        layers=layers,
        block=block,
        rank=rank,
        draft_vocab=draft_vocab,
        held_out=held_out,
    )
    training = TrainingPlan(steps=steps, sequences=sequences, anchors=anchors, seed=seed)
    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    work = _Work(target, out, where, getattr(torch, precision), threads, Console(stderr=True, highlight=False))
    work.write(prompts, count, tuple(opening or ("",)), corpus)
    work.train(drafter, training, baseline=baseline, plot=plot)


class _Work:
    """The stages, with what they share."""

    def __init__(self, target: str, out: Path, device: str, dtype: Any, threads: int | None, console: Console) -> None:
        from draftproof.draft.dspark.hidden import TargetTables
        from draftproof.train.pipeline import layers_to_read

        self.out, self.device, self.dtype, self.threads, self.console = out, device, dtype, threads, console
        self.name = target
        self.tables = TargetTables.load(target)
        self.layers = layers_to_read(self.tables.facts.layers)

    def write(self, prompts: Path | None, count: int, openings: tuple[str, ...], plan: Any) -> None:
        """Prompts, answers, features."""
        import torch

        from draftproof.load import LoadOptions, load_engine
        from draftproof.target.transformers import TransformersTarget
        from draftproof.train.corpus import own_prompts, read_corpus, read_prompts, write_corpus
        from draftproof.train.pipeline import collect

        # Text is the same by law whatever drafts it; many requests at once leave nothing for a drafter to gain.
        options = LoadOptions(device=self.device, threads=self.threads)
        engine = load_engine(self.name, draft="none", schedule="fixed", draft_length=0, options=options)
        asked = read_prompts(prompts) if prompts is not None else []
        if count:
            self.console.print(f"{self.name} writes {count} prompts ...")
            asked += own_prompts(engine, count, self.out / "prompts.jsonl", plan, openings)
            asked = list(dict.fromkeys(asked))
        texts = self.out / "texts.jsonl"
        total = len(asked) * len(plan.temperatures)
        done = sum(1 for _ in read_corpus(texts)) if texts.is_file() else 0
        with self._bar("answers", total, done) as step:
            write_corpus(engine, asked, texts, plan, on_text=lambda text: step())
        del engine
        dtype = "float32" if self.dtype == torch.float32 else "bfloat16"
        reader = TransformersTarget.load(
            self.name, dtype=dtype, device=self.device, threads=self.threads, hidden_layers=self.layers
        )
        with self._bar("hidden states", total, 0) as step:
            collect(
                reader,
                self.tables,
                read_corpus(texts),
                self.layers,
                self.out / "features",
                dtype=self.dtype,
                on_text=lambda text: step(),
            )

    def train(self, drafter: Any, plan: Any, *, baseline: bool, plot: Path | None) -> None:
        """One or two heads; the checkpoint of the one asked for is the result."""
        from dataclasses import replace

        from draftproof.train.pipeline import LOG
        from draftproof.train.plots import losses

        record: dict[str, Any] = {"target": self.name}
        if baseline and drafter.head != "none":
            other = self._one(replace(drafter, head="none"), plan, {"target": self.name})
            record["none_head"] = other.as_dict()
        evaluation = self._one(drafter, plan, record)
        if "none_head" in record and evaluation.sampled is not None:
            ours, none = evaluation.sampled.drafts_per_round, record["none_head"]["sampled"]["drafts_per_round"]
            self.console.print(f"{drafter.head} accepts {ours / none:.2f} x the drafts of the `none` head")
        if plot is not None:
            losses(self.out / drafter.head / LOG, plot)
        self.console.print(
            f"checkpoint: {self.out / drafter.head}; use it with --draft dspark:{self.out / drafter.head}"
        )

    def _one(self, drafter: Any, plan: Any, record: dict[str, Any]) -> Evaluation:
        from draftproof.train.pipeline import Training
        from draftproof.train.store import FeatureStore

        store = FeatureStore.open(self.out / "features")
        training = Training(
            store, self.tables, drafter, plan, self.out / drafter.head, dtype=self.dtype, device=self.device
        )
        training.trainer.resume()
        with self._bar(f"training, head {drafter.head}", plan.steps, training.trainer.step) as step:

            def on_step(report: StepReport) -> None:
                step(f"loss {report.loss:.3f}  accepts {_percents(report.acceptance)}")

            evaluation = training.run(on_step, lambda e: self.console.print(_line(e)))
        checkpoint = training.finish(evaluation, record)
        if "ece" in checkpoint.record:
            before, after = checkpoint.record["ece"]["before"], checkpoint.record["ece"]["after"]
            self.console.print(f"calibration error {_percents(before)} -> {_percents(after)} %")
        return evaluation

    @contextmanager
    def _bar(self, what: str, total: int, done: int) -> Iterator[Callable[..., None]]:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        with Progress(*columns, console=self.console, disable=not self.console.is_terminal) as progress:
            task = progress.add_task(what, total=total, completed=done, note="")

            def step(note: str = "") -> None:
                progress.update(task, advance=1, note=note)

            yield step


def _percents(values: Any) -> str:
    return " ".join(f"{100 * value:.1f}" for value in values)


def _line(evaluation: Evaluation) -> str:
    def part(name: str, found: Replay | None) -> str:
        if found is None:
            return ""
        return f"  {name}: {found.tokens_per_round:.3f} tokens a round, accepts {_percents(found.by_position)} %"

    return f"step {evaluation.step}{part('sampled', evaluation.sampled)}{part('greedy', evaluation.greedy)}"
