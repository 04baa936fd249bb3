"""The fixed schedule: the same draft length in every round, and all of it verified.

Guarantees: non-anticipating, trivially. What it does not do: notice that speculation does not pay.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from draftproof.draft.base import Proposal
from draftproof.errors import InvalidValue
from draftproof.schedule.base import RoundRecord, Slot

LONGEST = 64  # past this no drafter in the field gains, and a typing error costs memory


class FixedSchedule:
    """Draft `length` tokens, fewer where the budget leaves no room for them."""

    name = "fixed"

    def __init__(self, length: int) -> None:
        if not 0 <= length <= LONGEST:
            raise InvalidValue(f"draft length {length}", f"0 to {LONGEST}; 0 is plain decoding")
        self.length = length

    def lengths(self, slots: Seq[Slot]) -> list[int]:
        return [min(self.length, slot.room) for slot in slots]

    def admit(self, slots: Seq[Slot], proposals: Seq[Proposal]) -> list[int]:
        return [len(proposal.tokens) for proposal in proposals]

    def observe(self, record: RoundRecord) -> None:
        """Nothing is learnt."""

    def off_reason(self, id: int) -> str | None:
        return None if self.length else "the draft length is 0"

    def forget(self, id: int) -> None:
        """Nothing is kept."""
