"""Bets against losslessness: what is staked on the next token before it is known, and what each bet pays.

What it is for: the sequential test (`sequential`). A bet is a function r over the vocabulary with r >= 0 and
sum_x p(x) r(x) = 1, chosen from what is known before the token: p, the drafter's q, and the text so far. If the token
is really drawn from p, no bet has an expected gain. The bets aim at the ways engines fail:

- tempered: r = max(p, t)^(a-1) / sum p max(p, t)^(a-1), for t = 0 the likelihood ratio of a sharper (a > 1) or flatter
  (a < 1) engine; t = 2^-15 counts all tokens less probable than that as one, which spares powers of the whole row;
- sets: toward a set S of tokens, r = 1[x in S] / p(S), and away from it, r = 1[x not in S] / p(not S). The sets: the
  most probable 1, 2, 5, ... 50 tokens, nuclei, min-p sets, the tokens with q > p, the draft's choice, the last token,
  the recent tokens, end-of-text, id 0;
- drafted: the likelihood ratios of wrong accept/correct rules, possible where q is known: everything accepted,
  nothing but the residual, the replacement drawn from p, an argmax proposal with a soft q, accept iff p >= q, a match
  rule that draws again.

Guarantees: `Bets.place` never sees the token, so a bet cannot depend on it; the sums above hold to rounding
(tests/audit/test_bets.py sums them). A bet whose normaliser would be dominated by rounding is not placed (r = 1).
What it does not do: decide how much to stake; that is `wealth`.

Cost: a few passes over the row, shared by all bets; 0.13 ms at 49 152 tokens, settled with many others.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from draftproof.dist import Dist
from draftproof.errors import InvalidValue
from draftproof.proof.spectrum import (
    BLOCK,
    LEVEL_SETS,
    TAIL,
    TEMPERS,
    float_dist,
    head_of,
    level_sets,
    power_sums,
    tempered_deviation,
)

Floats = npt.NDArray[np.float64]

RECENT = 64  # tokens of history that count as recent
LEAST = 1e-6  # a normaliser below this is not bet on: it would be a difference of sums, and mostly their rounding

POINT_SETS = ("tokens with q > p", "the draft's choice", "the last token", "recent tokens", "end of text", "id 0")
SETS = (*LEVEL_SETS, *POINT_SETS)
TEMPERED = tuple(f"{'flatter' if a < 1 else 'sharper'}: p^{a:g}" for a in TEMPERS)
TOWARD = tuple(f"toward {s}" for s in SETS)
AWAY = tuple(f"away from {s}" for s in SETS)
DRAFTED = (
    "every draft accepted",
    "only the residual",
    "replacement drawn from p",
    "argmax draft scored with a soft q",
    "accepted iff p >= q",
    "kept on a match, else drawn again",
)
NAMES = (*TEMPERED, *TOWARD, *AWAY, *DRAFTED)
"""All bets, in the order of the payoffs."""


@dataclass(frozen=True, slots=True)
class Payoff:
    """What the bets pay once the token is known.

    ratios: r(token) of every bet, shape (len(NAMES),). hits: 1[token in S] - p(S) of every set, shape (len(SETS),);
    0 where the set was not bet on. impossible: p gives the token probability 0, which no bet is needed to refute.
    """

    ratios: Floats
    hits: Floats
    impossible: bool


class Limits(NamedTuple):
    """Of one token's bets, for `bounds_of`: sums and squares of powers, gains (2, sets), drafted deviations, masses."""

    sums: Floats
    squares: Floats
    gains: Floats
    drafted: Floats
    mass: Floats


def bounds_of(limits: Seq[Limits]) -> tuple[Floats, Floats]:
    """`Bets.deviation` and `Bets.slack` of several tokens, (tokens, bets) and (tokens, sets)."""
    sums, squares, gains, drafted, mass = (np.array(part) for part in zip(*limits, strict=True))
    # What a set's bet pays at most, less 1, is p(not S) / p(S), or the reverse; where it is not placed, -1.
    sets = np.minimum(1, np.maximum(0, np.abs(gains) - 1)).reshape(len(limits), -1)
    slack = np.nan_to_num(np.minimum(mass, 1 - mass))
    return np.concatenate([tempered_deviation(sums, squares), sets, drafted], axis=1), slack


class Bets:
    """The bets on one token. Make with `place`, settle with `pay`; `pay` may be asked about any token, repeatedly.

    deviation: for each bet an upper bound of (sum_x p'(x) r(x) - 1) / (e^noise - 1) over all p' with
    p e^-noise <= p' <= p e^noise; shape (len(NAMES),). slack: the same for p'(S) - p(S); shape (len(SETS),).
    mass: p(S) of each set, NaN where it is not bet on.
    """

    __slots__ = (
        "_choice",
        "_drafted_deviation",
        "_eos",
        "_head",
        "_known",
        "_last",
        "_levels",
        "_p",
        "_place",
        "_powers",
        "_q",
        "_recent",
        "_set_base",
        "_set_gain",
        "_total",
        "mass",
    )

    def __init__(self, p: Dist, total: float, q: Dist | None, history: Seq[int], eos_ids: frozenset[int]) -> None:
        self._p = p
        self._total = total
        self._last = int(history[-1]) if len(history) else -1
        self._recent = frozenset(map(int, history[-RECENT:]))
        self._eos = eos_ids
        self._q = q
        self._choice = -1
        mass = np.full(len(SETS), np.nan)
        self._head = head = head_of(p.probs)
        self._levels = level_sets(head, mass)
        self._powers = power_sums(head)
        self._drafted_deviation = self._place_drafted(mass)
        at = len(LEVEL_SETS) + 2
        mass[at : at + 4] = (
            self._mass_of_one(self._last),
            self._mass_of(self._recent),
            self._mass_of(eos_ids),
            self._mass_of_one(0),
        )
        self.mass = np.minimum(mass, 1)  # sums of p can pass 1 by their rounding
        self._set_payoffs()

    @property
    def limits(self) -> Limits:
        """What `bounds_of` needs; without row noise nobody asks."""
        return Limits(*self._powers, self._set_gain, self._drafted_deviation, self.mass)

    @property
    def deviation(self) -> Floats:
        """See the class."""
        bound: Floats = bounds_of([self.limits])[0][0]
        return bound

    @property
    def slack(self) -> Floats:
        """See the class."""
        bound: Floats = bounds_of([self.limits])[1][0]
        return bound

    @classmethod
    def place(
        cls,
        p: Dist | npt.ArrayLike,
        *,
        q: Dist | npt.ArrayLike | None = None,
        history: Seq[int] = (),
        eos_ids: frozenset[int] = frozenset(),
    ) -> Bets:
        """The bets on a token whose target distribution is p.

        p: shape (V,), or a `Dist` (after a cut, on its support). q: what the token at this position was drafted from,
        None where nothing was drafted or q is unknown. history: all tokens before it, newest last.
        Raises BadTable for a p or q that is no distribution, InvalidValue for unequal sizes.
        """
        target, total = float_dist(p, "p")
        draft = None if q is None else float_dist(q, "q")[0]
        if draft is not None and draft.size != target.size:
            raise InvalidValue(f"q over {draft.size} tokens, p over {target.size}", "both cover one vocabulary")
        return cls(target, total, draft, history, eos_ids)

    def pay(self, token: int) -> Payoff:
        """What every bet pays if `token` comes. Raises InvalidValue for an id outside the vocabulary."""
        if not 0 <= token < self._p.size:
            raise InvalidValue(f"token {token}", f"ids are 0..{self._p.size - 1}")
        p_x = float(self._p.prob(token))
        if p_x == 0:
            return Payoff(np.ones(len(NAMES)), np.zeros(len(SETS)), impossible=True)
        q_x = 0.0 if self._q is None else float(self._q.prob(token))
        inside = np.empty(len(SETS), dtype=bool)
        count = len(LEVEL_SETS)
        inside[:count] = p_x >= self._levels
        inside[count:] = (
            q_x > p_x,
            token == self._choice,
            token == self._last,
            token in self._recent,
            token in self._eos,
            token == 0,
        )
        ratios = np.empty(len(NAMES))
        ratios[:_AT_SETS] = max(p_x, TAIL) ** _POWERS / self._powers[0]
        sets = ratios[_AT_SETS:_AT_DRAFTED].reshape(2, -1)
        np.multiply(self._set_gain, inside, out=sets)
        sets += self._set_base
        ratios[_AT_DRAFTED:] = self._pay_drafted(token, p_x, q_x)
        hits = np.where(self._known, inside - self.mass, 0.0)
        return Payoff(ratios, hits, impossible=False)

    def among(self, tokens: Seq[int]) -> Floats:
        """p of each of these tokens as a share of their sum; all 0 if p rules all of them out."""
        probs = np.array([float(self._p.prob(t)) for t in tokens])
        total = probs.sum()
        shares: Floats = probs / total if total > 0 else probs
        return shares

    def above(self, token: int) -> tuple[float, float]:
        """(mass of tokens more probable than `token`, that plus the mass of tokens exactly as probable)."""
        p_x = float(self._p.prob(token))
        # What is at least as probable as one of the head lies in the head.
        probs = self._head if p_x >= TAIL else self._p.probs
        above = float(probs @ (probs > p_x))
        return above, above + p_x * np.count_nonzero(probs == p_x)

    def below(self, token: int) -> tuple[float, float]:
        """(mass of tokens with smaller ids, that plus the token's own)."""
        probs, ids = self._p.probs, self._p.ids
        before = float(probs[: token if ids is None else int(np.searchsorted(ids, token))].sum())
        return before, before + float(self._p.prob(token))

    # -- sets --------------------------------------------------------------------------------------------

    def _mass_of(self, tokens: frozenset[int]) -> float:
        p = self._p
        inside = [t for t in tokens if 0 <= t < p.size]
        if p.ids is None and len(inside) > 1:
            total = sum(p.probs[inside].tolist())
        else:
            total = sum(float(p.prob(t)) for t in inside)
        return total if total > 0 else np.nan

    def _mass_of_one(self, token: int) -> float:
        p = float(self._p.prob(token)) if 0 <= token < self._p.size else 0.0
        return p if p > 0 else np.nan

    def _set_payoffs(self) -> None:
        """The two bets on a set pay base + 1[token in S] gain, each of shape (2, sets): toward S, and away from it."""
        outcomes = np.empty((2, len(self.mass)))  # p(S), and p of the others
        outcomes[0] = self.mass
        np.subtract(1, self.mass, out=outcomes[1])
        placed = outcomes > _LEAST_MASS  # False for NaN
        self._known = placed[0]
        self._set_gain = gain = placed / np.where(placed, outcomes, 1.0)
        self._set_base = base = np.ones_like(gain)
        base[0] -= placed[0]
        np.copyto(base[1], gain[1], where=placed[1])
        np.negative(gain[1], out=gain[1])

    # -- drafted positions -------------------------------------------------------------------------------

    def _place_drafted(self, mass: Floats) -> Floats:
        """Sums over p and q; fills the two draft sets of `mass`; returns the deviations of the drafted bets."""
        deviation = np.zeros(len(DRAFTED))
        q = self._q
        self._place: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
        if q is None:
            return deviation
        here = len(LEVEL_SETS)
        if q.token is not None:
            self._choice = q.token
            p_d = float(self._p.prob(q.token))
            mass[here + 1] = p_d if p_d > 0 else np.nan
            self._place = (1 - p_d, 0.0, 0.0, p_d)
            deviation[[0, 1, 2, 5]] = 1, 1, min(1.0, 2 * (1 - p_d)), min(1.0, 2 * (1 - p_d))
            return deviation
        p_on, q_on, ids, outside = _common(self._p, self._total, q)
        z, kept, match = _overlap(p_on, q_on)
        z += outside
        above = 1 - kept - z  # p of the tokens with q > p, since p - q sums to z over the others
        mass[here] = above if above > LEAST else np.nan
        best = int(q_on.argmax())
        self._choice = best if ids is None else int(ids[best])
        p_d, q_d = float(p_on[best]), float(q_on[best])
        mass[here + 1] = p_d if p_d > 0 else np.nan
        self._place = (z, kept, min(1.0, p_d / q_d) if q_d > 0 else 0.0, match)
        deviation[:] = min(1.0, 2 * z), 1, min(1.0, 2 * z), 1, 1, min(1.0, 2 * match)
        return deviation

    def _pay_drafted(self, token: int, p_x: float, q_x: float) -> Floats:
        if self._q is None:
            return _NO_DRAFT
        z, kept, accept, match = self._place
        if self._q.token is not None:
            # A point mass d: everything accepted; d never; accepted with p(d) and otherwise drawn again from all of p.
            chosen = token == self._choice
            p_d = match  # not 1 - z, which rounds a small p(d) away
            if p_d <= 0:
                return _NO_DRAFT
            away = (0.0 if chosen else 1 / z) if z > LEAST else 1.0
            again = 1 + z if chosen else z
            return np.array([1 / p_d if chosen else 0.0, away, again, 1.0, 1.0, again])
        rest = max(0.0, p_x - q_x) / (z * p_x) if z > LEAST else 1.0
        ratio = q_x / p_x
        greedy = (accept / p_x if token == self._choice else 0.0) + (1 - accept) * rest
        hard = (ratio if p_x >= q_x else 0.0) + (1 - kept) * rest
        if z <= LEAST:
            greedy = hard = 1.0
        return np.array([ratio, rest, min(1.0, ratio) + z, greedy, hard, q_x + 1 - match])


def _common(p: Dist, total: float, q: Dist) -> tuple[Floats, Floats, npt.NDArray[np.int64] | None, float]:
    """p and q over one set of ids (None: all) that holds the support of one of them, and p of the ids outside it."""
    if p.ids is not None:
        return p.probs, q.dense()[p.ids], p.ids, 0.0
    if q.ids is None:
        return p.probs, q.probs, None, 0.0
    inside = p.probs[q.ids]
    return inside, q.probs, q.ids, max(0.0, total - float(np.einsum("i->", inside)))


def _overlap(p: Floats, q: Floats) -> tuple[float, float, float]:
    """sum (p - q)+, q of the tokens with p >= q, and sum p q; a block at a time, as temporaries of a row cost more."""
    z = kept = match = 0.0
    for start in range(0, len(p), BLOCK):
        p_part, q_part = p[start : start + BLOCK], q[start : start + BLOCK]
        keeps = (p_part >= q_part).astype(np.float64)
        match += float(p_part @ q_part)
        kept += (q_keeps := float(q_part @ keeps))
        z += max(0.0, float(p_part @ keeps) - q_keeps)
    return z, kept, match


_POWERS = np.array(TEMPERS) - 1
_LEAST_MASS = np.array([[0.0], [LEAST]])
_AT_SETS = len(TEMPERED)
_AT_DRAFTED = _AT_SETS + 2 * len(SETS)
_NO_DRAFT = np.ones(len(DRAFTED))
