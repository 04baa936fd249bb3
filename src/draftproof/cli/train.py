"""`draftproof train`: a drafter for your own target, from nothing but the target.

Guarantees: every stage shows its progress and can be interrupted; the same command goes on where it was. Nothing is
downloaded but the target itself. What it does not do: work; that is `draftproof.train`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from draftproof.cli import texts
from draftproof.cli.options import Activations, Backend, Weights
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
    target: texts.Target,
    out: texts.Out,
    prompts: texts.Prompts = None,
    count: texts.Count = None,
    opening: texts.Opening = None,
    prompt_tokens: texts.PromptTokens = 96,
    temperature: Annotated[
        list[float] | None, typer.Option("--temperature", "-t", help="Of the answers; may be repeated [1.0, 0.7].")
    ] = None,
    prompt_temperature: texts.PromptTemperature = 1.0,
    max_tokens: texts.MaxTokens = 256,
    together: texts.Together = 48,
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
    seed: texts.Seed = 0,
    precision: Annotated[str, typer.Option(help="bfloat16 or float32, of forward and backward passes.")] = "bfloat16",
    device: texts.Device = None,
    threads: texts.Threads = None,
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
    source = texts.Source.checked(prompts, count, opening)
    drafter = DrafterPlan(
        head=head,  # type: ignore[arg-type]  # checked above
        layers=layers,
        block=block,
        rank=rank,
        draft_vocab=draft_vocab,
        held_out=held_out,
    )
    training = TrainingPlan(steps=steps, sequences=sequences, anchors=anchors, seed=seed)
    work = _Work(target, out, device, getattr(torch, precision), threads, Console(stderr=True, highlight=False))
    work.write(source, corpus)
    work.train(drafter, training, baseline=baseline, plot=plot)


@app.command("texts")
def only_texts(
    target: texts.Target,
    out: texts.Out,
    prompts: texts.Prompts = None,
    count: texts.Count = None,
    opening: texts.Opening = None,
    prompt_tokens: texts.PromptTokens = 96,
    prompt_temperature: texts.PromptTemperature = 1.0,
    max_tokens: texts.MaxTokens = 256,
    together: texts.Together = 48,
    seed: texts.Seed = 0,
    device: texts.Device = None,
    threads: texts.Threads = None,
) -> None:
    """Write texts at T = 1 and their hidden states, and stop: for `draftproof calibrate --fresh`.

    Another seed than the training's gives prompts of the target's own that the drafter has not seen.
    """
    import torch

    from draftproof.train.corpus import CorpusPlan

    plan = CorpusPlan(
        temperatures=(1.0,),
        max_tokens=max_tokens,
        prompt_tokens=prompt_tokens,
        prompt_temperature=prompt_temperature,
        together=together,
        seed=seed,
    )
    source = texts.Source.checked(prompts, count, opening)
    _Work(target, out, device, torch.bfloat16, threads, Console(stderr=True, highlight=False)).write(source, plan)


@app.command("retrieval")
def retrieval(
    target: texts.Target,
    out: texts.Out,
    prompts: texts.Prompts = None,
    count: texts.Count = None,
    opening: texts.Opening = None,
    prompt_tokens: texts.PromptTokens = 96,
    temperature: Annotated[
        list[float] | None, typer.Option("--temperature", "-t", help="Of the answers; may be repeated [1.0, 0.0].")
    ] = None,
    prompt_temperature: texts.PromptTemperature = 1.0,
    max_tokens: texts.MaxTokens = 256,
    together: texts.Together = 48,
    least: Annotated[int, typer.Option(help="Fewest times a pair or triple must have been followed so.", min=1)] = 3,
    seed: texts.Seed = 0,
    backend: Backend = "auto",
    weights: Weights = None,
    activations: Activations = None,
    threads: texts.Threads = None,
) -> None:
    """Write texts with the target and count what follows what in its answers: a datastore, in seconds after the texts.

    A folder that `train dspark` has written texts into is read as it is.
    """
    from draftproof.draft import datastore
    from draftproof.draft.laws import count_laws
    from draftproof.load import LoadOptions
    from draftproof.train.corpus import CorpusPlan, read_corpus

    console = Console(stderr=True, highlight=False)
    plan = CorpusPlan(
        temperatures=tuple(temperature or (1.0, 0.0)),
        max_tokens=max_tokens,
        prompt_tokens=prompt_tokens,
        prompt_temperature=prompt_temperature,
        together=together,
        seed=seed,
    )
    source = texts.Source.checked(prompts, count, opening)
    options = LoadOptions(
        backend=backend,  # type: ignore[arg-type]  # LoadOptions refuses what is none
        weights=weights,
        activations=activations,
        threads=threads,
    )
    written = texts.write(target, options, source, out, plan, console)
    corpus = list(read_corpus(written.texts))
    # Tokens that were drawn have laws; those of temperature 0 are the most likely ones, whatever the others are.
    drawn = [(text.tokens, text.prompt_length) for text in corpus if text.temperature > 0]
    record = {"target": target, "prompts": written.prompts, "temperatures": list(plan.temperatures)}
    if drawn:
        record["drawn_tokens"] = sum(len(tokens) - prompt for tokens, prompt in drawn)
    made = datastore.count(
        ((text.tokens, text.prompt_length) for text in corpus),
        written.vocab_size,
        written.tokenizer,
        least=least,
        record=record,
        laws=count_laws(drawn, written.vocab_size, least=least) if drawn else None,
    )
    folder = out / "retrieval"
    datastore.save(made, folder)
    console.print(
        f"{len(made)} contexts from {made.record['answer_tokens']} tokens; use them with --draft retrieval:{folder}"
    )


class _Work:
    """The stages, with what they share."""

    def __init__(
        self, target: str, out: Path, device: str | None, dtype: Any, threads: int | None, console: Console
    ) -> None:
        import torch

        from draftproof.draft.dspark.hidden import TargetTables
        from draftproof.train.pipeline import layers_to_read

        self.out, self.dtype, self.threads, self.console = out, dtype, threads, console
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.name = target
        self.tables = TargetTables.load(target)
        self.layers = layers_to_read(self.tables.facts.layers)

    def write(self, source: texts.Source, plan: Any) -> None:
        """Prompts, answers, features."""
        import torch

        from draftproof.load import LoadOptions
        from draftproof.target.transformers import TransformersTarget
        from draftproof.train.corpus import read_corpus
        from draftproof.train.pipeline import collect

        options = LoadOptions(device=self.device, threads=self.threads)
        written = texts.write(self.name, options, source, self.out, plan, self.console)
        dtype = "float32" if self.dtype == torch.float32 else "bfloat16"
        reader = TransformersTarget.load(
            self.name, dtype=dtype, device=self.device, threads=self.threads, hidden_layers=self.layers
        )
        with texts.bar(self.console, "hidden states", written.total, 0) as step:
            collect(
                reader,
                self.tables,
                read_corpus(written.texts),
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
        with texts.bar(self.console, f"training, head {drafter.head}", plan.steps, training.trainer.step) as step:

            def on_step(report: StepReport) -> None:
                step(f"loss {report.loss:.3f}  accepts {_percents(report.acceptance)}")

            evaluation = training.run(on_step, lambda e: self.console.print(_line(e)))
        checkpoint = training.finish(evaluation, record)
        if "ece" in checkpoint.record:
            before, after = checkpoint.record["ece"]["before"], checkpoint.record["ece"]["after"]
            self.console.print(f"calibration error {_percents(before)} -> {_percents(after)} %")
        return evaluation


def _percents(values: Any) -> str:
    return " ".join(f"{100 * value:.1f}" for value in values)


def _line(evaluation: Evaluation) -> str:
    def part(name: str, found: Replay | None) -> str:
        if found is None:
            return ""
        return f"  {name}: {found.tokens_per_round:.3f} tokens a round, accepts {_percents(found.by_position)} %"

    return f"step {evaluation.step}{part('sampled', evaluation.sampled)}{part('greedy', evaluation.greedy)}"
