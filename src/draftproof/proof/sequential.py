"""The sequential test: do emitted tokens follow the target's distribution?

What it is for: any engine whose target distribution p is known at each emitted token, as it is after one plain pass
of the target over the text. `SequentialTest.update` takes the tokens one by one; `result` may be asked at any time.

    test = SequentialTest(level=1e-3)
    for token, p in ...:            # p: what the target says, shape (V,), after the sampling controls
        test.update(token, p)
    print(test.result())

Guarantees: under losslessness the e-value is the value of a nonnegative supermartingale started at 1, whatever the
model, the text and the moment of stopping, so P(it ever reaches 1/level) <= level (Ville's inequality; Shafer and
Vovk, "Game-Theoretic Foundations for Probability and Finance"; Ramdas et al., arXiv:2210.01948). It is an average of
components with weights fixed beforehand: 0.6 the named bets (`bets`, `wealth`), 0.3 the drift of the sets (`drift`),
0.1 the learned histogram of the probability transform (`pit`).

What it does not do: say that an engine is lossless. A result that finds nothing says how large a bias would have been
found (`SequentialResult.detectable`).

Side information must be non-anticipating. The origin of a token is not: whether it was accepted or replaced depends
on the token. Only what the position was is used (drafted, bonus, plain), which is known before.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from draftproof.dist import Dist
from draftproof.errors import InvalidValue
from draftproof.proof.bets import NAMES, SETS, Bets, Limits, Payoff, bounds_of
from draftproof.proof.drift import POWER, BiasBound, Drift
from draftproof.proof.pit import ORDERS, LearnedPit, Pit, PitHistogram, intervals, shares_of
from draftproof.proof.wealth import WATCH_WEIGHTS, WATCHES, BetWealth, Growth, Watch, log_sum_exp
from draftproof.verify.base import Origin

Floats = npt.NDArray[np.float64]

WEIGHTS = {"bets": 0.6, "drift": 0.3, "pit": 0.1}
_LOG_WEIGHTS = {name: math.log(weight) for name, weight in WEIGHTS.items()}
SHOWN = ("the argmax", "the nucleus 0.9", "tokens with q > p")  # whose detectable shifts the summary names
TRAJECTORY = 512  # most points kept of the path of the e-value
TOGETHER = 32  # tokens settled at once: what is done for each alone is mostly overhead
_NO_SPANS = np.zeros((len(ORDERS), 2))


@dataclass(frozen=True, slots=True)
class SequentialResult:
    """What the test has seen.

    n: tokens. level: the error rate the decision is made at. log10_e: the e-value now; log10_e_max: its maximum so
    far. rejected_at: the number of tokens after which it first reached 1/level, None if it never did. grew: the
    components that count most. bounds: lower bounds of the per-token total-variation bias, jointly of confidence
    1 - level. detectable: per set of tokens, the shift of its probability that these n tokens would have shown at this
    level with probability 0.9. impossible: tokens of probability 0; one refutes losslessness. noise: the row noise
    allowed for. path: (tokens, log10_e) points. pit: histograms of the probability transform.
    """

    n: int
    level: float
    log10_e: float
    log10_e_max: float
    rejected_at: int | None
    grew: Seq[Growth]
    bounds: Seq[BiasBound]
    detectable: Mapping[str, float]
    impossible: int
    noise: float
    path: Seq[tuple[int, float]] = field(repr=False)
    pit: Seq[PitHistogram] = field(repr=False)

    @property
    def e_value(self) -> float:
        """10 ** log10_e; infinity where that is beyond a float."""
        return math.inf if self.log10_e > 308 else 10.0**self.log10_e

    @property
    def rejected(self) -> bool:
        """Losslessness is refuted at `level`. False says nothing by itself: see `detectable`."""
        return self.rejected_at is not None

    @property
    def bias_at_least(self) -> float:
        """Lower bound of the average total-variation bias per token, over all positions; 0 if none is shown."""
        return next((b.at_least for b in self.bounds if b.watch == Watch.ALL), 0.0)

    @property
    def bias(self) -> str:
        """The largest lower bound of the bias in words."""
        best = max(self.bounds, key=lambda b: b.at_least, default=None)
        if best is None or best.at_least == 0:
            return "bias: no lower bound above 0 at this level yet"
        return f"bias: at least {best.at_least:.4f} per token in total variation, over {best.watch}"

    def to_json(self) -> dict[str, Any]:
        """Plain lists, numbers and strings; infinities are written as the string "inf"."""
        plain = dataclasses.asdict(self)
        for name in ("log10_e", "log10_e_max"):
            plain[name] = _finite(plain[name])
        plain["grew"] = [{**g, "log10_e": _finite(g["log10_e"])} for g in plain["grew"]]
        plain["path"] = [[n, _finite(e)] for n, e in self.path]
        plain["pit"] = [p.to_json() for p in self.pit]
        plain["detectable"] = dict(self.detectable)
        plain["rejected"] = self.rejected
        plain["bias_at_least"] = self.bias_at_least
        return plain

    def __str__(self) -> str:
        lines = [
            f"{self.n} tokens at level {self.level:g}: log10 e = {self.log10_e:.2f} (maximum {self.log10_e_max:.2f})"
        ]
        if self.rejected:
            lines.append(f"not the target's distribution: e reached 1/level after {self.rejected_at} tokens")
            lines.append(self.bias)
        if self.impossible:
            lines.append(f"{self.impossible} tokens have probability 0 under the target")
        if self.grew:
            g = self.grew[0]
            lines.append(f"grew most: {g.bet}, at {g.watch}, strength {g.strength:g}: log10 e = {g.log10_e:.2f}")
        shifts = [f"{self.detectable[name]:.4f} of {name}" for name in SHOWN if name in self.detectable]
        if shifts:
            lines.append(f"would have been found (probability {POWER:g}): a shift of {', or '.join(shifts)}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _Paid:
    """Of one position. ratios: (bets,). hits: (sets,). spans: (orders, 2), or shares: (orders, bins).

    impossible: p rules the token out. watches: see `watches_of`. limits: None where no noise is allowed for.
    """

    ratios: Floats
    hits: Floats
    impossible: bool
    spans: Floats
    shares: Floats | None
    watches: tuple[int, ...]
    noise: float
    limits: Limits | None


class SequentialTest:
    """An e-process against "every token is drawn from its p".

    level: error rate of the decision and of the bounds. noise: how far the engine's own p may be from the given one,
    as a bound on |log p' - log p| (twice the largest error of a logit does); bets are made smaller by what they could
    gain from that, so that rounding is not mistaken for bias. It may be given per token too. eos_ids: end-of-text ids,
    for the bets about them. seed: of the histogram's random numbers; the e-value uses none.
    """

    def __init__(
        self, *, level: float = 1e-3, noise: float = 0.0, eos_ids: frozenset[int] = frozenset(), seed: int = 0
    ) -> None:
        if not 0 < level < 1:
            raise InvalidValue(f"level={level}", "an error rate between 0 and 1")
        self.level = level
        self.noise = _checked_noise(noise)
        self.eos_ids = eos_ids
        self._bets, self._drift, self._learned, self._pit = BetWealth(), Drift(), LearnedPit(), Pit(seed=seed)
        self._n = self._impossible = 0
        self._rejected_at: int | None = None
        self._max = 0.0
        self._path: list[tuple[int, float]] = [(0, 0.0)]
        self._stride = 1
        self._goal = -math.log(level)
        self._by_watch = np.log(np.array(WATCH_WEIGHTS))  # every component starts with its weight
        self._waiting: list[_Paid] = []

    @property
    def n(self) -> int:
        """Tokens seen."""
        return self._n + len(self._waiting)

    @property
    def rejected(self) -> bool:
        """The e-value has reached 1/level at some time."""
        self._take_in()
        return self._rejected_at is not None

    def update(
        self,
        token: int,
        p: Dist | npt.ArrayLike,
        *,
        q: Dist | npt.ArrayLike | None = None,
        origin: Origin | None = None,
        previous: Origin | None = None,
        history: Seq[int] = (),
        noise: float | None = None,
    ) -> None:
        """Take in one emitted token.

        p: its target distribution, shape (V,), float64 (or a `Dist`). q: the distribution a token was drafted from at
        this position, if known. origin: of this token, used only for what its position was; previous: of the token
        before it in the same answer, None for the first. history: the tokens before it, prompt included, newest last.
        Raises BadTable for a p that is no distribution, InvalidValue for a token outside it.
        """
        bets = Bets.place(p, q=q, history=history, eos_ids=self.eos_ids)
        self.settle(bets, int(token), origin=origin, previous=previous, noise=noise)

    def settle(
        self,
        bets: Bets,
        token: int | Seq[int],
        *,
        origin: Origin | None = None,
        previous: Origin | None = None,
        noise: float | None = None,
    ) -> None:
        """`update` with bets that were already placed; the same bets can serve many simulated tokens.

        token: several ids mean "one of these", where an engine's answer does not tell which (two ids with one text).
        Every bet then pays its average over them, weighed by p, which keeps it fair.
        """
        row_noise = self.noise if noise is None else _checked_noise(noise)
        tokens = [int(token)] if isinstance(token, int | np.integer) else [int(t) for t in token]
        if len(tokens) == 1:
            payoff, spans, shares = bets.pay(tokens[0]), intervals(bets, tokens[0]), None
            if not payoff.impossible:
                self._pit.update(spans)
        else:  # the picture leaves out what is not known
            payoff, shares = _averaged(bets, tokens)
            spans = _NO_SPANS
        watches = watches_of(origin, previous)
        limits = bets.limits if row_noise > 0 else None
        self._waiting.append(
            _Paid(payoff.ratios, payoff.hits, payoff.impossible, spans, shares, watches, row_noise, limits)
        )
        if len(self._waiting) == TOGETHER:
            self._take_in()

    @property
    def log_e(self) -> float:
        """Natural logarithm of the e-value now."""
        self._take_in()
        return math.inf if self._impossible else float(log_sum_exp(self._by_watch))

    def result(self, components: int = 5) -> SequentialResult:
        """What has been seen so far; asking changes nothing."""
        self._take_in()
        grown = [
            *((math.log10(WEIGHTS["bets"]), g) for g in self._bets.growths(components)),
            *((math.log10(WEIGHTS["drift"]), g) for g in self._drift.growths(components)),
            *((math.log10(WEIGHTS["pit"]), g) for g in self._learned.growths(components)),
        ]
        grown.sort(key=lambda item: -item[0] - item[1].log10_e)
        now = self.log_e
        return SequentialResult(
            n=self._n,
            level=self.level,
            log10_e=now / math.log(10),
            log10_e_max=max(self._max, now) / math.log(10),
            rejected_at=self._rejected_at,
            grew=tuple(g for _, g in grown[:components]),
            bounds=tuple(self._drift.bounds(self.level)),
            detectable=self._drift.detectable(self._goal - math.log(WEIGHTS["drift"])),
            impossible=self._impossible,
            noise=self.noise,
            path=(*self._path, *([(self._n, now / math.log(10))] if self._path[-1][0] != self._n else [])),
            pit=tuple(self._pit.histograms()),
        )

    def _take_in(self) -> None:
        """Settle the tokens that wait: all at once, as one after another would be, the e-value after each looked at."""
        waiting, self._waiting = self._waiting, []
        for impossible, group in itertools.groupby(waiting, key=lambda paid: paid.impossible):
            self._take_in_group(list(group), impossible=impossible)

    def _take_in_group(self, group: list[_Paid], *, impossible: bool) -> None:
        watched = [np.flatnonzero([w in paid.watches for paid in group]) for w in range(len(WATCHES))]
        noise = np.array([paid.noise for paid in group])
        deviation, slack = np.zeros((len(group), len(NAMES))), np.zeros((len(group), len(SETS)))
        limits = [paid.limits for paid in group if paid.limits is not None]
        if limits:
            noisy = [paid.limits is not None for paid in group]
            deviation[noisy], slack[noisy] = bounds_of(limits)
        hits = np.array([paid.hits for paid in group])
        terms = [self._drift.settle(hits, np.full(len(group), impossible), watched, noise, slack)]
        if not impossible:
            terms.append(self._bets.settle(np.array([paid.ratios for paid in group]), watched, noise, deviation))
            terms.append(self._learned.settle(_shares(group), watched, noise))
        # Only what a token is staked at changes: the sums of the other watches are kept.
        by_watch = np.empty((len(group), len(WATCHES)))
        by_watch[:] = self._by_watch
        for w, seen in enumerate(watched):
            if len(seen) and not impossible:
                drift, bets, learned = (part[w] for part in terms)
                sums = log_sum_exp(
                    np.concatenate(
                        [drift + _LOG_WEIGHTS["drift"], bets + _LOG_WEIGHTS["bets"], learned + _LOG_WEIGHTS["pit"]],
                        axis=1,
                    )
                )
                at = np.searchsorted(seen, np.arange(len(group)), side="right")
                by_watch[at > 0, w] = sums[at[at > 0] - 1]
        self._by_watch = by_watch[-1].copy()
        if impossible:
            self._impossible += len(group)
        logs = np.full(len(group), math.inf) if self._impossible else log_sum_exp(by_watch)
        for now in logs.tolist():
            self._note(now)

    def _note(self, now: float) -> None:
        """Look at the e-value: has it reached 1/level, is it a new maximum, is a point of its path due?"""
        self._n += 1
        self._max = max(self._max, now)
        if now >= self._goal and self._rejected_at is None:
            self._rejected_at = self._n
        if self._n % self._stride == 0:
            self._path.append((self._n, now / math.log(10)))
            if len(self._path) > TRAJECTORY:
                self._path = self._path[::2]
                self._stride *= 2


def _averaged(bets: Bets, tokens: list[int]) -> tuple[Payoff, Floats]:
    """What is paid on one of several tokens, weighed by p, and its shares of the bins."""
    weights = bets.among(tokens)
    payoffs = [bets.pay(t) for t in tokens]
    ratios = np.einsum("i,ij->j", weights, np.array([p.ratios for p in payoffs]))
    hits = np.einsum("i,ij->j", weights, np.array([p.hits for p in payoffs]))
    shares = np.einsum("i,ijk->jk", weights, shares_of(np.array([intervals(bets, t) for t in tokens])))
    return Payoff(ratios, hits, impossible=not weights.any()), shares


def _shares(group: list[_Paid]) -> Floats:
    """Of each token in each bin, (tokens, orders, BINS)."""
    shares = shares_of(np.array([paid.spans for paid in group]))
    for i, paid in enumerate(group):
        if paid.shares is not None:
            shares[i] = paid.shares
    return shares


def watches_of(origin: Origin | None, previous: Origin | None) -> tuple[int, ...]:
    """Indices into WATCHES of a position, from what was known before its token: never whether it was accepted."""
    seen = [_ALL]
    if origin is Origin.ACCEPTED or origin is Origin.RESIDUAL:
        seen.append(_DRAFTED)
    elif origin is Origin.BONUS:
        seen.append(_BONUS)
    if previous is Origin.RESIDUAL:
        seen.append(_AFTER_REJECTION)
    return tuple(seen)


_ALL, _DRAFTED, _BONUS, _AFTER_REJECTION = (
    WATCHES.index(w) for w in (Watch.ALL, Watch.DRAFTED, Watch.BONUS, Watch.AFTER_REJECTION)
)


def _checked_noise(noise: float) -> float:
    if not 0 <= noise <= 0.5:
        raise InvalidValue(f"noise={noise}", "0 <= noise <= 0.5; a reference further off than that decides nothing")
    return noise


def _finite(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
