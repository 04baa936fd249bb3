"""Seconds of a round go to whom they belong: a drafter is not charged for what its schedule thinks about, nor a block
for the rounds before it in which there was none.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import pytest

from draftproof import rounds
from draftproof.draft.base import DraftRequest, Proposal, StatelessDrafter
from draftproof.engine import Engine
from draftproof.proof.toys import toy_target
from draftproof.sampling.params import SamplingParams
from draftproof.schedule.adaptive import AdaptiveSchedule
from draftproof.schedule.base import RoundRecord, Slot
from draftproof.schedule.costs import CostCurve
from draftproof.schedule.fixed import FixedSchedule
from draftproof.schedule.prefix import PrefixSchedule
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


@pytest.mark.parametrize("schedule", [AdaptiveSchedule, PrefixSchedule])
def test_a_drafter_that_has_to_catch_up_is_not_taken_to_be_dearer(
    schedule: type[AdaptiveSchedule | PrefixSchedule],
) -> None:
    """Blocks take 2 s round after round, and up to 8 s more after a while without. Nothing is accepted, so there are
    tries now and then; what one of them took says what drafting costs at most.
    """
    costs = CostCurve({1: 10.0, 5: 10.1})
    tried, quiet, slots = schedule(costs, 3), 0, [Slot(0, 50, 50, "d")]
    seen = []
    for _ in range(3000):
        n = tried.lengths(slots)[0]
        confidence = [0.4] * n
        proposal = Proposal([0] * n, [object()] * n, "d", confidence) if n else Proposal(drafter="d")  # type: ignore[list-item]
        (k,) = tried.admit(slots, [proposal])
        seconds = (2.0 + min(quiet, 8)) if n else 0.0
        quiet = 0 if n else quiet + 1
        record = RoundRecord(slots, [proposal], [k], [0], [[0]], 1 + k, 10.0 + 0.025 * k, seconds, 0.0)
        tried.observe(record)
        seen.append(n > 0)
    assert not all(seen[1000:])
    assert any(seen[1000:])
    assert tried._drafting(3) == pytest.approx(2.0, rel=0.05)
