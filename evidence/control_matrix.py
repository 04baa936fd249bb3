"""Every control under speculation on the default model: coupled at temperature 0.8, equal to plain decoding.

Each control with five drafters and draft lengths 1, 4 and 8, on ten prompts: ids, text, finish reason, stop reason and
offsets must be equal, and log-probabilities within 1e-4. Where the ids part, the margin decides between a tie of
rounding and a fault (`draftproof.proof.equality`). Writes evidence/results/control-matrix-BACKEND.json part by part.

    python -m evidence.control_matrix [--backend transformers] [--tokens 24] [--prompts 10]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from draftproof.draft.base import Drafter
from draftproof.draft.chain import ChainDrafter
from draftproof.draft.lookup import LookupDrafter
from draftproof.draft.model import ModelDrafter
from draftproof.draft.none import NoDrafter
from draftproof.draft.suffix import SuffixDrafter
from draftproof.engine import Engine
from draftproof.load import LoadOptions, load_target
from draftproof.proof.equality import compare_answers
from draftproof.result import Result
from draftproof.sampling.params import SamplingParams
from draftproof.schedule.fixed import FixedSchedule
from draftproof.target.base import Target
from draftproof.text import Tokenizer
from draftproof.verify.coupled import CoupledVerifier
from evidence.prompts import PROMPTS
from evidence.record import Record

LENGTHS = (1, 4, 8)
TOLERANCE = 1e-4  # of log-probabilities, in float32 passes of different widths
BASE = SamplingParams(temperature=0.8, max_tokens=24, seed=20261129, logprobs=3)


def no_repeats(history: tuple[int, ...], logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """A custom processor: none of the last eight tokens again."""
    logits[list(history[-8:])] -= 5.0
    return logits


def controls(tokenizer: Tokenizer) -> dict[str, SamplingParams]:
    """Every control by itself, and some together."""
    the, comma, dot = (tokenizer.encode(text)[0] for text in (" the", ",", "."))
    person = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    changes: dict[str, dict[str, Any]] = {
        "temperature": {},
        "raw_logprobs": {"raw_logprobs": True},
        "prompt_logprobs": {"prompt_logprobs": 2},
        "top_k": {"top_k": 20},
        "top_p": {"top_p": 0.8},
        "min_p": {"min_p": 0.1},
        "repetition_penalty": {"repetition_penalty": 1.4},
        "frequency_penalty": {"frequency_penalty": 1.0},
        "presence_penalty": {"presence_penalty": 1.5},
        "logit_bias": {"logit_bias": {the: 4.0, comma: -4.0, dot: 2.0}},
        "banned_ids": {"banned_ids": [the, comma]},
        "banned_words": {"banned_words": ["and", "is a", "of the"]},
        "allowed_ids": {"allowed_ids": range(6000)},
        "min_tokens": {"min_tokens": 12, "stop_ids": [the, dot], "stop": [" a"]},
        "ignore_eos": {"ignore_eos": True},
        "stop_ids": {"stop_ids": [comma, dot]},
        "stop": {"stop": ["\n\n", ". ", "ing t"]},
        "include_stop": {"stop": ["s ", ", a"], "include_stop": True},
        "processors": {"processors": ["no repeats"]},
        "json_schema": {"json_schema": person},
        "regex": {"regex": r"[a-z ]{5,40}(, [a-z ]{3,20}){0,4}\."},
        "grammar": {"grammar": 'start: line+\nline: /[A-Z][a-z]{2,9}/ ": " /[0-9]{1,3}/ "\\n"'},
        "penalties and stops": {"repetition_penalty": 1.2, "presence_penalty": 0.8, "min_tokens": 6, "stop": ["."]},
        "truncations": {"top_k": 50, "top_p": 0.9, "min_p": 0.02},
        "everything": {
            "top_k": 50,
            "top_p": 0.95,
            "repetition_penalty": 1.1,
            "frequency_penalty": 0.3,
            "logit_bias": {the: 1.0},
            "banned_words": ["and"],
            "min_tokens": 8,
            "processors": ["no repeats"],
            "stop": ["\n\n"],
        },
    }
    return {name: replace(BASE, **change) for name, change in changes.items()}


def drafters(target: Target) -> dict[str, Callable[[], Drafter]]:
    """The five; "model" drafts with the target itself at another temperature: often right, not always."""
    return {
        "none": NoDrafter,
        "lookup": lambda: LookupDrafter(longest=3, shortest=1),
        "suffix": lambda: SuffixDrafter(1),
        "model": lambda: ModelDrafter(target, temperature=1.2),
        "lookup+model": lambda: ChainDrafter([LookupDrafter(3, 1), ModelDrafter(target, temperature=1.2)]),
    }


@dataclass(frozen=True)
class Compared:
    """What one run against plain decoding showed. faults: what differed and is no tie of rounding."""

    answers: int
    tokens: int
    ties: int
    logprob_difference: float
    accepted: int
    faults: tuple[str, ...]


def run(
    target: Target,
    tokenizer: Tokenizer,
    drafter: Drafter,
    length: int,
    prompts: list[list[int]],
    params: SamplingParams,
) -> list[Result]:
    """All prompts in one batch."""
    engine = Engine(
        target,
        drafter=drafter,
        verifier=CoupledVerifier(),
        schedule=FixedSchedule(length),
        tokenizer=tokenizer,
        processors={"no repeats": no_repeats},
    )
    return engine.generate_all(prompts, params)


def compare(
    target: Target, prompts: list[list[int]], plain: list[Result], other: list[Result], params: SamplingParams
) -> Compared:
    """Everything an answer consists of, answer by answer."""
    faults: list[str] = []
    ties, furthest, tokens = 0, 0.0, 0
    for i, (prompt, a, b) in enumerate(zip(prompts, plain, other, strict=True)):
        tokens += len(a.token_ids)
        if a.token_ids != b.token_ids:
            found = compare_answers(target, [prompt], [a], [b], params)
            ties += len(found.divergences) - len(found.faults)
            faults += [f"prompt {i}: {fault}" for fault in found.faults]
            continue
        for name in ("text", "finish_reason", "stop_reason", "offsets"):
            if getattr(a, name) != getattr(b, name):
                faults.append(f"prompt {i}: {name} {getattr(a, name)!r} != {getattr(b, name)!r}")
        for x, y in zip(
            [*(a.logprobs or ()), *(a.prompt_logprobs or ())],
            [*(b.logprobs or ()), *(b.prompt_logprobs or ())],
            strict=True,
        ):
            if x is not None and y is not None:
                furthest = max(
                    furthest, abs(x.logprob - y.logprob), *(abs(p[1] - q[1]) for p, q in zip(x.top, y.top, strict=True))
                )
    if furthest > TOLERANCE:
        faults.append(f"log-probabilities differ by {furthest:.3g}")
    accepted = sum(r.speculation.accepted for r in other)
    return Compared(len(plain), tokens, ties, furthest, accepted, tuple(faults))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="transformers")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--prompts", type=int, default=10)
    arguments = parser.parse_args()
    record = Record(f"control-matrix-{arguments.backend}")
    target, tokenizer = load_target("smollm2", LoadOptions(backend=arguments.backend))
    prompts = [tokenizer.prompt(text) for text in PROMPTS[: arguments.prompts]]
    for name, wanted in controls(tokenizer).items():
        if name in record.parts:
            continue
        params = replace(wanted, max_tokens=arguments.tokens)
        started = perf_counter()
        plain = run(target, tokenizer, NoDrafter(), 0, prompts, params)
        found: dict[str, Any] = {}
        for drafter, build in drafters(target).items():
            for length in LENGTHS:
                other = run(target, tokenizer, build(), length, prompts, params)
                found[f"{drafter} {length}"] = asdict(compare(target, prompts, plain, other, params))
        summary = {
            "finish_reasons": sorted({r.finish_reason for r in plain}),
            "answers": sum(c["answers"] for c in found.values()),
            "tokens": sum(c["tokens"] for c in found.values()),
            "accepted": sum(c["accepted"] for c in found.values()),
            "ties": sum(c["ties"] for c in found.values()),
            "faults": sum(len(c["faults"]) for c in found.values()),
            "largest_logprob_difference": max(c["logprob_difference"] for c in found.values()),
            "seconds": perf_counter() - started,
        }
        record.add(name, {**summary, "runs": found})
        print(name, summary, flush=True)


if __name__ == "__main__":
    main()
