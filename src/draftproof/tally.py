"""Counters of one sequence: what speculation did and how long it took.

Guarantees: a drafted token counts as drafted when it was verified and as accepted when it was also emitted; the
bonus token counts as neither. What it does not do: rates; see `result.Speculation`.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Tally:
    """See `result.Speculation` and `result.Timing` for what the numbers mean."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    surprises: int = 0
    drafted_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)
    target_seconds: float = 0.0
    draft_seconds: float = 0.0
    total_seconds: float = 0.0

    def count_round(self, drafted: int) -> None:
        """A round verified `drafted` tokens of this sequence."""
        self.rounds += 1
        self.drafted += drafted
        missing = drafted - len(self.drafted_at)
        if missing > 0:
            self.drafted_at.extend([0] * missing)
            self.accepted_at.extend([0] * missing)
        for k in range(drafted):
            self.drafted_at[k] += 1

    def count_accepted(self, position: int) -> None:
        """The drafted token at this position of the block was accepted and emitted."""
        self.accepted += 1
        self.accepted_at[position] += 1
