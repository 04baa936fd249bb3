"""The spectrum of a row: its power sums and the sets of its most probable tokens, in a few passes.

What it is for: `bets`, which needs these numbers of every p. Guarantees: masses are sums of the very entries in the
set, ties included; a set that cannot be found cheaply is NaN rather than wrong. What it does not do: sort the row.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from draftproof.dist import Dist
from draftproof.errors import BadTable

Floats = npt.NDArray[np.float64]

TEMPERS = (0.5, 0.75, 0.875, 1.125, 1.25, 1.5, 2.0, 3.0)
TOP_K = (1, 2, 5, 10, 20, 40, 50)
NUCLEI = (0.9, 0.95, 0.98)
MIN_P = (0.05, 0.1)
FLOOR = 2.0**-12  # level sets are found among tokens at least this probable: at most 4096, usually a few hundred
TAIL = 2.0**-15  # less probable tokens are told apart by no tempered bet: whole-row powers cost more than they show
BLOCK = 8192  # entries summed at a time: temporaries of a whole vocabulary cost more than the arithmetic

LEVEL_SETS = (
    "the argmax",
    *(f"the top {k}" for k in TOP_K[1:]),
    *(f"the nucleus {m}" for m in NUCLEI),
    *(f"the min-p {m} set" for m in MIN_P),
)
"""Sets {p >= v}: the k most probable tokens, the smallest set of mass m, the tokens with p >= m max p."""


def float_dist(probs: Dist | npt.ArrayLike, what: str) -> tuple[Dist, float]:
    """A float64 `Dist` and its sum, one to rounding; sums further off than 1e-6 are refused, closer ones divided."""
    dist = probs if isinstance(probs, Dist) else Dist(np.asarray(probs, dtype=np.float64))
    values = dist.probs if dist.probs.dtype == np.float64 else dist.probs.astype(np.float64)
    if values.ndim != 1 or len(values) == 0:
        raise BadTable(f"{what} has shape {values.shape}", "one probability per token, shape (V,)")
    # einsum adds twice as fast as sum does; it rounds a little more, far below the tolerances here.
    total, least = float(np.einsum("i->", values)), float(np.minimum.reduce(values))
    if not least >= 0 or not abs(total - 1) <= 1e-6:
        raise BadTable(f"{what} sums to {total:.9g}, smallest entry {least:.3g}", "give a distribution")
    if abs(total - 1) > 1e-12:
        values = values / total
        total = float(np.einsum("i->", values))
    return (dist if values is dist.probs else Dist(values, ids=dist.ids, size=dist.size)), total


def head_of(probs: Floats) -> Floats:
    """The entries that tempered bets and level sets look at one by one: those of at least TAIL, in the row's order."""
    head: Floats = probs[probs >= TAIL]
    return head


def level_sets(head: Floats, mass: Floats) -> Floats:
    """Thresholds v of the sets {p >= v}, NaN where not found; fills their masses. head: of p (`head_of`)."""
    big = head[head >= FLOOR]
    big.sort()
    count = len(big)
    levels = np.full(len(LEVEL_SETS), np.nan)
    if count == 0:
        return levels
    running = np.cumsum(big[::-1])
    levels[: len(TOP_K)] = big[count - np.minimum(_TOP_K, count)]
    for i, rank in enumerate(running.searchsorted(_NUCLEI).tolist(), start=len(TOP_K)):
        if rank < count:
            levels[i] = big[count - 1 - rank]
    for i, share in enumerate(MIN_P, start=len(TOP_K) + len(NUCLEI)):
        if (cut := float(big[-1]) * share) >= FLOOR:
            levels[i] = cut
    # NaN sorts after everything: such a level finds nothing at or above it, and running[-1] is not read for it.
    at = count - 1 - big.searchsorted(levels)
    mass[: len(levels)] = np.where(at >= 0, running[at], np.nan)
    return levels


def power_sums(head: Floats) -> tuple[Floats, Floats]:
    """sum p max(p, TAIL)^(a-1) and sum p max(p, TAIL)^(2(a-1)) for a in TEMPERS. head: of p (`head_of`)."""
    rest = max(0.0, 1.0 - float(np.add.reduce(head)))  # of all tokens less probable than TAIL; p sums to one
    p2 = np.sqrt(head)
    p4 = np.sqrt(p2)
    p8 = np.sqrt(p4)
    square = head * head
    half, three_quarters, five_quarters, three_halves = np.add.reduce(p2), p2 @ p4, head @ p4, head @ p2
    two, three = head @ head, square @ head
    sums = np.array([half, three_quarters, (p2 * p4) @ p8, head @ p8, five_quarters, three_halves, two, three])
    squares = np.array(
        [len(head), half, three_quarters, five_quarters, three_halves, two, three, (square * square) @ head]
    )
    sums += rest * _AT_TAIL
    squares += rest * _AT_TAIL**2
    return sums, squares


def tempered_deviation(sums: Floats, squares: Floats) -> Floats:
    """Bounds of the tempered bets' deviations, from `power_sums`.

    sum p |r - 1| <= sqrt(sum p r^2 - 1) by Cauchy-Schwarz, for r = max(p, TAIL)^(a-1) / S_a.
    """
    bound: Floats = np.minimum(1, np.sqrt(np.maximum(0, squares / sums**2 - 1)))
    return bound


_TOP_K, _NUCLEI = np.array(TOP_K), np.array(NUCLEI)
_AT_TAIL = TAIL ** (np.array(TEMPERS) - 1)
