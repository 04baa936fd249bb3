"""`draftproof generate`: one answer, streamed to the terminal or as JSON.

Guarantees: nothing is printed to standard output before everything that can be refused has been; Ctrl-C prints what
was generated, with finish_reason "cancelled". What it does not do: conversations.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from draftproof.cli import options as o
from draftproof.cli.live import LEGEND, show, summary
from draftproof.cli.trace import check_trace_path, write_trace_file
from draftproof.engine import Engine
from draftproof.errors import InvalidValue
from draftproof.load import LoadOptions, load_engine
from draftproof.models.cache import Progress as Report
from draftproof.result import Event, FinishEvent, Result
from draftproof.sampling.params import SamplingParams
from draftproof.trace import Recorder

Prompt = Annotated[str, typer.Argument(help="The prompt; - reads it from standard input.")]


def generate(
    prompt: Prompt = "-",
    model: o.Model = "smollm2",
    backend: o.Backend = "auto",
    dtype: o.Dtype = None,
    weights: o.Weights = None,
    activations: o.Activations = None,
    narrow: o.Narrow = [],  # noqa: B006 - typer reads the default and never mutates it
    device: o.Device = "cpu",
    threads: o.Threads = None,
    trust_remote_code: o.RemoteCode = False,
    allow_pickle: o.Pickle = False,
    no_chat: o.NoChat = False,
    draft: o.Draft = "auto",
    verifier: o.Verifier = "token",
    schedule: o.Schedule = "adaptive",
    draft_length: o.DraftLength = 8,
    temperature: o.Temperature = 1.0,
    top_k: o.TopK = 0,
    top_p: o.TopP = 1.0,
    min_p: o.MinP = 0.0,
    repetition_penalty: o.Repetition = 1.0,
    presence_penalty: o.Presence = 0.0,
    frequency_penalty: o.Frequency = 0.0,
    logit_bias: o.LogitBias = [],  # noqa: B006
    banned_id: o.BannedId = [],  # noqa: B006
    banned_word: o.BannedWord = [],  # noqa: B006
    allowed_id: o.AllowedId = [],  # noqa: B006
    json_schema: o.JsonSchema = None,
    regex: o.Regex = None,
    grammar: o.Grammar = None,
    seed: o.Seed = None,
    n: o.N = 1,
    max_tokens: o.MaxTokens = 256,
    min_tokens: o.MinTokens = 0,
    stop_id: o.StopId = [],  # noqa: B006
    stop: o.Stop = [],  # noqa: B006
    include_stop: o.IncludeStop = False,
    ignore_eos: o.IgnoreEos = False,
    as_json: o.AsJson = False,
    logprobs: o.Logprobs = None,
    raw_logprobs: o.RawLogprobs = False,
    prompt_logprobs: o.PromptLogprobs = None,
    trace: o.Trace = None,
) -> None:
    """Answer one prompt with speculative decoding; the answer's distribution is the target's own."""
    params = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        logit_bias=dict(_bias(entry) for entry in logit_bias),
        banned_ids=frozenset(banned_id),
        banned_words=tuple(banned_word),
        allowed_ids=frozenset(allowed_id) if allowed_id else None,
        json_schema=_text_or_file(json_schema),
        regex=regex,
        grammar=_text_or_file(grammar),
        seed=seed,
        n=n,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stop_ids=frozenset(stop_id),
        stop=tuple(stop),
        include_stop=include_stop,
        ignore_eos=ignore_eos,
        logprobs=logprobs,
        raw_logprobs=raw_logprobs,
        prompt_logprobs=prompt_logprobs,
    )
    if trace is not None:
        check_trace_path(trace)
    text = sys.stdin.read() if prompt == "-" else prompt
    if not text.strip():
        raise InvalidValue("the prompt is empty", "give it as an argument, or on standard input")
    settings = LoadOptions(
        backend=backend,  # type: ignore[arg-type]  # checked on construction
        dtype=dtype,
        weights=weights,
        activations=activations,
        narrow=o.narrow_passes(narrow),
        device=device,
        threads=threads,
        trust_remote_code=trust_remote_code,
        allow_pickle=allow_pickle,
    )
    with loading() as report:
        engine = load_engine(
            model,
            draft=draft,
            verifier=verifier,
            schedule=schedule,
            draft_length=draft_length,
            options=settings,
            progress=report,
        )
    recorder = None if trace is None else Recorder(engine)
    if recorder is not None:
        engine.observers.append(recorder)
    result = answer(engine, text, params, chat=False if no_chat else None, as_json=as_json)
    if trace is not None and recorder is not None:
        write_trace_file(recorder.trace(result.choices), trace)
    if result.finish_reason == "cancelled":
        raise typer.Exit(130)


def answer(engine: Engine, prompt: str, params: SamplingParams, *, chat: bool | None, as_json: bool) -> Result:
    """Generate and print: JSON on standard output, or the text there and the summary on standard error."""
    console = Console(highlight=False)
    if params.n > 1:
        result = engine.generate(prompt, params, chat=chat)
    else:
        events = _until_interrupt(engine, prompt, params, chat=chat)
        if as_json:
            result = next(event.result for event in events if isinstance(event, FinishEvent))
        else:
            if console.is_terminal:
                console.print(LEGEND, style="dim")
            result = show(events, console)
    if as_json:
        print(json.dumps(result.to_json(), ensure_ascii=False))
        return result
    if params.n > 1:
        for k, choice in enumerate(result.choices, start=1):
            console.print(f"[bold]{k}.[/] ", end="")
            console.print(choice.text, markup=False)
    Console(stderr=True, highlight=False).print(summary(result))
    return result


def _until_interrupt(engine: Engine, prompt: str, params: SamplingParams, *, chat: bool | None) -> Iterator[Event]:
    """The events of an answer; Ctrl-C ends it like any other stop, with what was generated."""
    request = engine.add(prompt, params, chat=chat)
    try:
        while request in engine.live:
            yield from (event for event in engine.round() if event.request == request)
    except KeyboardInterrupt:
        yield FinishEvent(request, "", engine.cancel(request))


class loading:  # noqa: N801 - used as a function
    """A progress bar on standard error while models are found, converted and loaded; silent without a terminal."""

    def __enter__(self) -> Report:
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._tasks: dict[str, Any] = {}
        self._progress.start()
        return self._report

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def _report(self, what: str, fraction: float) -> None:
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(what, total=1.0)
        self._progress.update(self._tasks[what], completed=fraction)


def _bias(entry: str) -> tuple[int, float]:
    token, separator, addend = entry.partition("=")
    try:
        if not separator:
            raise ValueError(entry)
        return int(token), float(addend)
    except ValueError as error:
        raise InvalidValue(f"--logit-bias {entry}", "write ID=ADDEND, such as 42=-5") from error


def _text_or_file(value: str | None) -> str | None:
    if value is None or not value.startswith("@"):
        return value
    path = Path(value[1:])
    if not path.is_file():
        raise InvalidValue(f"{value}: no such file", "write @ before the path of a text file")
    return path.read_text(encoding="utf-8")
