"""What the controls cost per row: medians over interleaved runs, one core.

Run: python benchmarks/controls.py [--vocab 49152] [--repeats 200]. Rows are float32 logits: "peaked" as a language
model's usually are, "flat" as they are where it has no idea. Prints one line per control with its bound, if it has one.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

from draftproof.sampling.controls import Controls
from draftproof.sampling.params import SamplingParams
from draftproof.target.base import LogitRows

HISTORY = 1000


def cases(vocab: int) -> dict[str, tuple[SamplingParams, float | None]]:
    """Name -> parameters and the bound in milliseconds per row."""
    rng = np.random.default_rng(0)
    return {
        "greedy": (SamplingParams(temperature=0), None),
        "temperature": (SamplingParams(temperature=0.8), 0.4),
        "top-k 50": (SamplingParams(top_k=50), None),
        "top-k 5000": (SamplingParams(top_k=5000), None),
        "min-p 0.05": (SamplingParams(min_p=0.05), None),
        "top-p 0.9": (SamplingParams(top_p=0.9), 1.0),
        "top-k 50 + top-p 0.9": (SamplingParams(temperature=0.8, top_k=50, top_p=0.9), 1.0),
        "top-k 40000 + top-p 0.9": (SamplingParams(temperature=0.8, top_k=40000, top_p=0.9), 1.0),
        "penalties": (SamplingParams(repetition_penalty=1.1, frequency_penalty=0.5, presence_penalty=0.5), None),
        "bias of 100 ids": (SamplingParams(logit_bias={int(i): 1.0 for i in rng.integers(0, vocab, 100)}), None),
        "100 banned ids": (SamplingParams(banned_ids=frozenset(rng.integers(0, vocab, 100).tolist())), None),
        "100 allowed ids": (SamplingParams(allowed_ids=frozenset(rng.integers(0, vocab, 100).tolist())), None),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--vocab", type=int, default=49152)
    parser.add_argument("--repeats", type=int, default=200)
    options = parser.parse_args()
    rng = np.random.default_rng(1)
    noise = rng.standard_normal((16, options.vocab)).astype(np.float32)
    rows = {"peaked": LogitRows(noise * 3), "flat": LogitRows(noise * np.float32(0.01)), "equal": LogitRows(noise * 0)}
    history = rng.integers(0, options.vocab, HISTORY).tolist()
    runs: dict[tuple[str, str], Callable[[int], object]] = {}
    bounds: dict[str, float | None] = {}
    for name, (params, bound) in cases(options.vocab).items():
        controls = Controls(params, options.vocab, prompt=history[: HISTORY // 2])
        for token in history[HISTORY // 2 :]:
            controls.commit(token)
        bounds[name] = bound
        for shape, values in rows.items():
            runs[name, shape] = lambda i, c=controls, v=values: c.distribution(v, i % 16, history[:4])  # type: ignore[misc]
    times: dict[tuple[str, str], list[float]] = {key: [] for key in runs}
    for i in range(options.repeats + 5):
        for key, run in runs.items():
            start = time.perf_counter()
            run(i)
            if i >= 5:
                times[key].append(time.perf_counter() - start)
    print(f"ms per row of {options.vocab} float32 logits, median of {options.repeats}; history of {HISTORY} tokens")
    print(f"{'':<26}" + "".join(f"{shape:>9}" for shape in rows) + "    bound")
    for name, limit in bounds.items():
        medians = [statistics.median(times[name, shape]) * 1e3 for shape in rows]
        verdict = "" if limit is None else f"{limit:>9.1f} {'held' if max(medians) <= limit else 'BROKEN'}"
        print(f"{name:<26}" + "".join(f"{m:>9.3f}" for m in medians) + verdict)


if __name__ == "__main__":
    main()
