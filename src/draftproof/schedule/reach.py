"""How much of a block is drafted: as much as was worth verifying of late.

What it is for: a block whose end is never verified costs the time its end was drafted in. Now and then the whole block
is drafted, so that what would be verified of it is seen again.

Guarantees: a function of past rounds alone. What it does not do: decide whether anything is drafted.
"""

from __future__ import annotations

from collections import deque

ROUNDS = 16


class Reach:
    """longest: the whole block. rounds: how many decide; one more, and the whole block is drafted again."""

    def __init__(self, longest: int, rounds: int = ROUNDS) -> None:
        self._longest = longest
        self._verified: deque[int] = deque(maxlen=rounds)  # of a round's longest prefix, of late
        self._turn = 0

    @property
    def now(self) -> int:
        """Tokens to draft in the coming round, at least 1."""
        if self._turn == 0 or len(self._verified) < (self._verified.maxlen or 0):
            return self._longest
        return max(1, *self._verified)

    def observe(self, verified: int) -> None:
        """A round that drafted; the most tokens it verified of one request."""
        self._verified.append(verified)
        self._turn = (self._turn + 1) % ((self._verified.maxlen or 0) + 1)
