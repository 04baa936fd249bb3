"""The key/value cache of `TransformersTarget`: one slot per open sequence, full length in every layer.

Guarantees: a pass writes only beyond each sequence's length and reads only what its mask allows, so
setting a length is all a rollback has to do and it leaves no trace; sliding-window layers keep every
position (the window is the mask's business), so a rollback is right on both sides of its edge.
Storage doubles in slots and in positions when it must grow and is given back when the last sequence
closes. What it does not do: know tokens or lengths of sequences (the target does).
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, DummyLayer

_FIRST_CAPACITY = 256


class Pass:
    """Which slots one forward pass extends, from where and by how much; rows in ascending slot order.

    A pass of one sequence is written and read by slices. A pass of several is padded on the right to
    `width` new positions per sequence; `rows` and `columns`, shape (sequences, width), index where each
    new position goes. Padding goes beyond its sequence's new length, where nothing is ever read before
    it is written again.
    """

    __slots__ = ("columns", "counts", "rows", "slots", "span", "starts", "width")

    def __init__(self, slots: list[int], starts: list[int], counts: list[int], device: torch.device) -> None:
        assert len(slots) == len(starts) == len(counts) > 0
        assert all(a < b for a, b in itertools.pairwise(slots)), "slots ascend, each once"
        self.slots, self.starts, self.counts = slots, starts, counts
        self.width = max(counts)
        self.span = max(start + count for start, count in zip(starts, counts, strict=True))
        self.rows: torch.Tensor | None = None
        self.columns: torch.Tensor | None = None
        if len(slots) > 1:
            first = torch.tensor(starts, device=device)[:, None]
            self.rows = torch.tensor(slots, device=device)[:, None]
            self.columns = first + torch.arange(self.width, device=device)

    @property
    def reach(self) -> int:
        """One more than the highest position written, padding included."""
        return max(self.starts) + self.width

    def positions(self) -> torch.Tensor:
        """Position of every new token, shape (sequences, width); padding repeats its sequence's last."""
        assert self.columns is not None
        last = [start + count - 1 for start, count in zip(self.starts, self.counts, strict=True)]
        return torch.minimum(self.columns, torch.tensor(last, device=self.columns.device)[:, None])

    def mask(self, window: int | None) -> torch.Tensor:
        """Which of the `span` cached positions each new one sees: bool, (sequences, 1, width, span)."""
        position = self.positions()[:, None, :, None]
        key = torch.arange(self.span, device=position.device)
        seen = key <= position
        return seen if window is None else seen & (key > position - window)


class SlotLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers is untyped
    """One layer's keys and values, shape (slots, heads, positions, head size), for the current pass."""

    is_croppable = True
    is_sliding = False
    keys: torch.Tensor | None
    values: torch.Tensor | None

    def __init__(self, store: KVStore) -> None:
        super().__init__()
        self._store = store

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.keys = self._store.fit(self.keys, key_states)
        self.values = self._store.fit(self.values, value_states)
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the pass's new keys and values; return all that its rows may see."""
        now = self._store.now
        self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        self._store.updates += 1
        if now.rows is None or now.columns is None:
            slot, start, stop = now.slots[0], now.starts[0], now.span
            self.keys[slot, :, start:stop] = key_states[0]
            self.values[slot, :, start:stop] = value_states[0]
            return self.keys[slot : slot + 1, :, :stop], self.values[slot : slot + 1, :, :stop]
        rows, columns = now.rows.to(self.keys.device), now.columns.to(self.keys.device)
        self.keys[rows, :, columns] = key_states.transpose(1, 2)
        self.values[rows, :, columns] = value_states.transpose(1, 2)
        first, last = now.slots[0], now.slots[-1]
        if last - first + 1 == len(now.slots):  # neighbours: a view is enough
            return self.keys[first : last + 1, :, : now.span], self.values[first : last + 1, :, : now.span]
        picked = rows[:, 0]
        return self.keys[:, :, : now.span][picked], self.values[:, :, : now.span][picked]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._store.now.span, 0

    def get_seq_length(self) -> int:
        # Only a pass of one sequence asks: passes of several bring their own masks and positions.
        return self._store.now.starts[0]

    def get_max_length(self) -> int:
        return -1


class KVStore:
    """Slots for sequences, and the `transformers` cache object that the model's layers write through."""

    def __init__(self, shared: list[bool]) -> None:
        """`shared[i]` says that layer i has no keys and values of its own (it reads another layer's)."""
        self._shared = shared
        self._slots: list[bool] = []
        self._capacity = _FIRST_CAPACITY
        self.updates = 0
        self.now = Pass([0], [0], [1], torch.device("cpu"))
        self.cache = self._empty()

    def acquire(self) -> int:
        """The lowest free slot: neighbours in a batch need no gathering."""
        if False not in self._slots:
            self._slots += [False] * max(1, len(self._slots))
        slot = self._slots.index(False)
        self._slots[slot] = True
        return slot

    def release(self, slot: int) -> None:
        """Free a slot. Its old contents are finite and never read, so they need no wiping."""
        assert self._slots[slot]
        self._slots[slot] = False
        if not any(self._slots):
            self._slots, self._capacity = [], _FIRST_CAPACITY
            self.cache = self._empty()

    def begin(self, now: Pass) -> Cache:
        """Make room for a pass and return the cache to give to the model."""
        while self._capacity < now.reach:
            self._capacity *= 2
        self.now, self.updates = now, 0
        return self.cache

    def scrub(self, slot: int, length: int) -> None:
        """Overwrite with zeros what a failed pass wrote beyond `length`: NaN would survive being masked."""
        for layer in self.cache.layers:
            for stored in (layer.keys, layer.values):
                if stored is not None:
                    stored[slot, :, length:] = 0

    def fit(self, old: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
        """`old` if it is large enough for the pass, else a larger copy (zeros beyond what was stored)."""
        slots, capacity = len(self._slots), self._capacity
        if old is not None and old.shape[0] >= slots and old.shape[2] >= capacity:
            return old
        new = like.new_zeros((slots, like.shape[1], capacity, like.shape[3]))
        if old is not None:
            new[: old.shape[0], :, : old.shape[2]] = old
        return new

    def _empty(self) -> Cache:
        return Cache(layers=[DummyLayer() if shared else SlotLayer(self) for shared in self._shared])
