"""Log-probabilities of one row, each worked out when somebody asks for it.

What it is for: of 50 000 tokens a report names the chosen one and the most probable few; logarithms of all of them
take ten times as long as the row's law did.

Guarantees: `of` and `top` give what `dense`, their obvious twin, holds (tests/sampling/test_scores.py). What it does
not do: decide whether a row is the model's own or the controls'; see `controls`.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from draftproof.dist import Dist
from draftproof.sampling.row import Array, Ids, WorkingRow
from draftproof.sampling.truncation import most, weights_of


class Scores:
    """Natural logarithms of probabilities, -inf for tokens that are impossible."""

    __slots__ = ("_ids", "_largest", "_log", "_size", "_total", "_values")

    def __init__(self, values: Array, ids: Ids | None, size: int, *, largest: float, total: float, log: bool) -> None:
        """values: float logits if `log`, else weights, of `ids` ascending, or of all. A probability is a weight, or
        exp(logit - largest), over `total`.
        """
        self._values, self._ids, self._size = values, ids, size
        self._largest, self._total, self._log = largest, total, log

    @classmethod
    def of_logits(cls, row: WorkingRow) -> Scores:
        """The softmax of a row of logits, of which at least one is finite. Raises BadLogits for NaN and +inf."""
        assert row.log
        largest = float(row.top())
        total = float(weights_of(row.values, 1.0, largest).sum())
        return cls(row.values, row.ids, row.size, largest=largest, total=total, log=True)

    @classmethod
    def of_dist(cls, p: Dist) -> Scores:
        """A distribution's own."""
        values = p.weights.astype(np.float64, copy=False)
        return cls(values, p.ids, p.size, largest=0.0, total=float(p.total), log=False)

    def of(self, token: int) -> float:
        """One token's."""
        at = token
        if self._ids is not None:
            at = min(int(np.searchsorted(self._ids, token)), len(self._ids) - 1)
            if self._ids[at] != token:
                return -math.inf
        return self._at(at)

    def top(self, count: int) -> tuple[tuple[int, float], ...]:
        """The `count` most probable tokens, best first, ties by smaller id; none that is impossible."""
        if count == 0:
            return ()
        at = most(self._values, count) if count < len(self._values) else np.arange(len(self._values))
        best = at[np.argsort(-self._values[at], kind="stable")].tolist()
        named = ((i if self._ids is None else int(self._ids[i]), self._at(i)) for i in best)
        return tuple((token, score) for token, score in named if score > -math.inf)

    def dense(self) -> npt.NDArray[np.float64]:
        """All of them, float64, shape (size,)."""
        full = np.full(self._size, -np.inf)
        everywhere = slice(None) if self._ids is None else self._ids
        if self._log:
            full[everywhere] = np.subtract(self._values, self._largest, dtype=np.float64) - math.log(self._total)
        else:
            with np.errstate(divide="ignore"):
                full[everywhere] = np.log(self._values / self._total)
        return full

    def _at(self, position: int) -> float:
        value = float(self._values[position])
        if self._log:
            return value - self._largest - math.log(self._total)
        return math.log(value / self._total) if value > 0 else -math.inf
