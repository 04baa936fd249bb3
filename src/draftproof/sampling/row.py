"""One row while the controls act on it: logits or probabilities, of all ids or of the ids still allowed.

What it is for: the steps of `controls` share it. A row that a grammar cuts to three tokens costs three numbers from
then on, and the target's own array is copied only when something is written.

Guarantees: ids stay ascending, so that the first of equals is the smallest id; an impossible token has exactly
-inf (logits) or 0 (probabilities). What it does not do: decide anything.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from draftproof.errors import BadLogits
from draftproof.target.base import LogitRows, Rows

Array = npt.NDArray[Any]
Ids = npt.NDArray[np.int64]


class WorkingRow:
    """values: logits if `log`, else probabilities (float64 or Fractions), of `ids`, or of 0..size-1 if that is None.

    changed: whether `values` is an array of this row's own, and no longer just what the model said. peak: where the
    model's largest value lies, the first of equals, if that is known: looking for it costs a pass over the row, so it
    is kept until something is written.
    """

    __slots__ = ("_peak", "changed", "ids", "log", "size", "values")

    def __init__(self, rows: Rows, row: int, *, log: bool, peak: int | None = None) -> None:
        values = rows.values[row]
        self.size = rows.vocab_size
        self.ids: Ids | None = rows.ids if isinstance(rows, LogitRows) else None
        self.log = log or isinstance(rows, LogitRows)
        self.changed = False
        if self.log and not isinstance(rows, LogitRows):
            values = log_of(values)
            self.changed = True
        self.values: Array = values
        self._peak = peak

    def restrict(self, allowed: npt.NDArray[np.bool_]) -> None:
        """Keep only the ids where `allowed`, shape (size,), is True."""
        if self.ids is None:
            self.ids = np.flatnonzero(allowed)
            self.values = self.values[self.ids]
        else:
            keep = allowed[self.ids]
            self.ids, self.values = self.ids[keep], self.values[keep]
        self.changed = True
        self._peak = None

    def forbid(self, ids: Ids) -> None:
        """Make these ids impossible."""
        if not len(ids):
            return
        at = self.positions(ids)[0]
        if len(at):
            self._own()
            self.values[at] = -np.inf if self.log else 0

    def positions(self, ids: Ids) -> tuple[Ids, npt.NDArray[np.bool_] | slice]:
        """Where those of `ids` that are still there lie in `values`, and which of them they are (a selector)."""
        if self.ids is None:
            return ids, slice(None)
        if not len(self.ids):
            return ids[:0], np.zeros(len(ids), dtype=np.bool_)
        at = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        known = self.ids[at] == ids
        return at[known], known

    def writable(self) -> Array:
        """The logits as float64, free to be changed in place before anything else is asked of the row."""
        assert self.log
        if self.values.dtype != np.float64:
            self.values = self.values.astype(np.float64)
            self.changed = True
        self._own()
        return self.values

    def dense(self) -> Array:
        """The logits of all ids as float64, shape (size,): a copy."""
        full = np.full(self.size, -np.inf)
        full[slice(None) if self.ids is None else self.ids] = self.values
        return full

    def top(self) -> Any:
        """The largest value; -inf or 0 if no token is left. Raises BadLogits for NaN and +inf."""
        if not len(self.values):
            return -np.inf if self.log else 0
        top = self.values[self.peak()]
        if self.log and not top < np.inf:
            raise BadLogits(
                f"logits with {'NaN' if np.isnan(top) else '+inf'} in a row to be sampled from",
                "the model, a processor, a penalty or a bias is broken or too large",
            )
        return top

    def peak(self) -> int:
        """Where the largest value lies, the first of equals; of a row with a value."""
        if self._peak is None:
            self._peak = int(self.values.argmax())
        return self._peak

    def token_at(self, position: int) -> int:
        """The id behind a position in `values`."""
        return position if self.ids is None else int(self.ids[position])

    def _own(self) -> None:
        self._peak = None
        if not self.changed:
            self.values = self.values.copy()
            self.changed = True


def log_of(probs: Array) -> Array:
    """Natural logarithms of probabilities (floats or Fractions) as float64; -inf where they are 0."""
    values = probs.astype(np.float64)
    logs = np.full(len(values), -np.inf)
    np.log(values, out=logs, where=values > 0)
    return logs
