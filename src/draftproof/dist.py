"""One distribution over the vocabulary: dense, or on a few ids, or on a single one.

What it is for: p and q as the engine handles them. A row cut to its top 50 tokens or to its argmax keeps only
those ids, so that verifying it costs 50 numbers and not 50 000; `dense()` gives the plain array back.

Guarantees: probabilities are float64, or exact when built from Fractions; ids outside the support have
probability exactly zero. `excess` and `residual` agree with their obvious twins in `draftproof.rule`
(tests/core/test_dist.py). What it does not do: check sums on the fast path; `checked` does, at the border.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from draftproof.errors import BadTable, InvalidValue

Array = npt.NDArray[Any]
Prob = float | Fraction


BLOCK = 256
"""Weights summed at a time by the two-level draw (`chance.pick`): about the square root of a vocabulary."""

_ONE = np.ones(1, dtype=np.int64)
_ONE.flags.writeable = False


class Dist:
    """Probabilities of the ids `ids` (ascending), zero elsewhere; `ids is None` means all of them.

    weights: shape (len(ids),) or (size,), float64 or object (Fractions); a probability is a weight over `total`.
    Treated as immutable. Dividing 50 000 weights costs as much as drawing from them, and most rounds look at one or
    two: so that is done when somebody asks for `probs`. sums: of each BLOCK of a dense one's weights, where they are
    known, so that a draw need not look at all of them once more.
    """

    __slots__ = ("ids", "size", "sums", "total", "weights")

    def __init__(
        self,
        weights: Array,
        *,
        ids: npt.NDArray[np.int64] | None = None,
        size: int | None = None,
        total: Prob = 1,
        sums: list[float] | None = None,
    ) -> None:
        self.weights = weights
        self.total = total
        self.ids = ids
        self.size = len(weights) if size is None else size
        self.sums = sums

    @classmethod
    def over_sum(cls, weights: npt.NDArray[np.float64], *, ids: npt.NDArray[np.int64] | None, size: int) -> Dist:
        """Weights divided by their sum; they are this one's own from now on."""
        if ids is not None:
            return cls(weights, ids=ids, size=size, total=float(weights.sum()))
        sums = block_sums(weights)
        return cls(weights, size=size, total=math.fsum(sums), sums=sums)

    @classmethod
    def point(cls, token: int, size: int) -> Dist:
        """The point mass on one token, as deterministic drafters and temperature 0 have it."""
        if not 0 <= token < size:
            raise InvalidValue(f"token {token}", f"ids are 0..{size - 1}")
        return cls(_ONE, ids=np.array([token], dtype=np.int64), size=size)

    @classmethod
    def checked(cls, probs: Any, what: str = "distribution") -> Dist:
        """A dense distribution from any sequence or array, refused (BadTable) if it is not one.

        Fractions and ints must sum to exactly one; floats to within 1e-6, and are then divided by their sum.
        """
        values = exact_or_float(probs)
        if values.ndim != 1 or len(values) == 0:
            raise BadTable(f"{what} has shape {values.shape}", "one probability per token")
        if values.dtype != object and not np.isfinite(values).all():
            raise BadTable(f"{what} contains NaN or infinity", "probabilities are finite")
        if (values < 0).any():
            raise BadTable(f"{what} has a negative entry", "probabilities are >= 0")
        total = values.sum()
        if values.dtype == object:
            if total != 1:
                raise BadTable(f"{what} sums to {total}", "probabilities sum to exactly 1")
        else:
            if abs(total - 1) > 1e-6:  # the border's tolerance for typed-in decimals, not a change of the rule
                raise BadTable(f"{what} sums to {total:.9g}", "probabilities sum to 1")
            values = values / total
        return cls(values)

    @property
    def probs(self) -> Array:
        """Probabilities, in the shape of `weights`."""
        if self.total != 1:
            np.divide(self.weights, float(self.total), out=self.weights)  # weights with a total are this one's own
            self.total = 1
            self.sums = None
        return self.weights

    @property
    def exact(self) -> bool:
        """Whether the probabilities are Fractions or integers rather than floats."""
        return self.weights.dtype != np.float64

    @property
    def token(self) -> int | None:
        """The only possible token, if there is only one entry; None otherwise."""
        return int(self.ids[0]) if self.ids is not None and len(self.ids) == 1 else None

    def prob(self, token: int) -> Prob:
        """Probability of one token."""
        where = token
        if self.ids is not None:
            where = 0 if len(self.ids) == 1 else int(self.ids.searchsorted(token))
            if where == len(self.ids) or self.ids[where] != token:
                return 0
        weight = _scalar(self.weights[where])
        return weight if self.total == 1 else weight / self.total

    def token_at(self, index: int) -> int:
        """The id behind an index into `probs`."""
        return index if self.ids is None else int(self.ids[index])

    def dense(self) -> Array:
        """All probabilities, shape (size,), in this distribution's own dtype."""
        if self.ids is None:
            return self.probs
        full = np.zeros(self.size, dtype=self.probs.dtype)
        full[self.ids] = self.probs
        return full

    def top(self, n: int) -> list[tuple[int, Prob]]:
        """The n most probable tokens with their probabilities, ties by smaller id."""
        order = np.lexsort((np.arange(len(self.probs)), -self.probs))[:n]
        return [(self.token_at(int(i)), _scalar(self.probs[i])) for i in order]

    def __repr__(self) -> str:
        return f"Dist({dict(self.top(5))}, size={self.size})"


def excess(p: Dist, q: Dist, weight: Prob = 1) -> tuple[Dist, Prob]:
    """(weight * p - q)+ left unnormalised, in an array of its own, and its sum.

    With weight 1 the sum is Z and the first part is the residual before division (derivation, section 4);
    other weights serve block verification. Exact zeros stay exact zeros.
    """
    values, mass = _excess(p, q, weight)
    return Dist(values, ids=p.ids, size=p.size, total=p.total), mass / p.total if p.total != 1 else mass


def residual(p: Dist, q: Dist, weight: Prob = 1) -> Dist | None:
    """norm((weight * p - q)+), or None where its mass Z is zero and nothing can be divided."""
    if p.token is not None:  # one possible token stays the only one
        return p if weight * p.prob(p.token) > q.prob(p.token) else None
    if p.sums is not None and weight == 1:
        if q.token is not None:
            return _without(p, q.token, p.sums)
        if q.ids is not None:
            return _less(p, q, q.ids)
    values, mass = _excess(p, q, weight)
    if not mass > 0:
        return None
    if values.dtype != np.float64:
        return Dist(values / Fraction(mass), ids=p.ids, size=p.size)
    return Dist(values, ids=p.ids, size=p.size, total=mass)


def _without(p: Dist, token: int, sums: list[float]) -> Dist | None:
    """The residual of a dense p against the point mass on a token: p without it. Its twin is `_excess`."""
    values = p.weights.copy()
    values[token] = 0
    block = token // BLOCK
    sums = [*sums]
    # Summed again, not subtracted: what is left may be tiny beside what has gone.
    sums[block] = math.fsum(values[block * BLOCK : (block + 1) * BLOCK].tolist())
    mass = math.fsum(sums)
    return Dist(values, size=p.size, total=mass, sums=sums) if mass > 0 else None


def _less(p: Dist, q: Dist, ids: npt.NDArray[np.int64]) -> Dist | None:
    """The residual of a dense p against a q on few ids. Its twin is `_excess`."""
    values = p.weights.copy()
    values[ids] = np.maximum(values[ids] - q.probs * p.total, 0)
    sums = block_sums(values)
    mass = math.fsum(sums)
    return Dist(values, size=p.size, total=mass, sums=sums) if mass > 0 else None


def block_sums(weights: npt.NDArray[np.float64]) -> list[float]:
    """The sum of each BLOCK of float64 weights, the last one maybe shorter."""
    sums: list[float] = np.add.reduceat(weights, _starts(len(weights))).tolist()
    return sums


@lru_cache(maxsize=8)
def _starts(size: int) -> npt.NDArray[np.int64]:
    starts = np.arange(0, size, BLOCK)
    starts.flags.writeable = False
    return starts


def _excess(p: Dist, q: Dist, weight: Prob) -> tuple[Array, Prob]:
    """(weight * p - q)+ in units of p's weights, in an array of its own, and its sum."""
    assert p.size == q.size
    values = p.weights * weight if weight != 1 else p.weights
    subtracted = q.probs if p.total == 1 else q.probs * p.total
    if q.ids is None:
        values = values - (subtracted if p.ids is None else subtracted[p.ids])
        np.maximum(values, 0, out=values)
    else:
        where = _positions(p, q.ids)
        known = where >= 0
        values = np.array(values, dtype=np.result_type(values, subtracted))
        at = where[known]
        values[at] = np.maximum(values[at] - subtracted[known], 0)  # elsewhere q is 0, and weight * p is not negative
    return values, _scalar(values.sum())


def exact_or_float(probs: Any) -> Array:
    """A 1-D array: object dtype if any entry is a Fraction (or all are ints), float64 otherwise."""
    if isinstance(probs, np.ndarray):
        return probs if probs.dtype == object else probs.astype(np.float64, copy=False)
    if hasattr(probs, "detach"):  # a torch tensor, without importing torch
        return np.asarray(probs.detach().cpu().numpy(), dtype=np.float64)
    values = list(probs)
    if any(isinstance(v, Fraction) for v in values) or all(isinstance(v, int) for v in values):
        exact = np.empty(len(values), dtype=object)
        exact[:] = [Fraction(v) for v in values]
        return exact
    return np.array(values, dtype=np.float64)


def _positions(p: Dist, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Where each of `ids` lies in p.probs; -1 for those outside p's support."""
    if p.ids is None:
        return ids
    at = np.minimum(np.searchsorted(p.ids, ids), len(p.ids) - 1)
    return np.where(p.ids[at] == ids, at, -1)


def _scalar(value: Any) -> Prob:
    return value if isinstance(value, Fraction) else value.item() if isinstance(value, np.generic) else value
