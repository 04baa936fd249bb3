"""How many rows of a pass each request gets, to make the most tokens per second.

What it is for: schedules. `best_rows` searches every total; it is for estimates made of the past alone. Live
confidences, which reveal drafted tokens one by one, need the causal form in `prefix`.

Guarantees: exact maximiser of (sum of expected tokens) / seconds(rows) among prefixes; equal survivals are taken by
position, then by request (rule 10 of the design). Source: algorithms.md, section 7; dspark.md, "Scheduler".
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Allocation:
    """lengths: rows admitted per request beyond its own. rate: expected tokens per second with them."""

    lengths: tuple[int, ...]
    rate: float


def best_block(survivals: Seq[Seq[float]], seconds: Callable[[int, int], float]) -> Allocation:
    """`best_rows` where drafting costs by its longest block: seconds(rows, longest)."""
    longest = max(map(len, survivals), default=0)
    found = [
        best_rows([row[:most] for row in survivals], lambda rows, most=most: seconds(rows, most))  # type: ignore[misc]
        for most in range(longest + 1)
    ]
    return max(found, key=lambda allocation: allocation.rate)  # of equals the shortest


def best_rows(survivals: Seq[Seq[float]], seconds: Callable[[int], float]) -> Allocation:
    """The lengths that maximise expected tokens per second of the round.

    survivals[r][k]: P(at least k+1 drafted tokens of request r accepted), non-increasing in k. seconds(rows): of the
    whole round with `rows` rows in all.
    """
    # Non-increasing survivals: taking the largest first respects prefixes.
    entries = sorted((-s, k, r) for r, row in enumerate(survivals) for k, s in enumerate(row))
    lengths = [0] * len(survivals)
    requests = len(survivals)
    tokens = float(requests)
    best = Allocation(tuple(lengths), tokens / seconds(requests))
    for taken, (negative, k, r) in enumerate(entries, start=1):
        tokens -= negative
        lengths[r] = k + 1
        rate = tokens / seconds(requests + taken)
        if rate > best.rate:
            best = Allocation(tuple(lengths), rate)
    return best
