"""The table target: a toy model given as prefix -> probabilities, exact if they are Fractions.

What it is for: proofs, tests and teaching. It goes through the same cache, rollback and batch calls as a real
model: rows are computed from what its cache holds, so a rollback that is forgotten shows in the answer's law.

Guarantees: rows are the table's own numbers, unrounded. What it does not do: scale; V is small.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np

from draftproof.dist import Dist
from draftproof.errors import BadTable, InvalidValue
from draftproof.target.base import Feed, ProbRows, Rows

Prefix = tuple[int, ...]
Table = Mapping[Prefix, Any] | Callable[[Prefix], Any]


class TableModel:
    """prefix -> distribution; immutable and shared by copies.

    table: a mapping or a function from the prefix (all tokens so far, prompt included) to one probability per
    token. With a mapping, a prefix that is missing falls back to its longest suffix that is there, down to ().
    """

    def __init__(self, table: Table, vocab_size: int, *, name: str = "table") -> None:
        if vocab_size < 1:
            raise InvalidValue(f"vocabulary of {vocab_size}", "at least one token")
        self.name = name
        self.vocab_size = vocab_size
        self._table = table
        self._known: dict[Prefix, Dist] = {}

    def __deepcopy__(self, memo: dict[int, object]) -> TableModel:
        return self

    def row(self, prefix: Prefix) -> Dist:
        """The next-token distribution after `prefix`; BadTable if it is none."""
        if prefix not in self._known:
            dist = Dist.checked(self._find(prefix), f"{self.name} row after {prefix}")
            if dist.size != self.vocab_size:
                raise BadTable(f"{self.name} row after {prefix} has {dist.size} entries", f"expected {self.vocab_size}")
            self._known[prefix] = dist
        return self._known[prefix]

    def _find(self, prefix: Prefix) -> Any:
        if callable(self._table):
            return self._table(prefix)
        for start in range(len(prefix) + 1):
            if prefix[start:] in self._table:
                return self._table[prefix[start:]]
        raise BadTable(f"{self.name} has no row for {prefix}", "add one, or a row for ()")


class TableTarget:
    """A `TableModel` behind the target protocol."""

    def __init__(
        self,
        model: TableModel,
        *,
        eos_ids: Seq[int] = (),
        context_limit: int | None = None,
    ) -> None:
        self.model = model
        self.name = model.name
        self.vocab_size = model.vocab_size
        self.context_limit = context_limit
        self.eos_ids = frozenset(eos_ids)
        self._caches: dict[int, list[int]] = {}
        self._next = 0

    def open(self) -> int:
        self._next += 1
        self._caches[self._next] = []
        return self._next

    def close(self, handle: int) -> None:
        del self._caches[handle]

    def length(self, handle: int) -> int:
        return len(self._caches[handle])

    def score(self, feeds: Seq[Feed]) -> list[Rows]:
        return [self._one(feed) for feed in feeds]

    def rollback(self, handle: int, length: int) -> None:
        assert 0 <= length <= len(self._caches[handle])
        del self._caches[handle][length:]

    def _one(self, feed: Feed) -> Rows:
        cache = self._caches[feed.handle]
        cache.extend(feed.tokens)
        first = len(cache) - feed.rows + 1
        rows = [self.model.row(tuple(cache[:n])).probs for n in range(first, len(cache) + 1)]
        return ProbRows(np.stack(rows))
