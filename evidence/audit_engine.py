"""Our engine on a real model: sampled text of every verifier and drafter, put to the sequential test, in parts.

Each part is one (verifier, drafter, temperature, seed) with a test of its own at level 1e-3 / parts, so that all parts
together alarm falsely with probability at most 1e-3. Writes after every part, goes on where it stopped.

    python evidence/audit_engine.py --out evidence/audit_engine.json [--tokens 200000] [--model smollm2]
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import platform
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from draftproof import __version__
from draftproof.audit.scoring import feed, run_engine
from draftproof.draft.base import Drafter
from draftproof.draft.lookup import LookupDrafter
from draftproof.draft.model import ModelDrafter
from draftproof.draft.none import NoDrafter
from draftproof.draft.suffix import SuffixDrafter
from draftproof.engine import Engine
from draftproof.load import LoadOptions, load_target
from draftproof.proof.sequential import SequentialTest
from draftproof.registry import make_verifier
from draftproof.sampling.params import SamplingParams
from draftproof.schedule.fixed import FixedSchedule
from draftproof.target.base import Target
from draftproof.target.noise import measure_noise

LEVEL = 1e-3
PART = 2500  # tokens
ANSWER = 128
VERIFIERS = ("token", "block", "match", "coupled")
DRAFTERS = ("lookup", "suffix", "model", "none")
TEMPERATURES = (1.0, 0.7)
PROMPTS = (
    "Describe a morning at a harbour.",
    "Repeat this three times: the grey heron stands in the shallow water and waits.",
    "Write a short dialogue between two chess players.",
    "Write the numbers from one to twenty in words, twice.",
    "Explain how a bicycle stays upright.",
    "Tell a story about a lighthouse keeper and a letter.",
    "What should one pack for a week in the mountains?",
    "Compare tea and coffee in one paragraph.",
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--tokens", type=int, default=200_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--reverse", action="store_true", help="begin with the last part: for a second process")
    parser.add_argument("--drafters", nargs="*", default=DRAFTERS, help="only parts with these, in this process")
    parser.add_argument("--merge", type=Path, nargs="*", default=[], help="records of other processes to take over")
    options = parser.parse_args()
    record = json.loads(options.out.read_text()) if options.out.exists() else {"parts": []}
    for other in options.merge:
        known = {p["seed"] for p in record["parts"]}
        record["parts"] += [p for p in json.loads(other.read_text())["parts"] if p["seed"] not in known]
    count = -(-options.tokens // PART)
    combinations = itertools.cycle(itertools.product(VERIFIERS, DRAFTERS, TEMPERATURES))
    wanted = [(*c, seed) for seed, c in zip(range(count), combinations, strict=False)]
    target, tokenizer = load_target(options.model, LoadOptions(threads=options.threads))
    prompts = [tokenizer.chat([{"role": "user", "content": text}]) for text in PROMPTS]
    answer = Engine(target, drafter=NoDrafter()).generate(prompts[0], SamplingParams(max_tokens=ANSWER, seed=0))
    noise = measure_noise(target, [*prompts[0], *answer.token_ids], len(prompts[0]))
    drafters: dict[str, Callable[[], Drafter]] = {
        "lookup": LookupDrafter,
        "suffix": SuffixDrafter,
        "model": lambda: ModelDrafter(target, temperature=1.5, name="self"),
        "none": NoDrafter,
    }
    known = {p["seed"] for p in record["parts"]}
    for verifier, drafter, temperature, seed in reversed(wanted) if options.reverse else wanted:
        if (
            seed in known
            or drafter not in options.drafters
            or sum(p["tokens"] for p in record["parts"]) >= options.tokens
        ):
            continue
        started = perf_counter()
        engine = Engine(
            target, drafter=drafters[drafter](), verifier=make_verifier(verifier), schedule=FixedSchedule(4)
        )
        test = SequentialTest(level=LEVEL / count, noise=noise.bound / temperature, eos_ids=target.eos_ids)
        batch = 0
        while test.n < PART:
            first = seed * 100_000 + batch * len(prompts)
            params = [
                SamplingParams(max_tokens=ANSWER, temperature=temperature, seed=first + i) for i in range(len(prompts))
            ]
            for text in run_engine(engine, prompts, params):
                feed(test, target, text, params[0])
            batch += 1
        result = test.result()
        record["parts"].append(
            {
                "verifier": verifier,
                "drafter": drafter,
                "temperature": temperature,
                "seed": seed,
                "tokens": result.n,
                "alarm_at": result.rejected_at,
                "max_log10_e": round(result.log10_e_max, 4),
                "detectable_argmax_shift": result.detectable.get("the argmax"),
                "seconds": round(perf_counter() - started, 1),
            }
        )
        save(record, options, target, noise.bound)
        print(json.dumps(record["parts"][-1]), flush=True)
    save(record, options, target, noise.bound)


def save(record: dict[str, Any], options: argparse.Namespace, target: Target, noise: float) -> None:
    """Write the record, with what it was measured with."""
    record |= {
        "what": "our engine's sampled text against a plain pass",
        "model": options.model,
        "target": type(target).__name__,
        "noise": noise,
        "tokens": sum(p["tokens"] for p in record["parts"]),
        "alarms": sum(p["alarm_at"] is not None for p in record["parts"]),
        "versions": {"draftproof": __version__, "numpy": np.__version__, "python": platform.python_version()},
        "date": datetime.date.today().isoformat(),
    }
    options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
