"""How much of a block is drafted: what was verified of late, and now and then all of it."""

from __future__ import annotations

import pytest

from draftproof.draft.base import Proposal
from draftproof.schedule.base import RoundRecord, Slot
from draftproof.schedule.costs import CostCurve
from draftproof.schedule.prefix import PrefixSchedule
from draftproof.schedule.reach import FIRST, ROUNDS, Reach
from draftproof.schedule.seconds import RestSeconds


def run(reach: Reach, rounds: int, made: list[tuple[float, float]]) -> list[int]:
    """What was drafted in so many rounds, where shorter blocks would have made these tokens in these seconds."""
    drafted = []
    for _ in range(rounds):
        drafted.append(reach.ask())
        if reach.whole:
            reach.observe(made)
        else:
            reach.passed()
    return drafted


def test_the_whole_block_is_drafted_at_first_and_then_the_length_that_made_most() -> None:
    drafted = run(Reach(5), 4 * ROUNDS, [(1.5, 7.0), (1.8, 7.2), (1.85, 7.5), (1.86, 7.7), (1.87, 7.9)])
    assert drafted[: 2 * FIRST] == [5, 3] * (FIRST - 1) + [5, 2]
    assert drafted[2 * FIRST :][: 2 * ROUNDS] == [2] * (ROUNDS - 1) + [5] + [2] * ROUNDS


def test_other_rounds_change_the_length() -> None:
    reach = Reach(3, rounds=2)
    assert run(reach, 3, [(1.5, 7.0), (1.5, 7.2), (1.5, 7.5)]) == [3, 2, 3]
    assert run(reach, 12, [(1.5, 7.0), (1.9, 7.2), (2.4, 7.5)]) == [1, 1] + [3] * 10


def test_a_drafter_of_shorter_blocks_than_were_asked_for_is_not_asked_for_more() -> None:
    assert run(Reach(8, rounds=1), 4, [(1.5, 7.0), (1.9, 7.2)]) == [8, 2, 8, 2]
    assert run(Reach(8, rounds=1), 3, []) == [8, 1, 8]
    assert Reach(0).ask() == 0


def test_a_whole_block_that_is_due_waits_until_it_can_be_afforded() -> None:
    reach = Reach(5, rounds=2)
    made = [(1.5, 7.0), (1.8, 7.2), (1.85, 7.5), (1.86, 7.7), (1.87, 7.9)]
    run(reach, 3, made)
    assert [reach.ask(afford=False) or reach.passed() for _ in range(5)] == [2] * 5
    for _ in range(5):
        reach.passed()
    assert reach.ask(afford=False) == 2
    assert not reach.whole
    assert reach.ask() == 5
    assert reach.whole


def test_the_prefix_schedule_asks_for_what_its_past_confidences_were_worth() -> None:
    schedule = PrefixSchedule(CostCurve({1: 10.0, 6: 15.0}, refine=False), 5, draft_seconds=0.5, reach=1)
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
