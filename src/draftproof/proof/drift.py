"""Drift: how far the emitted tokens have moved from p, as a lower bound in total variation and as an e-process.

What it is for: `sequential` reports with it how large a bias is at least, and how large it would have had to be to be
found. Derivation: let S_t be a set of tokens chosen before token t, and D_t = 1[x_t in S_t] - p_t(S_t). If the engine
really draws from pi_t, then E[D_t | past] = pi_t(S_t) - p_t(S_t) <= TV(pi_t, p_t), and the same for -D_t. As D_t >= -1,

    exp(k (D_t - E D_t) - psi(k) D_t^2),   psi(k) = -log(1 - k) - k,   0 <= k < 1,

has conditional mean at most 1: exp(k y - psi(k) y^2) <= 1 + k y for y >= -1 (Fan, Grama, Liu 2015, lemma 4.1), and
exp(-k m) (1 + k m) <= 1. With tau the average TV over the n positions watched, sum E D_t <= n tau, so for every set

    exp(k (sum D_t - n tau) - psi(k) sum D_t^2)

is at most a supermartingale, and so is the weighted average over sets, signs and k. It exceeds 1/level at any time
with probability at most `level` (Ville); every tau at which it does is refuted, and it falls with tau. At tau = 0 it is
an e-process against losslessness (Howard et al., arXiv:1810.08240, is the general theory).

With row noise d, D_t is lowered by (e^d - 1) min(p(S), 1 - p(S)) first, and the bound is to the nearest p within it.

Guarantees: both claims hold at all times at once. What it does not do: say which token is wrong.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from draftproof.proof.bets import SETS
from draftproof.proof.wealth import WATCH_WEIGHTS, WATCHES, Growth, Watched, log_sum_exp

Floats = npt.NDArray[np.float64]

RATES = (0.5, 0.25, 0.12, 0.06, 0.03, 0.015, 0.0075)
WITNESSES = (*SETS, "tokens of probability 0")
SIGNS = ("more", "fewer")
POWER = 0.9  # probability of detection that `detectable` speaks of
_Z = 1.2815515594600038  # the standard normal quantile of POWER


@dataclass(frozen=True, slots=True)
class BiasBound:
    """The average total-variation distance per token at these positions is at least `at_least`.

    positions: how many tokens were watched. witness: the set that shows it, "" when nothing is shown (at_least 0).
    """

    watch: str
    positions: int
    at_least: float
    witness: str


class Drift:
    """Running sums of D and D^2 for every (watch, sign, witness)."""

    def __init__(self) -> None:
        shape = (len(WATCHES), len(SIGNS), len(WITNESSES))
        self.sums: Floats = np.zeros(shape)
        self.squares: Floats = np.zeros(shape)
        self.counts = np.zeros(len(WATCHES), dtype=np.int64)
        self.log_weights: Floats = (
            np.log(np.array(WATCH_WEIGHTS))[:, None, None, None]
            - np.log(len(SIGNS) * len(WITNESSES) * len(RATES))
            + np.zeros((*shape, len(RATES)))
        )

    def settle(
        self, hits: Floats, impossible: npt.NDArray[np.bool_], watched: Watched, noise: Floats, slack: Floats
    ) -> list[Floats]:
        """Add the D of consecutive tokens, shape (tokens, len(SETS)); slack: the same; noise, impossible: (tokens,).

        Returns, for each watch, log(weight) + log-wealth of its components after each token that it watched, shape
        (those tokens, components).
        """
        both = np.empty((len(hits), len(SIGNS), len(WITNESSES)))
        both[:, 0, :-1] = hits
        both[:, 0, -1] = impossible
        np.negative(both[:, 0], out=both[:, 1])
        if noise.any():
            both[..., :-1] -= (np.expm1(noise)[:, None] * slack)[:, None, :]
        return [self._follow(w, both[seen]) for w, seen in enumerate(watched)]

    def _follow(self, w: int, both: Floats) -> Floats:
        if not len(both):
            return np.empty((0, 0))
        sums = self.sums[w] + np.cumsum(both, axis=0)
        squares = self.squares[w] + np.cumsum(both * both, axis=0)
        self.sums[w], self.squares[w] = sums[-1], squares[-1]
        self.counts[w] += len(both)
        logs = _K * sums[..., None]
        logs -= _PSI * squares[..., None]
        logs += self.log_weights[w]
        weighted: Floats = logs.reshape(len(logs), -1)
        return weighted

    def logs(self, watch: int | slice = slice(None)) -> Floats:
        """Log e-processes at tau = 0, shape (watches, signs, witnesses, rates), or those of one watch."""
        logs: Floats = _K * self.sums[watch][..., None] - _PSI * self.squares[watch][..., None]
        return logs

    def weighted(self) -> Floats:
        """log(weight) + log-wealth of every component, flat."""
        return (self.log_weights + self.logs()).ravel()

    def growths(self, count: int) -> list[Growth]:
        """The components that count most now, best first."""
        logs = self.logs()
        found = []
        for flat in np.argsort(self.weighted())[::-1][:count]:
            w, sign, s, k = (int(i) for i in np.unravel_index(int(flat), logs.shape))
            name = f"{SIGNS[sign]} of {WITNESSES[s]}"
            found.append(Growth(name, str(WATCHES[w]), RATES[k], float(logs[w, sign, s, k]) / math.log(10)))
        return found

    def bounds(self, level: float) -> list[BiasBound]:
        """A lower bound for each watch that has positions; all of them together hold with probability 1 - level."""
        return [self._bound(w, level * weight) for w, weight in enumerate(WATCH_WEIGHTS) if self.counts[w]]

    def _bound(self, w: int, level: float) -> BiasBound:
        logs = self.logs(w) - np.log(logs_size := len(SIGNS) * len(WITNESSES) * len(RATES))
        assert logs_size == logs.size
        n = int(self.counts[w])
        goal = -math.log(level)

        def refuted(tau: float) -> bool:
            return bool(log_sum_exp((logs - _K * n * tau).ravel()) >= goal)

        low, high = 0.0, 1.0
        if not refuted(low):
            return BiasBound(str(WATCHES[w]), n, 0.0, "")
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if refuted(middle) else (low, middle)
        sign, s, _ = (int(i) for i in np.unravel_index(int(np.argmax(logs - _K * n * low)), logs.shape))
        return BiasBound(str(WATCHES[w]), n, low, f"{SIGNS[sign]} of {WITNESSES[s]}")

    def detectable(self, goal: float) -> dict[str, float]:
        """For each witness: the average shift of its probability, over all positions, that these tokens would show.

        "Show" means that the component passes the log e-value `goal` with probability POWER. Normal approximation:
        sum D has mean n shift and the variance measured so far.
        """
        n = int(self.counts[0])
        if n == 0:
            return {}
        log_weight = float(self.log_weights[0, 0, 0, 0])
        shifts = {}
        for s, name in enumerate(WITNESSES):
            squares = float(self.squares[0, 0, s])
            if squares > 0:
                needed = (goal - log_weight + _PSI * squares) / _K + _Z * math.sqrt(squares)
                shifts[name] = float(needed.min()) / n
        return shifts


_K = np.array(RATES)
_PSI = -np.log1p(-_K) - _K
