"""The lookup drafter: what followed the last time the text ended like this, copied.

What it is for: answers that quote their prompt or repeat themselves (extraction, editing, code). Guarantees: point
masses only; O(1) per committed token and per drafted token. What it does not do: learn from other requests.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from draftproof.draft.base import DraftRequest, Proposal
from draftproof.errors import InvalidValue


class IndexingDrafter:
    """Base of drafters that look things up in each sequence's own n-grams of `shortest` to `longest` tokens."""

    def __init__(self, longest: int, shortest: int) -> None:
        if not 1 <= shortest <= longest:
            raise InvalidValue(f"n-grams of {shortest} to {longest} tokens", "1 <= shortest <= longest")
        self.longest = longest
        self.shortest = shortest
        self._indexes: dict[int, NgramIndex] = {}

    def open(self, id: int) -> None:
        self._indexes[id] = NgramIndex(self.longest, self.shortest)

    def close(self, id: int) -> None:
        del self._indexes[id]

    def commit(self, id: int, tokens: Seq[int]) -> None:
        self._indexes[id].extend(tokens)

    def _index(self, request: DraftRequest) -> NgramIndex:
        """The index of a sequence, all of its tokens taken in."""
        index = self._indexes[request.id]
        index.extend(request.tokens)
        return index


class LookupDrafter(IndexingDrafter):
    """Longest suffix n-gram of prompt and answer, between `shortest` and `longest` tokens; most recent match first."""

    name = "lookup"

    def __init__(self, longest: int = 5, shortest: int = 1) -> None:
        super().__init__(longest, shortest)

    def propose(self, requests: Seq[DraftRequest]) -> list[Proposal]:
        proposals = []
        for request in requests:
            start, size = self._index(request).find(request.tokens)
            tokens = copy_from(request.tokens, start, request.limit) if size else []
            proposals.append(Proposal(tokens, drafter=self.name, stratum=size))
        return proposals


def copy_from(tokens: Seq[int], start: int, count: int) -> list[int]:
    """`count` tokens from position `start`; past the end it goes on copying what it has copied (a repeating text)."""
    period = len(tokens) - start
    return [tokens[start + i % period] for i in range(count)]


class NgramIndex:
    """For every n-gram that has a token after it: the position of that token, latest occurrence."""

    __slots__ = ("_after", "_known", "_sizes")

    def __init__(self, longest: int, shortest: int) -> None:
        self._sizes = range(longest, shortest - 1, -1)
        self._after: dict[tuple[int, ...], int] = {}
        self._known = 0

    def extend(self, tokens: Seq[int]) -> None:
        """Take in the tokens that came since the last call."""
        for end in range(max(self._known, 1), len(tokens)):
            for size in self._sizes:
                if size <= end:
                    self._after[tuple(tokens[end - size : end])] = end
        self._known = len(tokens)

    def after(self, context: Seq[int]) -> int | None:
        """Position of the token after the latest occurrence of these tokens; None if there is none."""
        return self._after.get(tuple(context))

    def find(self, tokens: Seq[int]) -> tuple[int, int]:
        """(position after the latest match, its length in tokens); length 0 if there is none."""
        for size in self._sizes:
            if size < len(tokens):
                start = self.after(tokens[-size:])
                if start is not None:
                    return start, size
        return 0, 0
