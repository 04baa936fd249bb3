"""Training texts: prompts from a file or written by the target itself, answered by the target through the engine.

An instruction-tuned target writes prompts when it continues its own user header; it answers them at the temperatures it
will be used with. What is written goes to a file of one JSON object a line, in groups.

Guarantees: the same arguments give the same texts, whatever was written before an interruption; no prompt is answered
twice at one temperature; a line is whole or not counted. What it does not do: judge what was written.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftproof.engine import Engine
from draftproof.errors import InvalidValue, ModelFileError
from draftproof.models.cache import writing
from draftproof.models.tokenizer import FileTokenizer
from draftproof.result import FinishEvent
from draftproof.sampling.params import SamplingParams

_MARK = "\u241f"
"""Stands for the user's words when the chat template is asked for what comes before them."""


@dataclass(frozen=True, slots=True)
class Text:
    """A training text: prompt and answer in one list of ids. temperature: at which the answer was drawn."""

    tokens: tuple[int, ...]
    prompt_length: int
    temperature: float
    kind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusPlan:
    """temperatures: at which every prompt is answered. together: requests decoded at once. prompt_tokens: the most of
    a prompt the target writes itself, at `prompt_temperature`; shorter than `shortest_prompt` is thrown away."""

    temperatures: tuple[float, ...] = (1.0, 0.7)
    max_tokens: int = 256
    prompt_tokens: int = 96
    prompt_temperature: float = 1.0
    shortest_prompt: int = 6
    together: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.temperatures or any(not 0 <= t <= 2 for t in self.temperatures):
            raise InvalidValue(f"temperatures {self.temperatures}", "at least one, each in 0..2")
        if len(set(self.temperatures)) < len(self.temperatures):
            raise InvalidValue(f"temperatures {self.temperatures}", "each once")
        if not 0 < self.prompt_temperature <= 2:
            raise InvalidValue(f"prompt_temperature {self.prompt_temperature}", "above 0, at most 2")
        for name in ("max_tokens", "prompt_tokens", "shortest_prompt", "together"):
            if getattr(self, name) < 1:
                raise InvalidValue(f"{name}={getattr(self, name)}", "at least 1")


def read_prompts(path: Path) -> list[str]:
    """Prompts of a file: one a line, or (a .jsonl file) objects with "prompt", or "turns", whose first one is taken."""
    try:
        # Only line feeds end a line: JSON strings may hold other separators.
        lines = [line.rstrip("\r") for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
        if path.suffix == ".jsonl":
            objects = [json.loads(line) for line in lines]
            lines = [o["prompt"] if "prompt" in o else o["turns"][0] for o in objects]
            if bad := [line for line in lines if not isinstance(line, str) or not line.strip()]:
                raise TypeError(f"{bad[0]!r} is no prompt")
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, KeyError, IndexError, TypeError) as error:
        raise ModelFileError(f"cannot read prompts from {path}: {error!r}", "one prompt a line") from error
    if not lines:
        raise InvalidValue(f"{path} holds no prompts", "one a line")
    return list(dict.fromkeys(lines))


def own_prompts(engine: Engine, count: int, path: Path, plan: CorpusPlan, openings: Seq[str] = ("",)) -> list[str]:
    """`count` different prompts in the target's own words, kept in `path`; goes on with what is there already.

    openings: beginnings that the target continues, in turn, so that it writes of what the drafter is wanted for.
    Raises InvalidValue if the target has no chat template or hardly writes any.
    """
    if not openings:
        raise InvalidValue("no openings", 'at least one; "" leaves the target free')
    tokenizer = engine.tokenizer
    if not isinstance(tokenizer, FileTokenizer) or not tokenizer.has_chat:
        raise InvalidValue("a target without a chat template cannot write prompts", "give a file of prompts")
    header = tokenizer.render([{"role": "user", "content": _MARK}]).split(_MARK)[0]
    begun = [(opening, tokenizer.encode(header + opening)) for opening in openings]
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _cut(path)
    known = list(_objects(path, ("group", "prompt"))) if path.is_file() else []
    seen = dict.fromkeys(line["prompt"] for line in known)
    most = 20 * (count // plan.together + 1)
    for group in range(known[-1]["group"] + 1 if known else 0, most):
        if len(seen) >= count:
            break
        params = [
            SamplingParams(
                max_tokens=plan.prompt_tokens, temperature=plan.prompt_temperature, seed=_seed(plan, 0, group, i)
            )
            for i in range(plan.together)
        ]
        lines = ""
        first = group * plan.together
        asked = [begun[(first + i) % len(begun)] for i in range(plan.together)]
        for (opening, _), result in zip(asked, engine.generate_all([ids for _, ids in asked], params), strict=True):
            text = (opening + result.text).strip()
            # Cut off means unfinished: no prompt.
            whole = result.finish_reason == "stop" and len(result.token_ids) >= plan.shortest_prompt
            if whole and text and text not in seen:
                seen[text] = None
                lines += json.dumps({"group": group, "prompt": text}) + "\n"
        with writing(path), path.open("a", encoding="utf-8") as file:
            file.write(lines)  # a group at once: an interruption leaves whole groups
    if len(seen) < count:
        raise InvalidValue(f"the target wrote only {len(seen)} different prompts", "give a file of prompts")
    return list(seen)[:count]


def write_corpus(
    engine: Engine,
    prompts: Iterable[str],
    path: Path,
    plan: CorpusPlan,
    *,
    on_text: Callable[[Text], None] = lambda text: None,
) -> None:
    """Answer every prompt at every temperature, skipping what `path` already holds.

    `plan.together` requests are always live; lines are written in the order of prompts and temperatures, so a file that
    was interrupted is a beginning of the whole one.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _cut(path)
    done = {(line["prompt"], line["t"]) for line in _objects(path, _FIELDS)} if path.is_file() else set()
    jobs = ((i, prompt, t) for i, prompt in enumerate(prompts) for t in plan.temperatures)
    waiting = ((i, prompt, t) for i, prompt, t in jobs if (prompt, t) not in done)
    live: dict[int, tuple[str, float, list[int]]] = {}  # by request, in the order they joined
    ended: dict[int, Seq[int]] = {}
    try:
        while True:
            for i, prompt, t in itertools.islice(waiting, plan.together - (len(live) - len(ended))):
                ids = engine.encode(prompt)
                seed = _seed(plan, 1, i, int(1000 * t))
                request = engine.add(ids, SamplingParams(max_tokens=plan.max_tokens, temperature=t, seed=seed))
                live[request] = (prompt, t, ids)
            if not live:
                return
            for event in engine.round():
                if isinstance(event, FinishEvent):
                    ended[event.request] = event.result.token_ids
            while live and (first := next(iter(live))) in ended:
                prompt, t, ids = live.pop(first)
                text = Text((*ids, *ended.pop(first)), len(ids), t)
                with writing(path), path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"prompt": prompt, "t": t, "n": len(ids), "ids": text.tokens}) + "\n")
                on_text(text)
    finally:
        for request in live.keys() - ended.keys():
            engine.cancel(request)


def read_corpus(path: Path) -> Iterator[Text]:
    """The texts written so far, without a last line that was cut off. Raises ModelFileError for a file that is none."""
    for line in _objects(path, _FIELDS):
        yield Text(tuple(line["ids"]), line["n"], line["t"])


_FIELDS = ("prompt", "t", "n", "ids")


def _objects(path: Path, fields: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """The whole lines of a file of ours."""
    try:
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            if line.endswith("\n"):
                value = json.loads(line)
                if set(value) != set(fields):
                    raise KeyError(*(set(value) ^ set(fields)))
                yield value
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise ModelFileError(
            f"{path} is no file of training texts ({error!r})", "delete it; it is made again"
        ) from error


def _cut(path: Path) -> None:
    """Remove a half-written last line, so that the next one does not continue it."""
    if path.is_file():
        data = path.read_bytes()
        end = data.rfind(b"\n") + 1
        if end != len(data):
            with path.open("r+b") as file:
                file.truncate(end)


def _seed(plan: CorpusPlan, *place: int) -> int:
    value = plan.seed
    for number in place:
        value = (value * 1_000_003 + number + 1) % 2**63
    return value
