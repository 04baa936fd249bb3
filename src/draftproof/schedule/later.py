"""Rounds that a schedule learns from together.

What it is for: learning from a round takes three times as long right after a model's pass, which has emptied the
processor's caches, as it does once more; and after a hundred rounds one more changes no decision. So the first rounds
are learnt from at once, later ones of one request several at a time. (Those of many requests are long, and their
proposals would take much memory.)

Guarantees: every round is learnt from once, in order, and none before it is over. What it does not do: learn.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from draftproof.errors import InvalidValue

AT_ONCE = 64  # rounds
TOGETHER = 8

T = TypeVar("T")


class Later(Generic[T]):
    """at_once: rounds that are learnt from one by one at first. together: how many at a time after those."""

    def __init__(self, at_once: int = AT_ONCE, together: int = TOGETHER) -> None:
        if at_once < 0 or together < 1:
            raise InvalidValue(f"at_once={at_once}, together={together}", "at least 0 and 1")
        self._at_once, self._together = at_once, together
        self._rounds: list[T] = []

    def append(self, seen: T) -> None:
        """A round is over."""
        self._rounds.append(seen)

    def due(self, requests: int) -> bool:
        """Whether it is time to learn. requests: of the round that is over."""
        return self._at_once > 0 or requests > 1 or len(self._rounds) >= self._together

    def take(self) -> list[T]:
        """The rounds that were not learnt from yet, in order; they are now."""
        taken, self._rounds = self._rounds, []
        self._at_once = max(0, self._at_once - len(taken))
        return taken
