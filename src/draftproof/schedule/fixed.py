"""The fixed schedule: the same draft length in every round, and all of it verified.

Guarantees: non-anticipating, trivially. Passes are kept at the widest of the last RECENT rounds, since proposals may be
shorter than asked. What it does not do: notice that speculation does not pay.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Seq

from draftproof.draft.base import Proposal
from draftproof.errors import InvalidValue
from draftproof.schedule.base import RoundRecord, Slot

LONGEST = 64  # past this no drafter in the field gains, and a typing error costs memory
RECENT = 8  # rounds


class FixedSchedule:
    """Draft `length` tokens, fewer where the budget leaves no room for them."""

    name = "fixed"

    def __init__(self, length: int) -> None:
        if not 0 <= length <= LONGEST:
            raise InvalidValue(f"draft length {length}", f"0 to {LONGEST}; 0 is plain decoding")
        self.length = length
        self._widths: deque[int] = deque([1], maxlen=RECENT)

    @property
    def width(self) -> int:
        """See `schedule.base.Steady`."""
        return max(self._widths)

    def lengths(self, slots: Seq[Slot]) -> list[int]:
        return [min(self.length, slot.room) for slot in slots]

    def admit(self, slots: Seq[Slot], proposals: Seq[Proposal]) -> list[int]:
        return [len(proposal.tokens) for proposal in proposals]

    def observe(self, record: RoundRecord) -> None:
        """Nothing is learnt but how wide passes are."""
        self._widths.append(1 + max(record.admitted, default=0))

    def off_reason(self, id: int) -> str | None:
        return None if self.length else "the draft length is 0"

    def forget(self, id: int) -> None:
        """Nothing is kept."""
