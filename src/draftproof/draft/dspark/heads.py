"""The sequential heads in numpy: B of the next draft row from the tokens drawn so far, and the confidence in it.

Guarantees: row k's bias and confidence are functions of tokens up to k - 1; a walk is moved by `next` alone.
The same numbers as `module` up to float32 rounding. What it does not do: draw tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from draftproof.draft.dspark.checkpoint import Checkpoint

Array = npt.NDArray[Any]


class SequentialHead:
    """The weights, shared by all sequences; `start` gives one block's walk. biases: those of the forward pass
    (`forward.Forward.biases`), by default a product here.
    """

    def __init__(self, checkpoint: Checkpoint, biases: Callable[[Array], Array] | None = None) -> None:
        t = checkpoint.tensors
        self.config = checkpoint.config
        self.index = np.full(self.config.target_vocab, self.config.draft_vocab, dtype=np.int64)
        self.index[t["vocab"]] = np.arange(self.config.draft_vocab)
        self.embed: Array | None = t.get("head.embed")
        self.biases = biases if biases is not None or self.embed is None else product(checkpoint)
        self.gates = {gate: t[f"head.{gate}"] for gate in ("gate", "cell", "read") if f"head.{gate}" in t}
        d = self.config.hidden
        self.confidence_hidden, self.confidence_previous = t["confidence"][:d], t["confidence"][d:]
        self.confidence_bias = float(t["confidence.bias"][0])
        self.temperatures = checkpoint.temperatures

    def start(self) -> Walk:
        """A walk along one block."""
        return Walk(self)


class Walk:
    """One block's draws, left to right."""

    __slots__ = ("_head", "_k", "_state")

    def __init__(self, head: SequentialHead) -> None:
        self._head = head
        self._k = 0
        self._state: Array | None = None

    def confidence(self, hidden: Array, previous: int) -> float:
        """c_k, for the token `previous` at k - 1 and h_k (hidden,); row k is the coming one."""
        head = self._head
        logit = float(hidden @ head.confidence_hidden) + head.confidence_bias
        if head.embed is not None:
            logit += float(head.embed[head.index[previous]] @ head.confidence_previous)
        return _sigmoid(logit / head.temperatures[self._k])

    def next(self, hidden: Array, previous: int) -> Array | None:
        """B of row k over the draft vocabulary or None, from the same; the next row is the coming one then."""
        head = self._head
        self._k += 1
        if head.embed is None or head.biases is None:
            return None
        row = head.embed[head.index[previous]]
        return head.biases(self._read(row, hidden) if head.gates else row)

    def _read(self, row: Array, hidden: Array) -> Array:
        gates = self._head.gates
        state = np.zeros_like(row) if self._state is None else self._state
        z = np.concatenate([state, row, hidden])
        keep = 1 / (1 + np.exp(-(gates["gate"] @ z)))
        self._state = keep * state + (1 - keep) * np.tanh(gates["cell"] @ z)
        read: Array = np.tanh(gates["read"] @ z)
        return read


def product(checkpoint: Checkpoint) -> Callable[[Array], Array]:
    """`forward.Forward.biases` in numpy."""
    out = np.ascontiguousarray(checkpoint.tensors["head.out"].T)

    def biases(read: Array) -> Array:
        found: Array = read @ out
        return found

    return biases


def _sigmoid(x: float) -> float:
    return float(1 / (1 + np.exp(-x))) if x >= 0 else float(np.exp(x) / (1 + np.exp(x)))
