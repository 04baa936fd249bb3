"""How likely drafted tokens are to survive, estimated from past rounds with decay.

What it is for: adaptive schedules. Estimates are kept per drafter, per stratum of its proposals (how the proposal was
found, such as the length of a match) and per position of the block.

Guarantees: reads past rounds only. Pools numerators and denominators; starts from a prior worth a few observations,
optimistic enough that a new drafter is tried. What it does not do: look at tokens.
"""

from __future__ import annotations

import operator
from itertools import accumulate

from draftproof.errors import InvalidValue

DECAY = 0.98  # weight of an observation after one more observation of the same kind: about the last 50 count
PRIOR = 0.6  # acceptance assumed of a drafter never seen
PRIOR_WEIGHT = 2.0  # in observations; decays as they do, so that always wrong comes to be worth nothing
LEAST = 6.0  # observations' worth of what was seen long ago

_NOTHING = (0.0, 0.0, PRIOR_WEIGHT)

Key = tuple[str, int, int]
"""(drafter, stratum, position)."""


class Acceptance:
    """P(token at position k accepted | everything before it was), for k = 0, 1, ..."""

    def __init__(self, decay: float = DECAY) -> None:
        if not 0 < decay <= 1:
            raise InvalidValue(f"decay {decay}", "in (0, 1]")
        self.decay = decay
        self._seen: dict[Key, tuple[float, float, float]] = {}  # hits, observations, weight of the prior

    def observe(self, drafter: str, stratum: int, verified: int, accepted: int, rounds: int = 1) -> None:
        """A block of `verified` tokens had its first `accepted` accepted. rounds: since last time; what was known is
        older by as much, and is worth no less than LEAST observations.
        """
        for position in range(min(accepted + 1, verified)):
            self._count(drafter, stratum, position, rounds, hit=position < accepted)

    def _count(self, drafter: str, stratum: int, position: int, rounds: int, *, hit: bool) -> None:
        key = (drafter, stratum, position)
        hits, total, prior = self._seen.get(key, _NOTHING)
        memory = self.decay
        if rounds > 1 and total > LEAST:
            memory = min(memory, max(memory**rounds, LEAST / total))
        self._seen[key] = (hits * memory + hit, total * memory + 1, prior * memory)

    def estimate(self, drafter: str, stratum: int, position: int) -> float:
        """The estimate at one position. What has not been seen leans on the position before it."""
        return self.estimates(drafter, stratum, position + 1)[position]

    def estimates(self, drafter: str, stratum: int, length: int) -> list[float]:
        """The same at positions 0..length-1."""
        result: list[float] = []
        prior = PRIOR
        for position in range(length):
            hits, total, weight = self._seen.get((drafter, stratum, position), _NOTHING)
            prior = (hits + weight * prior) / (total + weight)
            result.append(prior)
        return result

    def survivals(self, drafter: str, stratum: int, length: int) -> list[float]:
        """P(at least k+1 tokens accepted) for k = 0..length-1: non-increasing."""
        return list(accumulate(self.estimates(drafter, stratum, length), operator.mul))
