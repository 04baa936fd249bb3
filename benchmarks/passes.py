"""What a pass takes by its number of tokens: in the graph for any number, and in one compiled for that number.

Run: python benchmarks/passes.py [--weights int8] [--activations int8] [--tokens 1 2 3 4 5 6 7 8 9] [--context 100]
[--repeats 8]. Milliseconds, medians. "first": the first pass after one of another number of tokens, which prepares its
kernels anew. All rows go through the head. Graphs take turns within a repeat; each narrow one takes the memory of the
weights, so a machine with little of it should be asked for few numbers at a time.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from time import perf_counter
from typing import Any

from draftproof.target.base import Feed
from draftproof.target.openvino import OpenVINOTarget
from draftproof.target.openvino_compile import LEAST

RUN = 6  # passes in a row


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", default="int8")
    parser.add_argument("--activations", default="int8")
    parser.add_argument("--tokens", type=int, nargs="+", default=list(range(1, 10)))
    parser.add_argument("--context", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=8)
    asked = parser.parse_args()
    how: dict[str, Any] = {"weights": asked.weights, "activations": asked.activations}
    targets = {0: OpenVINOTarget.load("smollm2", narrow=(), **how)}
    for tokens in asked.tokens:
        targets[tokens] = OpenVINOTarget.load("smollm2", narrow=(max(tokens, LEAST[asked.activations]),), **how)
    text = [i * 7919 % 40000 + 100 for i in range(asked.context)]
    handles = {key: target.open() for key, target in targets.items()}
    for key, target in targets.items():
        target.score([Feed(handles[key], text, rows=1)])

    def once(key: int, tokens: int) -> float:
        target, handle = targets[key], handles[key]
        started = perf_counter()
        target.score([Feed(handle, text[:tokens], rows=tokens)])
        seconds = perf_counter() - started
        target.rollback(handle, asked.context)
        return 1e3 * seconds

    first, further, narrow = (defaultdict[int, list[float]](list) for _ in range(3))
    for _ in range(asked.repeats):
        for tokens in asked.tokens:
            changed, *same = [once(0, tokens) for _ in range(RUN)]
            first[tokens].append(changed)
            further[tokens] += same
            narrow[tokens] += [once(tokens, tokens) for _ in range(RUN)][1:]
    print("| tokens of the pass | " + " | ".join(map(str, asked.tokens)) + " |")
    print("|---|" + "---:|" * len(asked.tokens))
    for name, found in (("any number, first", first), ("any number, further", further), ("a graph of its own", narrow)):
        print(f"| {name} | " + " | ".join(f"{statistics.median(found[n]):.1f}" for n in asked.tokens) + " |")


if __name__ == "__main__":
    main()
