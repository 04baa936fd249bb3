"""What a DSpark drafter keeps of a sequence: keys and values of its context, and features not yet made into them.

Guarantees: `length` counts both; cutting back touches no number; slots after the stored ones hold finite numbers, so
that a masked product over all of them is a product over those that count. What it does not do: compute anything.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_FIRST_ROOM = 256
_FIRST_WAITING = 8


class ContextCache:
    """store: (layers, 2, kv heads, room, head_dim), keys and values of the first `stored` tokens. parts: the same,
    keys and values of every layer in turn, each (1, kv heads, room, head_dim); views that stay until the store grows.
    """

    __slots__ = ("_count", "_features", "_same", "parts", "store", "stored")

    def __init__(self, layers: int, kv_heads: int, head_dim: int) -> None:
        self._take(np.zeros((layers, 2, kv_heads, _FIRST_ROOM, head_dim), dtype=np.float32))
        self.stored = self._same = 0
        self._features: Array | None = None  # with room for more
        self._count = 0

    def _take(self, store: Array) -> None:
        self.store = store
        self.parts = [part[None] for layer in store for part in layer]

    @property
    def length(self) -> int:
        """Tokens of the context."""
        return self.stored + self._count

    @property
    def waiting(self) -> Array | None:
        """Features of the tokens after the stored ones, (tokens, feature layers * hidden); None for none."""
        return self._features[: self._count] if self._features is not None and self._count else None

    @property
    def room(self) -> int:
        """Tokens that the store has place for."""
        size: int = self.store.shape[3]
        return size

    def wait(self, features: Array) -> None:
        """Add tokens of which only features are known."""
        end = self._count + len(features)
        if self._features is None or end > len(self._features):
            wider = np.empty((max(end, 2 * self._count, _FIRST_WAITING), features.shape[1]), np.float32)
            if self._features is not None:
                wider[: self._count] = self._features[: self._count]
            self._features = wider
        self._features[self._count : end] = features
        self._count = end

    def append(self, rows: Array) -> None:
        """Add keys and values, (layers, 2, kv heads, n, head_dim), of the tokens that were waiting, or of new ones."""
        end = self.stored + rows.shape[3]
        if end > self.room:
            wider = np.zeros((*self.store.shape[:3], max(end, 2 * self.room), rows.shape[4]), np.float32)
            wider[:, :, :, : self.stored] = self.store[:, :, :, : self.stored]
            self._take(wider)
        self.store[:, :, :, self.stored : end] = rows
        self.stored, self._count = end, 0

    def cut(self, length: int) -> None:
        """Forget tokens from `length` on."""
        self.stored, self._count = min(length, self.stored), min(max(length - self.stored, 0), self._count)
        self._same = min(self._same, self.stored)

    def same(self) -> int:
        """How many stored tokens are those of the last time that this was asked: what a copy of them need not copy."""
        same, self._same = self._same, self.stored
        return same

    def layer(self, i: int) -> tuple[Array, Array]:
        """Keys and values of one layer: (kv heads, stored tokens, head_dim) each."""
        keys, values = self.store[i, :, :, : self.stored]
        return keys, values
