"""How much of a block is drafted: as much as would have made the most tokens a second of late.

What it is for: the end of a block that is seldom accepted costs the time it is drafted in. Now and then the whole block
is drafted, and what each shorter one would have made in that round is added to what is known. At first every other one
is half a block, so that the seconds of a token can be told from those of a block.

Guarantees: a function of past rounds alone. What it does not do: decide whether anything is drafted.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

ROUNDS = 16
FIRST = 4
MEMORY = 1 - 1 / ROUNDS  # weight kept by what was known when a whole block adds its own


class Reach:
    """longest: the whole block. rounds: shorter ones between two whole ones; before anything is decided there are FIRST
    whole ones, or `rounds` if that is less.
    """

    def __init__(self, longest: int, rounds: int = ROUNDS) -> None:
        self._longest, self._rounds = longest, rounds
        self._seen, self._since = 0, rounds
        self.whole = False
        """Whether this round asked for the whole block."""
        self._tokens = [0.0] * longest  # by length, 1 to the whole block, of whole rounds
        self._seconds = [0.0] * longest
        self.choice = longest
        """The length that made most, as far as is known."""

    @property
    def known(self) -> bool:
        """Whether enough was seen to decide."""
        return self._seen >= min(FIRST, self._rounds)

    def ask(self, *, afford: bool = True) -> int:
        """Tokens to draft in the coming round, at least 1. afford: whether a whole block, where it is due, may be."""
        due = self._since >= (self._rounds if self.known else 1)
        self.whole = due and (afford or not self.known)
        if self.whole:
            return self._longest
        return self.choice if self.known else -(-self._longest // 2)

    def passed(self) -> None:
        """A round that drafted less than the whole block."""
        self._since += 1

    def observe(self, made: Seq[tuple[float, float]]) -> None:
        """A round that drafted the whole block. made: tokens and seconds of the round, had 1, 2, ... been drafted; a
        drafter may have made less than was asked for.
        """
        self._since = 0
        self._seen += 1
        for i in range(self._longest if made else 0):
            tokens, seconds = made[min(i, len(made) - 1)]
            self._tokens[i] = MEMORY * self._tokens[i] + tokens
            self._seconds[i] = MEMORY * self._seconds[i] + seconds
        rates = [
            tokens / seconds if seconds else 0.0 for tokens, seconds in zip(self._tokens, self._seconds, strict=True)
        ]
        self.choice = 1 + rates.index(max(rates)) if rates else 0
