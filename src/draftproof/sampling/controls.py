"""From the target's row to p, and from a draft model's row to q: one pipeline for both.

Guarantees: row i of a block is processed with the history plain decoding would have had: prompt, committed
tokens, and drafted tokens before i, each once. Probabilities are float64, or Fractions where rows are exact
and the control is rational. What it does not do: stop rules; see `sequence`.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np

from draftproof.dist import Dist
from draftproof.errors import Unsupported
from draftproof.sampling.params import SamplingParams
from draftproof.target.base import LogitRows, Rows


class Controls:
    """The sampling controls of one request, with the state they need (nothing yet beyond the parameters)."""

    __slots__ = ("params", "vocab_size")

    def __init__(self, params: SamplingParams, vocab_size: int) -> None:
        self.params = params
        self.vocab_size = vocab_size

    def distribution(self, rows: Rows, row: int, drafted: Seq[int], temperature: float | None = None) -> Dist:
        """p (or q) from one row. `drafted`: the drafted tokens before it; `temperature` overrides the request's."""
        t = self.params.temperature if temperature is None else temperature
        values = rows.values[row]
        if t == 0:
            return Dist.point(int(np.argmax(values)), len(values))
        if isinstance(rows, LogitRows):
            return Dist(softmax(values, t))
        if t == 1:
            return Dist(values)
        if values.dtype == object:
            raise Unsupported(f"temperature={t} on exact rows", "use 0 or 1, or a table of floats")
        weights = values ** (1 / t)
        return Dist(weights / weights.sum())

    def commit(self, token: int) -> None:
        """A token was added to the answer."""


def softmax(logits: np.ndarray, temperature: float) -> np.ndarray:
    """float64 probabilities of one row of logits, shape (vocab,)."""
    z = logits.astype(np.float64)
    z -= z.max()
    if temperature != 1:
        z /= temperature
    np.exp(z, out=z)
    z /= z.sum()
    return z
