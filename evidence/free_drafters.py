"""Tokens a round of the drafters that cost next to nothing, on prompts of other origin, counted in the engine.

Answers of 128 tokens at T = 0 and T = 1, draft length 5 in every round. Writes evidence/results/free-drafters.json part
by part. The prompts are chat.jsonl, code.jsonl and math.jsonl of a folder, as for `evidence.dspark_eval`.

    python -m evidence.free_drafters --prompts FOLDER [--limit 32] [--tokens 128]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from time import perf_counter

from draftproof.engine import Engine
from draftproof.load import LoadOptions, load_target
from draftproof.prompts import encode
from draftproof.registry import DraftContext, make_drafter
from draftproof.sampling.params import SamplingParams
from draftproof.schedule.fixed import FixedSchedule
from draftproof.train.corpus import read_prompts
from evidence.record import Record

KINDS = ("chat", "code", "math")
DRAFTERS = ("lookup", "suffix", "retrieval")
LENGTH = 5
SEED = 20261130


def asked(description: str | None) -> argparse.Namespace:
    """The command line of scripts that measure drafters on a folder of prompts."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--weights", default="int8")
    parser.add_argument("--activations", default="int8")
    return parser.parse_args()


def main() -> None:
    arguments = asked(__doc__)
    options = LoadOptions(backend="openvino", weights=arguments.weights, activations=arguments.activations)
    target, tokenizer = load_target("smollm2", options)
    record = Record("free-drafters")
    for kind in KINDS:
        texts = read_prompts(arguments.prompts / f"{kind}.jsonl")[: arguments.limit]
        prompts = [list(encode(text, tokenizer, target.vocab_size, chat=True)) for text in texts]
        for temperature in (0.0, 1.0):
            for name in DRAFTERS:
                part = f"{kind}, T = {temperature:g}, {name}"
                if part in record.parts:
                    continue
                drafter = make_drafter(
                    name, DraftContext("", target, tokenizer, load_model=lambda name: (target, None))
                )
                engine = Engine(target, drafter=drafter, schedule=FixedSchedule(LENGTH), tokenizer=tokenizer)
                started = perf_counter()
                results = [
                    engine.generate(
                        prompt, SamplingParams(temperature=temperature, max_tokens=arguments.tokens, seed=SEED + i)
                    )
                    for i, prompt in enumerate(prompts)
                ]
                rounds = sum(r.speculation.rounds for r in results)
                drafted, accepted = [0] * LENGTH, [0] * LENGTH
                for r in results:
                    for k, n in enumerate(r.speculation.drafted_at):
                        drafted[k] += n
                    for k, n in enumerate(r.speculation.accepted_at):
                        accepted[k] += n
                tokens = sum(r.speculation.emitted for r in results)
                value = {
                    "prompts": len(prompts),
                    "tokens": tokens,
                    "rounds": rounds,
                    "tokens_per_round": tokens / rounds,
                    "acceptance_by_position": [a / d if d else None for a, d in zip(accepted, drafted, strict=True)],
                    "seconds": perf_counter() - started,
                    "seed": SEED,
                    "weights": arguments.weights,
                    "activations": arguments.activations,
                }
                record.add(part, value)
                print(f"{part}: {tokens / rounds:.3f}", flush=True)


if __name__ == "__main__":
    main()
