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
    """kept: by position, the share of promised tokens that came."""

    def __init__(self, positions: int) -> None:
        self.kept: list[float] = [1] * positions
        self.promised = [BELIEF, *[0.0] * (positions - 1)]
        self._accepted = self.promised.copy()

    def observe(self, promised: Seq[float], accepted: Seq[float], rounds: int = 1) -> None:
        """Tokens that were promised at each verified position, of all requests, and those that came. rounds: since last
        time; what was known is older by as much, and is worth no less than LEAST tokens.
        """
        aged = LONG**rounds
        for k, known in enumerate(self.promised):
            memory = max(aged, LEAST / known) if known > LEAST else 1.0
            self.promised[k] = memory * known + (promised[k] if k < len(promised) else 0)
            self._accepted[k] = memory * self._accepted[k] + (accepted[k] if k < len(accepted) else 0)
        self._judge()

    def doubt(self) -> None:
        """A block was seen and not verified: less is known of promises than before, and they are believed again."""
        self.promised = [FADING * known for known in self.promised]
        self._accepted = [FADING * known for known in self._accepted]
        self.promised[0] += (1 - FADING) * BELIEF
        self._accepted[0] += (1 - FADING) * BELIEF
        self._judge()

    def _judge(self) -> None:
        share = self._accepted[0] / self.promised[0]
        self.kept[0] = max(share, HOPE)
        for k in range(1, len(self.kept)):
            known = self.promised[k] + NEXT
            share = (self._accepted[k] + NEXT * share) / known
            self.kept[k] = max(share, min(share + math.sqrt(share / known), self.kept[k - 1]), HOPE)
