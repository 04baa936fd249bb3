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
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from draftproof.proof.bets import AWAY, DRAFTED, NAMES, TEMPERED, TOWARD, Bets

Floats = npt.NDArray[np.float64]

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

    def settle(self, ratios: Floats, watches: tuple[int, ...], noise: float, bets: Bets) -> None:
        """Multiply in one token's payoffs (bets,) at the watches (indices into WATCHES) that its position has."""
        with np.errstate(divide="ignore"):
            factor = np.log(_KEPT + ratios[:, None] * _S)  # a lost stake of everything is -inf, for good
        if noise > 0:
            factor -= np.log1p(math.expm1(noise) * np.multiply.outer(bets.deviation, _S))
        for w in watches:
            self.logs[w] += factor

    def weighted(self, watch: int | slice = slice(None)) -> Floats:
        """log(weight) + log-wealth of every component, or of those staked at one watch, flat."""
        return (self.log_weights[watch] + self.logs[watch]).ravel()

    def growths(self, count: int) -> list[Growth]:
        """The components that count most now, best first."""
        best = np.argsort(self.weighted())[::-1][:count]
        return [self._growth(int(i)) for i in best]

    def _growth(self, flat: int) -> Growth:
        w, b, s = (int(i) for i in np.unravel_index(flat, self.logs.shape))
        return Growth(NAMES[b], str(WATCHES[w]), STRENGTHS[s], float(self.logs[w, b, s]) / math.log(10))


def log_sum_exp(terms: Floats) -> float:
    """log sum exp(terms) without overflow; -inf for nothing but -inf."""
    top = float(terms.max())
    if not math.isfinite(top):
        return top
    return top + math.log(float(np.exp(terms - top).sum()))


_S = np.array(STRENGTHS)
_KEPT = 1 - _S


def _weights() -> Floats:
    bets = np.concatenate([np.full(len(family), weight / len(family)) for family, weight in FAMILY_WEIGHTS.items()])
    assert len(bets) == len(NAMES)
    assert math.isclose(bets.sum(), 1)
    uniform = np.full(len(STRENGTHS), 1 / len(STRENGTHS))
    weights: Floats = np.array(WATCH_WEIGHTS)[:, None, None] * bets[None, :, None] * uniform
    return weights
