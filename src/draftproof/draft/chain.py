"""Several drafters in a stated order: the first that has something to propose does.

What it is for: "lookup first, then the model". Guarantees: whether a later drafter is asked depends on history
alone (whether an earlier one found a match), so every ratio rule stays exact. Every drafter is told what was
committed, whoever proposed.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from draftproof.draft.base import Drafter, DraftRequest, Proposal
from draftproof.errors import InvalidValue


class ChainDrafter:
    """Asks `drafters` in order."""

    def __init__(self, drafters: Seq[Drafter]) -> None:
        if not drafters:
            raise InvalidValue("an empty chain of drafters", "name at least one")
        self.drafters = tuple(drafters)
        self.name = "+".join(d.name for d in drafters)

    def open(self, id: int) -> None:
        for drafter in self.drafters:
            drafter.open(id)

    def close(self, id: int) -> None:
        for drafter in self.drafters:
            drafter.close(id)

    def commit(self, id: int, tokens: Seq[int]) -> None:
        for drafter in self.drafters:
            drafter.commit(id, tokens)

    def propose(self, requests: Seq[DraftRequest]) -> list[Proposal]:
        found: list[Proposal] = [Proposal(drafter=self.name)] * len(requests)
        open_places = list(range(len(requests)))
        for drafter in self.drafters:
            if not open_places:
                break
            answers = drafter.propose([requests[i] for i in open_places])
            for i, answer in zip(open_places, answers, strict=True):
                found[i] = answer
            open_places = [i for i in open_places if not found[i].tokens]
        return found
