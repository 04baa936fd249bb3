"""How much of a block is drafted: what was verified of late, and now and then all of it."""

from __future__ import annotations

import pytest

from draftproof.draft.base import Proposal
from draftproof.schedule.base import RoundRecord, Slot
from draftproof.schedule.costs import CostCurve
from draftproof.schedule.prefix import PrefixSchedule
from draftproof.schedule.reach import ROUNDS, Reach
from draftproof.schedule.seconds import RestSeconds


def test_the_whole_block_is_drafted_until_enough_was_seen_and_then_what_was_verified_of_late() -> None:
    reach, drafted = Reach(5), []
    for _ in range(3 * (ROUNDS + 1)):
        drafted.append(reach.now)
        reach.observe(min(reach.now, 2))
    assert drafted == [5] * ROUNDS + [2] + [5] + [2] * ROUNDS + [5] + [2] * ROUNDS


def test_a_longer_prefix_counts_for_as_many_rounds_and_one_token_is_always_drafted() -> None:
    reach = Reach(5, rounds=4)
    for verified in (0, 0, 0, 0):
        reach.observe(verified)
    assert reach.now == 1
    for expected, verified in ((1, 0), (5, 4), (4, 0), (4, 1), (4, 0), (4, 0), (5, 0), (1, 0)):
        assert reach.now == expected
        reach.observe(verified)


def test_the_prefix_schedule_asks_for_no_more_than_that() -> None:
    schedule = PrefixSchedule(CostCurve({1: 10.0, 6: 15.0}, refine=False), 5, draft_seconds=0.0, reach=1)
    slots = [Slot(0, 10, 20, "d")]
    asked = []
    for _ in range(4):
        [length] = schedule.lengths(slots)
        asked.append(length)
        sure = [0.99, 0.99, 0.01, 0.01, 0.01][:length]
        proposal = Proposal([1] * length, drafter="d", confidence=sure)
        admitted = schedule.admit(slots, [proposal])
        schedule.observe(
            RoundRecord(slots, [proposal], admitted, admitted, [[1] * (admitted[0] + 1)], 1 + admitted[0], 0, 0, 0)
        )
    assert asked == [5, 2, 5, 2]


@pytest.mark.parametrize(("plain", "judging", "extra"), [(1.0, 1.5, 0.5), (1.0, 0.8, 0.0), (1.0, None, 0.0)])
def test_a_round_that_verifies_nothing_is_believed_to_take_what_such_rounds_took(
    plain: float, judging: float | None, extra: float
) -> None:
    rest = RestSeconds()
    assert rest(judged=True) == rest(judged=False) == 0
    for _ in range(50):
        rest.observe(plain, judged=False)
        if judging is not None:
            rest.observe(judging, judged=True)
    assert rest(judged=False) == pytest.approx(plain)
    assert rest(judged=True) == pytest.approx(plain + extra)
