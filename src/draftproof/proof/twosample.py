"""The two-sample test: do two engines answer alike, when no reference can say what p is?

What it is for: a server with speculation on against the same server with it off, sampled over the same prompts.
`TwoSampleTest.update` takes one answer of each to one prompt; `result` may be asked at any time.

Guarantees: if the two answers are exchangeable (same law, independent), swapping them changes nothing, so any guess
"which of the two is from the first engine" that was fixed before is right with probability 1/2, whatever the law.
Bets on such guesses are test martingales, and so is their average with weights fixed beforehand: an e-process, valid
at any stopping time. Three kinds of guess:

- at the first token where the answers differ: from what each engine said at that very place before;
- at the same token: from how often each engine has said it at first differences anywhere;
- per feature of an answer (its length, how much it repeats itself, or numbers the caller gives, such as the mean
  log-probability the server reports): the larger one is the first engine's, or the smaller one.

What it does not do: say which engine is right, or see what no feature and no first difference shows.
Source: betting on exchangeable pairs, e.g. Shekhar and Ramdas, arXiv:2112.09162; Podkopaev and Ramdas, 2305.16515.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from draftproof.errors import InvalidValue
from draftproof.proof.wealth import log_sum_exp

STAKES = (0.05, 0.1, 0.2, 0.4, 0.8)  # parts of the wealth
END = "<end of answer>"
PLACE, TOKEN = "what was said at the same place before", "how often the token was said"
WEIGHTS = {PLACE: 0.4, TOKEN: 0.2, "features": 0.4}


@dataclass(slots=True)
class Coin:
    """A guess without odds, repeated: how often the first engine's number was larger and smaller; ties are left out."""

    right: int = 0
    wrong: int = 0

    def log_e(self) -> float:
        """The average wealth over stakes on "larger" and on "smaller", all weighed alike."""
        up = [self.right * math.log1p(s) + self.wrong * math.log1p(-s) for s in STAKES]
        down = [self.right * math.log1p(-s) + self.wrong * math.log1p(s) for s in STAKES]
        return float(log_sum_exp(np.array(up + down))) - math.log(2 * len(STAKES))


@dataclass(slots=True)
class Odds:
    """Guesses with odds: the log-odds that the answers come in this order, known up to their sign."""

    right: int = 0
    wrong: int = 0
    logs: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(len(STAKES)))

    def guess(self, lean: float) -> None:
        """lean: log-odds for the order that came; it would be -lean had the two been swapped."""
        self.right += lean > 0
        self.wrong += lean < 0
        self.logs += np.log1p(np.array(STAKES) * math.tanh(lean / 2))

    def log_e(self) -> float:
        """The average wealth over the stakes."""
        return float(log_sum_exp(self.logs)) - math.log(len(STAKES))


@dataclass(frozen=True, slots=True)
class Guess:
    """One kind of guess: how often it was right, of how many that were not ties, and its own e-value."""

    name: str
    right: int
    of: int
    log10_e: float


@dataclass(frozen=True, slots=True)
class TwoSampleResult:
    """What the pairs have shown.

    pairs: how many. level, log10_e, log10_e_max, rejected_at as in `SequentialResult`, counted in pairs. guesses: best
    first. detectable: how far above 1/2 a guess would have to be right to be found in as many pairs (with n pairs that
    are not ties, about sqrt(2 (log 1/level + log 1/weight) / n)), for the kind that had most pairs.
    """

    pairs: int
    level: float
    log10_e: float
    log10_e_max: float
    rejected_at: int | None
    guesses: Seq[Guess]
    detectable: float
    path: Seq[tuple[int, float]] = field(repr=False)

    @property
    def rejected(self) -> bool:
        """The two engines differ, at this level. False says nothing by itself: see `detectable`."""
        return self.rejected_at is not None

    def to_json(self) -> dict[str, Any]:
        """Plain lists, numbers and strings."""
        return {**dataclasses.asdict(self), "rejected": self.rejected}

    def __str__(self) -> str:
        lines = [f"{self.pairs} pairs at level {self.level:g}: log10 e = {self.log10_e:.2f}"]
        if self.rejected:
            lines.append(f"the engines differ: e reached 1/level after {self.rejected_at} pairs")
        lines += [f"{g.name}: right {g.right} of {g.of}, log10 e = {g.log10_e:.2f}" for g in self.guesses[:2]]
        lines.append(f"would have been found: a guess right more than {0.5 + self.detectable:.3f} of the time")
        return "\n".join(lines)


class TwoSampleTest:
    """An e-process against "both engines answer with the same law".

    level: error rate. features: names of the numbers the caller gives with each answer, besides the built-in ones.
    """

    def __init__(self, *, level: float = 1e-3, features: Seq[str] = ()) -> None:
        if not 0 < level < 1:
            raise InvalidValue(f"level={level}", "an error rate between 0 and 1")
        self.level = level
        self._names = (*BUILT_IN, *features)
        self._odds = {PLACE: Odds(), TOKEN: Odds()}
        self._coins = {name: Coin() for name in self._names}
        # What each engine said: [engine][place][token], and [engine][token] at first differences.
        self._said: tuple[_Places, _Places] = (defaultdict(Counter), defaultdict(Counter))
        self._overall: tuple[Counter[Hashable], Counter[Hashable]] = (Counter(), Counter())
        self._pairs = 0
        self._max = 0.0
        self._rejected_at: int | None = None
        self._path: list[tuple[int, float]] = [(0, 0.0)]

    @property
    def rejected(self) -> bool:
        """The e-value has reached 1/level at some time."""
        return self._rejected_at is not None

    def update(
        self,
        first: Seq[Hashable],
        second: Seq[Hashable],
        *,
        prompt: Hashable = None,
        features: tuple[Mapping[str, float], Mapping[str, float]] = ({}, {}),
    ) -> None:
        """One answer of each engine to one prompt, as tokens (ids, or pieces of text where ids are not known).

        features: numbers of the first and of the second answer; one that an answer lacks counts as a tie.
        """
        self._guess_difference(prompt, first, second)
        numbers = [{**built_in(answer), **given} for answer, given in zip((first, second), features, strict=True)]
        for name in self._names:
            a, b = (n.get(name, math.nan) for n in numbers)
            self._coins[name].right += a > b
            self._coins[name].wrong += a < b
        self._pairs += 1
        now = self.log_e
        self._max = max(self._max, now)
        if now >= -math.log(self.level) and self._rejected_at is None:
            self._rejected_at = self._pairs
        self._path.append((self._pairs, now / math.log(10)))

    @property
    def log_e(self) -> float:
        """Natural logarithm of the e-value now."""
        return float(log_sum_exp(np.array([k.log_e() + math.log(self._weight(name)) for name, k in self._kinds()])))

    def result(self) -> TwoSampleResult:
        """What has been seen so far; asking changes nothing."""
        guesses = [Guess(name, c.right, c.right + c.wrong, c.log_e() / math.log(10)) for name, c in self._coins.items()]
        guesses.sort(key=lambda g: -g.log10_e)
        most = max(guesses, key=lambda g: g.of)
        needed = -math.log(self.level) - math.log(self._weight(most.name) / (2 * len(STAKES)))
        return TwoSampleResult(
            pairs=self._pairs,
            level=self.level,
            log10_e=self.log_e / math.log(10),
            log10_e_max=self._max / math.log(10),
            rejected_at=self._rejected_at,
            guesses=tuple(guesses),
            detectable=min(0.5, math.sqrt(2 * needed / most.of) / 2) if most.of else 0.5,
            path=tuple(self._path),
        )

    def _kinds(self) -> list[tuple[str, Odds | Coin]]:
        return [*self._odds.items(), *self._coins.items()]

    def _weight(self, name: str) -> float:
        return WEIGHTS.get(name, WEIGHTS["features"] / len(self._names))

    def _guess_difference(self, prompt: Hashable, first: Seq[Hashable], second: Seq[Hashable]) -> None:
        """Guess at the first difference, then remember what both said up to and including it."""
        place: tuple[Hashable, ...] = ()
        for a, b in _walk(first, second):
            if a != b:
                here = (prompt, place)
                self._odds[PLACE].guess(self._lean(here, a) - self._lean(here, b))
                self._odds[TOKEN].guess(_odds(self._overall, a) - _odds(self._overall, b))
                self._overall[0][a] += 1
                self._overall[1][b] += 1
            self._said[0][prompt, place][a] += 1
            self._said[1][prompt, place][b] += 1
            if a != b:
                return
            place = (*place, a)

    def _lean(self, place: _Place, token: Hashable) -> float:
        said = (self._said[0].get(place, _NOTHING), self._said[1].get(place, _NOTHING))
        return _odds(said, token)


_Place = tuple[Hashable, tuple[Hashable, ...]]
_Places = dict[_Place, Counter[Hashable]]
_NOTHING: Counter[Hashable] = Counter()
BUILT_IN = ("length", "share of distinct tokens", "repeats of the token before")


def built_in(answer: Seq[Hashable]) -> dict[str, float]:
    """The features computed for every answer."""
    n = len(answer)
    repeats = sum(a == b for a, b in pairwise(answer))
    distinct = len(set(answer)) / n if n else math.nan
    return dict(zip(BUILT_IN, (float(n), distinct, float(repeats)), strict=True))


def _odds(said: tuple[Counter[Hashable], Counter[Hashable]], token: Hashable) -> float:
    return math.log((said[0][token] + 0.5) / (said[1][token] + 0.5))


def _walk(first: Seq[Hashable], second: Seq[Hashable]) -> list[tuple[Hashable, Hashable]]:
    """Both answers side by side, each with END after it, as far as the shorter goes."""
    return list(zip((*first, END), (*second, END), strict=False))
