"""Equality with plain decoding on the default model: 20 prompts of 128 tokens, every drafter, draft lengths 1 to 8.

Temperature 0 with the token verifier, and temperature 1 with the coupled verifier. Every first difference is explained
by its margin against the row noise measured at that row. Writes evidence/results/equality-BACKEND-T*.json part by part.

    python -m evidence.equality [--backend transformers] [--tokens 128] [--prompts 20] [--temperature 0]
"""

from __future__ import annotations

import argparse
import dataclasses
from time import perf_counter
from typing import Any

from draftproof.draft.base import Drafter
from draftproof.draft.lookup import LookupDrafter
from draftproof.draft.model import ModelDrafter
from draftproof.draft.suffix import SuffixDrafter
from draftproof.engine import Engine
from draftproof.load import LoadOptions, load_target
from draftproof.proof.equality import compare_answers
from draftproof.registry import make_verifier
from draftproof.result import Result
from draftproof.sampling.params import SamplingParams
from draftproof.schedule.fixed import FixedSchedule
from draftproof.target.base import Target
from evidence.prompts import PROMPTS
from evidence.record import Record

LENGTHS = range(1, 9)
SEED = 20261129


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="transformers")
    parser.add_argument("--weights", help="openvino: file, int8, int4 or float16")
    parser.add_argument("--activations", help="openvino: float32 or int8")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--temperature", type=float, action="append", help="0 (token) or 1 (coupled); default: both")
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    options = LoadOptions(
        backend=arguments.backend,
        weights=arguments.weights,
        activations=arguments.activations,
        threads=arguments.threads,
    )
    target, tokenizer = load_target("smollm2", options)
    kind = "-".join(part for part in (arguments.backend, arguments.weights, arguments.activations) if part)
    prompts = [tokenizer.chat([{"role": "user", "content": text}]) for text in PROMPTS[: arguments.prompts]]
    for temperature in arguments.temperature or (0.0, 1.0):
        verifier = "token" if temperature == 0 else "coupled"
        record = Record(f"equality-{kind}-T{temperature:g}")
        params = SamplingParams(temperature=temperature, max_tokens=arguments.tokens, seed=SEED)
        plain: list[Result] | None = None
        for name in ("lookup", "suffix", "model"):
            for length in LENGTHS:
                part = f"T={temperature:g} {verifier} {name} {length}"
                if part in record.parts:
                    continue
                if plain is None:
                    plain = run(target, None, verifier, 0, prompts, params)
                started = perf_counter()
                other = run(target, drafter(name, target), verifier, length, prompts, params)
                found = compare_answers(target, prompts, plain, other, params)
                summary: dict[str, Any] = {
                    "answers": found.answers,
                    "tokens_compared": found.tokens,
                    "ties": len(found.divergences) - len(found.faults),
                    "faults": len(found.faults),
                    "divergences": [dataclasses.asdict(d) for d in found.divergences],
                    "tokens_per_round": sum(r.usage.completion_tokens for r in other)
                    / sum(r.speculation.rounds for r in other),
                    "seconds": perf_counter() - started,
                }
                record.add(part, summary)
                print(part, {k: v for k, v in summary.items() if k != "divergences"}, flush=True)


def drafter(name: str, target: Target) -> Drafter:
    """The drafter of this name; "model" drafts with the target itself, one token at a time, in its own cache."""
    if name == "model":
        return ModelDrafter(target)
    return LookupDrafter() if name == "lookup" else SuffixDrafter()


def run(
    target: Target, draft: Drafter | None, verifier: str, length: int, prompts: list[list[int]], params: SamplingParams
) -> list[Result]:
    """All prompts in one batch."""
    engine = Engine(target, drafter=draft, verifier=make_verifier(verifier), schedule=FixedSchedule(length))
    return engine.generate_all(prompts, params)


if __name__ == "__main__":
    main()
