"""How much of what a drafter's confidences promise is kept, by position of the block.

What it is for: confidences are calibrated on other texts, often at another temperature, and are too high or too low by
a share that differs from position to position. What past rounds kept of them corrects what the next ones promise.

Guarantees: a function of past rounds; 1, exactly, before anything was seen. A position that keeps too little is not
drafted any more and so would never be seen again: one that keeps less than the position before it is believed by one
standard error more than was seen, and what is known of it fades, so that it comes to be tried again. What it does not
do: look at confidences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq

LONG = 0.998  # weight of a round one round later: about the last 500 count
FADING = 0.97  # weight of what is known after a block that was seen and not verified
BELIEF = 8.0  # tokens' worth of belief that promises are kept, before anything was seen
NEXT = 8.0  # tokens' worth of belief that a position keeps as much as the one before it
LEAST = 4.0  # tokens' worth of what was seen long ago
HOPE = 1e-6  # share that is believed whatever was seen: thresholds divide by it


class Trust:
    """kept: by position, the share of promised tokens that came. Worked out when somebody asks."""

    def __init__(self, positions: int) -> None:
        self._kept: list[float] = [1] * positions
        self._promised = [BELIEF, *[0.0] * (positions - 1)]
        self._accepted = self._promised.copy()
        self._fresh = _Fresh(positions)

    @property
    def kept(self) -> list[float]:
        """By position; at least HOPE."""
        self._settle()
        return self._kept

    @property
    def promised(self) -> list[float]:
        """By position, tokens' worth of what is known."""
        self._settle()
        return self._promised

    def observe(self, promised: Seq[float], accepted: Seq[float], rounds: int = 1) -> None:
        """Tokens that were promised at each verified position, of all requests, and those that came. rounds: since last
        time; what was known is older by as much, and is worth no less than LEAST tokens.
        """
        self._fresh.rounds += rounds
        for k, share in enumerate(promised):
            self._fresh.promised[k] += share
        for k, share in enumerate(accepted):
            self._fresh.accepted[k] += share

    def doubt(self) -> None:
        """A block was seen and not verified: less is known of promises than before, and they are believed again."""
        self._settle()
        self._promised = [FADING * known for known in self._promised]
        self._accepted = [FADING * known for known in self._accepted]
        self._promised[0] += (1 - FADING) * BELIEF
        self._accepted[0] += (1 - FADING) * BELIEF
        self._judge()

    def _settle(self) -> None:
        """Rounds that came since somebody asked count as of one age."""
        fresh = self._fresh
        if not fresh.rounds:
            return
        self._fresh = _Fresh(len(self._kept))
        aged = LONG**fresh.rounds
        for k, known in enumerate(self._promised):
            memory = max(aged, LEAST / known) if known > LEAST else 1.0
            self._promised[k] = memory * known + fresh.promised[k]
            self._accepted[k] = memory * self._accepted[k] + fresh.accepted[k]
        self._judge()

    def _judge(self) -> None:
        share = self._accepted[0] / self._promised[0]
        self._kept[0] = max(share, HOPE)
        for k in range(1, len(self._kept)):
            known = self._promised[k] + NEXT
            share = (self._accepted[k] + NEXT * share) / known
            self._kept[k] = max(share, min(share + math.sqrt(share / known), self._kept[k - 1]), HOPE)


class _Fresh:
    """What was seen and not worked in: sums by position, and over how many rounds."""

    __slots__ = ("accepted", "promised", "rounds")

    def __init__(self, positions: int) -> None:
        self.promised, self.accepted, self.rounds = [0.0] * positions, [0.0] * positions, 0
