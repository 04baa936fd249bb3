"""Wealth: the stakes on many bets at once, over all their strengths and over the kinds of position they watch.

What it is for: `sequential`. Staking the part s of one's wealth on a bet r multiplies it by 1 - s + s r(x). Under the
null each such product is a test martingale, and so is their weighted average.

Guarantees: weights are fixed beforehand and sum to one; an average can fall short of its best component by no more
than the logarithm of that component's weight. With row noise d the factor is divided by 1 + s (e^d - 1) deviation,
the most it can gain when p is off by e^d (`bets.Bets.deviation`), so the product stays a supermartingale for every
such p. What it does not do: look at tokens.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from draftproof.proof.bets import AWAY, DRAFTED, NAMES, TEMPERED, TOWARD

Floats = npt.NDArray[np.float64]
Watched = Seq[npt.NDArray[np.int64]]
"""For each watch, which of some consecutive tokens were at a position of its kind, ascending."""

STRENGTHS = (1.0, 0.5, 0.2, 0.05, 0.0125)


class Watch(enum.StrEnum):
    """The positions a bet is staked at. Each is known before the position's token is."""

    ALL = "all positions"
    DRAFTED = "drafted positions"
    BONUS = "bonus positions"  # every draft of the round was accepted before it
    AFTER_REJECTION = "the position after a rejection"  # the token before it replaced a rejected one


WATCHES = tuple(Watch)
WATCH_WEIGHTS = (0.5, 1 / 6, 1 / 6, 1 / 6)
FAMILY_WEIGHTS = {TEMPERED: 0.25, TOWARD: 0.25, AWAY: 0.2, DRAFTED: 0.3}


@dataclass(frozen=True, slots=True)
class Growth:
    """One component of the mixture and what it has become.

    bet: its name. watch: where it is staked. strength: the part of its wealth at stake. log10_e: its own e-value.
    """

    bet: str
    watch: str
    strength: float
    log10_e: float


class BetWealth:
    """Log-wealth of every (watch, bet, strength), shape (4, bets, strengths), starting from 0."""

    def __init__(self) -> None:
        self.logs: Floats = np.zeros((len(WATCHES), len(NAMES), len(STRENGTHS)))
        self.log_weights: Floats = np.log(_weights())

    def settle(self, ratios: Floats, watched: Watched, noise: Floats, deviation: Floats) -> list[Floats]:
        """Multiply in the payoffs of consecutive tokens, at the watches that each one's position has.

        ratios, deviation: shape (tokens, bets). noise: (tokens,). Returns, for each watch, log(weight) + log-wealth of
        its components after each token that it watched, shape (those tokens, components).
        """
        factor = _KEPT + ratios[..., None] * _S
        if noise.any():
            factor /= 1 + np.expm1(noise)[:, None, None] * deviation[..., None] * _S
        with np.errstate(divide="ignore"):
            np.log(factor, out=factor)  # a lost stake of everything is -inf, for good
        return [self._follow(w, factor[seen]) for w, seen in enumerate(watched)]

    def _follow(self, w: int, factors: Floats) -> Floats:
        if not len(factors):
            return np.empty((0, 0))
        path = self.logs[w] + np.cumsum(factors, axis=0)
        self.logs[w] = path[-1]
        weighted: Floats = (self.log_weights[w] + path).reshape(len(path), -1)
        return weighted

    def weighted(self) -> Floats:
        """log(weight) + log-wealth of every component, flat."""
        return (self.log_weights + self.logs).ravel()

    def growths(self, count: int) -> list[Growth]:
        """The components that count most now, best first."""
        best = np.argsort(self.weighted())[::-1][:count]
        return [self._growth(int(i)) for i in best]

    def _growth(self, flat: int) -> Growth:
        w, b, s = (int(i) for i in np.unravel_index(flat, self.logs.shape))
        return Growth(NAMES[b], str(WATCHES[w]), STRENGTHS[s], float(self.logs[w, b, s]) / math.log(10))


def log_sum_exp(terms: Floats) -> Floats:
    """log sum exp over the last axis without overflow; -inf for nothing but -inf."""
    top = terms.max(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        sums: Floats = np.squeeze(top, -1) + np.log(np.exp(terms - top).sum(axis=-1))
    return np.where(np.isfinite(top[..., 0]), sums, top[..., 0])


_S = np.array(STRENGTHS)
_KEPT = 1 - _S


def _weights() -> Floats:
    bets = np.concatenate([np.full(len(family), weight / len(family)) for family, weight in FAMILY_WEIGHTS.items()])
    assert len(bets) == len(NAMES)
    assert math.isclose(bets.sum(), 1)
    uniform = np.full(len(STRENGTHS), 1 / len(STRENGTHS))
    weights: Floats = np.array(WATCH_WEIGHTS)[:, None, None] * bets[None, :, None] * uniform
    return weights
