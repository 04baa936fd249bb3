"""The engine's own processor time per round, on a busy machine too: the rows of a real model, replayed for free.

Run: python benchmarks/rounds.py [--model smollm2] [--tokens 64] [--repeats 15] [--profile]. Answers are generated
once with the model and every row is kept; then the same answers are made again and again with a target that only
hands the kept rows out. What is timed is processor time of the one thread (`time.thread_time`), which other programs
disturb little. Rows lie in the processor's caches here more often than right after a real pass, so a real round costs
up to twice as much; `draftproof bench` shows that as efficiency.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq

from draftproof.bench.workloads import builtin
from draftproof.draft.base import Drafter
from draftproof.draft.lookup import LookupDrafter
from draftproof.draft.none import NoDrafter
from draftproof.engine import Engine
from draftproof.load import load_target
from draftproof.sampling.params import SamplingParams
from draftproof.schedule.adaptive import AdaptiveSchedule
from draftproof.schedule.base import Schedule
from draftproof.schedule.costs import CostCurve
from draftproof.schedule.fixed import FixedSchedule
from draftproof.target.base import Feed, Rows, Target

CURVE = {1: 0.012, 2: 0.014, 4: 0.017, 8: 0.022}  # a typical one; given, so that every run takes the same lengths
MODES: dict[str, tuple[Callable[[], Drafter], Callable[[], Schedule]]] = {
    "plain": (NoDrafter, lambda: FixedSchedule(0)),
    "lookup fixed 4": (LookupDrafter, lambda: FixedSchedule(4)),
    "lookup": (LookupDrafter, lambda: AdaptiveSchedule(CostCurve(CURVE, refine=False), 8)),
}


class Kept:
    """One sequence of a target: rows are kept while there is a model, and handed out again when there is none."""

    def __init__(self, model: Target) -> None:
        self.name, self.vocab_size = model.name, model.vocab_size
        self.context_limit, self.eos_ids = model.context_limit, model.eos_ids
        self.model: Target | None = model
        self.rows: list[list[Rows]] = []
        self.seconds = 0.0
        self._length = self._at = self._handle = 0

    def open(self) -> int:
        self._length = self._at = 0
        if self.model is not None:
            self._handle = self.model.open()
        return 0

    def close(self, handle: int) -> None:
        if self.model is not None:
            self.model.close(self._handle)

    def length(self, handle: int) -> int:
        return self._length

    def rollback(self, handle: int, length: int) -> None:
        self._length = length
        if self.model is not None:
            self.model.rollback(self._handle, length)

    def score(self, feeds: Seq[Feed]) -> list[Rows]:
        started = time.thread_time()
        (feed,) = feeds
        self._length += len(feed.tokens)
        if self.model is not None:
            self.rows.append(self.model.score([Feed(self._handle, feed.tokens, feed.rows)]))
        self._at += 1
        self.seconds += time.thread_time() - started
        return self.rows[self._at - 1]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--profile", action="store_true", help="where the time of the last mode goes")
    options = parser.parse_args()
    model, tokenizer = load_target(options.model)
    prompt = tokenizer.chat([{"role": "user", "content": builtin(["code"])[0].prompts[3]}])
    print("processor time of the engine per round, microseconds: median (least)")
    for temperature in (0.0, 1.0):
        params = SamplingParams(max_tokens=options.tokens, temperature=temperature, seed=1, ignore_eos=True)
        for name, (drafter, schedule) in MODES.items():
            kept = Kept(model)

            def once(
                kept: Kept = kept,
                params: SamplingParams = params,
                drafter: Callable[[], Drafter] = drafter,
                schedule: Callable[[], Schedule] = schedule,
            ) -> float:
                engine = Engine(kept, drafter=drafter(), schedule=schedule(), tokenizer=tokenizer)
                engine.add(prompt, params)
                kept.seconds, started = 0.0, time.thread_time()
                while engine.live:
                    engine.round()
                return (time.thread_time() - started - kept.seconds) / len(kept.rows)

            once()
            kept.model = None
            times = [once() for _ in range(options.repeats)]
            micro = (1e6 * statistics.median(times), 1e6 * min(times))
            print(
                f"T = {temperature:g}  {name:<16}{micro[0]:6.0f} ({micro[1]:.0f})  {len(kept.rows)} rounds", flush=True
            )
    if options.profile:
        with cProfile.Profile(time.thread_time) as profile:
            for _ in range(options.repeats):
                once()
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
