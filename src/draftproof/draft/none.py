"""The drafter that never proposes: plain decoding through the same engine."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from draftproof.draft.base import DraftRequest, Proposal, StatelessDrafter


class NoDrafter(StatelessDrafter):
    """Every proposal is empty."""

    name = "none"

    def propose(self, requests: Seq[DraftRequest]) -> list[Proposal]:
        return [Proposal(drafter=self.name)] * len(requests)
