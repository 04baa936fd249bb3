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


class ContextCache:
    """store: (layers, 2, kv heads, room, head_dim), keys and values of the first `stored` tokens. parts: the same,
    keys and values of every layer in turn, each (1, kv heads, room, head_dim); views that stay until the store grows.
    waiting: features of the tokens after them, (tokens, feature layers * hidden), or None.
    """

    __slots__ = ("parts", "store", "stored", "waiting")

    def __init__(self, layers: int, kv_heads: int, head_dim: int) -> None:
        self._take(np.zeros((layers, 2, kv_heads, _FIRST_ROOM, head_dim), dtype=np.float32))
        self.stored = 0
        self.waiting: Array | None = None

    def _take(self, store: Array) -> None:
        self.store = store
        self.parts = [part[None] for layer in store for part in layer]

    @property
    def length(self) -> int:
        """Tokens of the context."""
        return self.stored + (0 if self.waiting is None else len(self.waiting))

    @property
    def room(self) -> int:
        """Tokens that the store has place for."""
        size: int = self.store.shape[3]
        return size

    def wait(self, features: Array) -> None:
        """Add tokens of which only features are known."""
        self.waiting = features if self.waiting is None else np.concatenate([self.waiting, features])

    def append(self, rows: Array) -> None:
        """Add keys and values, (layers, 2, kv heads, n, head_dim), of the tokens that were waiting, or of new ones."""
        end = self.stored + rows.shape[3]
        if end > self.room:
            wider = np.zeros((*self.store.shape[:3], max(end, 2 * self.room), rows.shape[4]), np.float32)
            wider[:, :, :, : self.stored] = self.store[:, :, :, : self.stored]
            self._take(wider)
        self.store[:, :, :, self.stored : end] = rows
        self.stored, self.waiting = end, None

    def cut(self, length: int) -> None:
        """Forget tokens from `length` on."""
        if length <= self.stored:
            self.stored, self.waiting = length, None
        elif self.waiting is not None:
            self.waiting = self.waiting[: length - self.stored]

    def layer(self, i: int) -> tuple[Array, Array]:
        """Keys and values of one layer: (kv heads, stored tokens, head_dim) each."""
        keys, values = self.store[i, :, :, : self.stored]
        return keys, values
