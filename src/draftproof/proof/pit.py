"""The probability integral transform: every token turned into a number that is uniform if it came from p.

What it is for: a picture of any deviation, and bets that learn its shape. For a token x with the tokens in some fixed
order, u = F(x-) + v p(x) with v uniform is uniform on [0, 1) (Smirnov 1947; Czado et al. 2009 for counts). Two orders
are used: by decreasing p, where a sharper engine piles up on the left, and by id, which sees faults of the draw itself.

Guarantees: the order is fixed before the token is known. The bets use no random v: they average over it exactly.
What it does not do: plot.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from draftproof.errors import InvalidValue
from draftproof.proof.bets import Bets
from draftproof.proof.wealth import WATCH_WEIGHTS, WATCHES, Growth, Watched

Floats = npt.NDArray[np.float64]

ORDERS = ("by probability", "by id")
BINS = 8


@dataclass(frozen=True, slots=True)
class PitHistogram:
    """Counts of u in equal bins of [0, 1); flat if the tokens came from p.

    order: how the tokens were ordered. counts: shape (bins,). Every bin's count is binomial(n, 1/bins) under the null;
    `expected` and `sigma` are its mean and standard deviation.
    """

    order: str
    counts: Seq[int]

    @property
    def n(self) -> int:
        """Number of tokens."""
        return sum(self.counts)

    @property
    def expected(self) -> float:
        """n / bins."""
        return self.n / len(self.counts)

    @property
    def sigma(self) -> float:
        """Standard deviation of one bin's count under the null."""
        share = 1 / len(self.counts)
        return math.sqrt(self.n * share * (1 - share))

    def to_json(self) -> dict[str, Any]:
        """Plain numbers and strings."""
        return {"order": self.order, "counts": list(self.counts), "expected": self.expected, "sigma": self.sigma}


class Pit:
    """Randomised transforms of a stream of tokens, counted. seed: of the uniforms v."""

    def __init__(self, *, bins: int = 20, seed: int = 0) -> None:
        if bins < 2:
            raise InvalidValue(f"bins={bins}", "at least 2")
        self._counts = np.zeros((len(ORDERS), bins), dtype=np.int64)
        self._random = np.random.default_rng(seed)

    def update(self, intervals: Floats) -> Floats:
        """Count one token from its intervals [F(x-), F(x)], shape (orders, 2); returns u, shape (orders,)."""
        v, bins = self._random.random(), self._counts.shape[1]
        u = np.empty(len(ORDERS))
        for i, (low, high) in enumerate(intervals.tolist()):
            u[i] = at = low + v * (high - low)
            self._counts[i, min(int(at * bins), bins - 1)] += 1
        return u

    def histograms(self) -> list[PitHistogram]:
        """One histogram for each order."""
        return [PitHistogram(o, tuple(int(c) for c in self._counts[i])) for i, o in enumerate(ORDERS)]


def intervals(bets: Bets, token: int) -> Floats:
    """[F(x-), F(x)] of a token in each order, shape (2, 2); tied tokens share one interval in the first order."""
    above, upto = bets.above(token)
    below, through = bets.below(token)
    # Running sums of p can pass 1 by their rounding.
    return np.array([[min(above, 1.0), min(upto, 1.0)], [min(below, 1.0), min(through, 1.0)]])


class LearnedPit:
    """Bets that learn the histogram of u: the density (count + 1/2) / (n + bins/2) * bins, averaged over v.

    The Krichevsky-Trofimov mixture: it loses at most (bins - 1)/2 log n to the best fixed histogram.
    """

    def __init__(self) -> None:
        shape = (len(WATCHES), len(ORDERS), BINS)
        self._counts: Floats = np.full(shape, 0.5)
        self.logs: Floats = np.zeros(shape[:2])
        self.log_weights: Floats = np.log(np.array(WATCH_WEIGHTS)[:, None] / np.full(shape[:2], len(ORDERS)))

    def settle(self, shares: Floats, watched: Watched, noise: Floats) -> list[Floats]:
        """Multiply in consecutive tokens: shares in each bin, shape (tokens, orders, BINS); noise: (tokens,).

        Returns, for each watch, log(weight) + log-wealth after each token it watched, shape (those tokens, orders).
        """
        return [self._follow(w, shares[seen], noise[seen]) for w, seen in enumerate(watched)]

    def _follow(self, w: int, shares: Floats, noise: Floats) -> Floats:
        if not len(shares):
            return np.empty((0, 0))
        counts = self._counts[w] + np.cumsum(shares, axis=0)
        before = np.concatenate([self._counts[w : w + 1], counts[:-1]])  # a token is bet on with what came before it
        density = before / before.sum(axis=-1, keepdims=True) * BINS
        factor = (density * shares).sum(axis=-1)
        if noise.any():
            factor /= 1 + np.expm1(noise)[:, None] * np.minimum(1, np.abs(density - 1).mean(axis=-1))
        path = self.logs[w] + np.cumsum(np.log(factor), axis=0)
        self._counts[w], self.logs[w] = counts[-1], path[-1]
        weighted: Floats = self.log_weights[w] + path
        return weighted

    def weighted(self) -> Floats:
        """log(weight) + log-wealth of every component, flat."""
        return (self.log_weights + self.logs).ravel()

    def growths(self, count: int) -> list[Growth]:
        """The components that count most now, best first."""
        best = np.argsort(self.weighted())[::-1][:count]
        places = [np.unravel_index(int(i), self.logs.shape) for i in best]
        return [
            Growth(
                f"learned histogram {ORDERS[int(o)]}", str(WATCHES[int(w)]), 1.0, float(self.logs[w, o]) / math.log(10)
            )
            for w, o in places
        ]


def shares_of(spans: Floats) -> Floats:
    """The part of each interval [low, high) in each bin, summing to one: (..., 2) becomes (..., BINS).

    An interval without length lies in one bin.
    """
    low, high = spans[..., :1], spans[..., 1:]
    shares: Floats = np.maximum(0, np.minimum(high, _EDGES[1:]) - np.maximum(low, _EDGES[:-1]))
    if not (high > low).all():
        at = np.minimum((low * BINS).astype(np.int64), BINS - 1)
        shares = np.where(high > low, shares, at == np.arange(BINS))
    shares /= shares.sum(axis=-1, keepdims=True)
    return shares


_EDGES = np.linspace(0, 1, BINS + 1)
