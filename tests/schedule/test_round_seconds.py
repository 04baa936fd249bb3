"""Seconds of a round go to whom they belong: a drafter is not charged for what its schedule thinks about."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import pytest

from draftproof import rounds
from draftproof.draft.base import DraftRequest, Proposal, StatelessDrafter
from draftproof.engine import Engine
from draftproof.proof.toys import toy_target
from draftproof.sampling.params import SamplingParams
from draftproof.schedule.base import RoundRecord, Slot
from draftproof.schedule.fixed import FixedSchedule
from draftproof.target.base import Feed, Rows


def test_every_second_of_a_round_is_the_targets_the_drafters_or_the_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def takes(seconds: float) -> None:
        nonlocal now
        now += seconds

    class Thinking(FixedSchedule):
        def lengths(self, slots: Seq[Slot]) -> list[int]:
            takes(100.0)
            return super().lengths(slots)

        def admit(self, slots: Seq[Slot], proposals: Seq[Proposal]) -> list[int]:
            takes(10.0)
            return super().admit(slots, proposals)

        def observe(self, record: RoundRecord) -> None:
            seen.append(record)

    class Drafting(StatelessDrafter):
        name = "drafting"

        def propose(self, requests: Seq[DraftRequest]) -> list[Proposal]:
            takes(1.0)
            return [Proposal([0] * request.limit) for request in requests]

    target = toy_target(3)
    score = target.score

    def scoring(feeds: Seq[Feed]) -> list[Rows]:
        takes(1000.0)
        return score(feeds)

    seen: list[RoundRecord] = []
    monkeypatch.setattr(rounds, "perf_counter", lambda: now)
    monkeypatch.setattr(target, "score", scoring)
    engine = Engine(target, drafter=Drafting(), schedule=Thinking(2))
    engine.generate([0, 1], SamplingParams(max_tokens=4, seed=1))
    assert seen
    for record in seen:
        drafted = bool(record.proposals[0].tokens)
        assert record.draft_seconds == drafted * 1.0
        assert (record.other_seconds, record.target_seconds) == (110.0, 1000.0)
