"""Rounds learnt from together: each once, in order, the first ones at once; and what that changes in schedules."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import pytest

from draftproof.draft.base import Proposal
from draftproof.errors import InvalidValue
from draftproof.schedule.adaptive import AdaptiveSchedule
from draftproof.schedule.base import RoundRecord, Schedule, Slot, thresholds_of
from draftproof.schedule.costs import CostCurve
from draftproof.schedule.later import Later
from draftproof.schedule.prefix import PrefixSchedule

SLOTS = [Slot(0, 100, 50, "d")]


def test_the_first_rounds_are_learnt_from_at_once_and_later_ones_together_each_once_and_in_order() -> None:
    later, learnt = Later[int](3, 4), []
    for i in range(15):
        later.append(i)
        if later.due(requests=1):
            learnt.append(later.take())
    assert learnt == [[0], [1], [2], [3, 4, 5, 6], [7, 8, 9, 10], [11, 12, 13, 14]]
    assert later.take() == []


@pytest.mark.parametrize("bad", [{"at_once": -1}, {"together": 0}])
def test_no_round_would_be_learnt_from_otherwise(bad: dict[str, int]) -> None:
    with pytest.raises(InvalidValue, match=r"at_once=.*together="):
        Later[int](**bad)


def _play(schedule: Schedule, rounds: int, accepted: Seq[int]) -> list[tuple[int, int]]:
    """Rounds of 10 s a pass and 2 s of drafting, whose blocks promise a half at each position; what was drafted and
    verified in each.
    """
    seen = []
    for i in range(rounds):
        thresholds_of(schedule, SLOTS)
        n = schedule.lengths(SLOTS)[0]
        proposal = Proposal([0] * n, [None] * n, "d", [0.5] * n) if n else Proposal(drafter="d")
        (k,) = schedule.admit(SLOTS, [proposal])
        came = min(k, accepted[i % len(accepted)])
        drafting = (2 + 0.1 * n) * (n > 0)
        schedule.observe(RoundRecord(SLOTS, [proposal], [k], [came], [[0] * (came + 1)], 1 + k, 10.0, drafting, 0.2))
        seen.append((n, k))
    schedule.forget(0)
    return seen


def _adaptive(at_once: int, together: int) -> AdaptiveSchedule:
    return AdaptiveSchedule(CostCurve({1: 10.0, 5: 10.2}), 4, at_once=at_once, together=together)


def _prefix(at_once: int, together: int) -> PrefixSchedule:
    return PrefixSchedule(CostCurve({1: 10.0, 5: 10.2}), 4, evidence=0, at_once=at_once, together=together)


@pytest.mark.parametrize("make", [_adaptive, _prefix])
def test_a_request_that_leaves_has_been_learnt_from_to_its_last_round(make: object) -> None:
    """The same rounds, learnt from one by one, seven at a time, and all at the end."""
    known = []
    for at_once, together in ((100, 8), (0, 7), (0, 50)):
        schedule = make(at_once, together)  # type: ignore[operator]
        schedule.lengths(SLOTS)
        for i in range(20):
            proposal = Proposal([0] * 4, [None] * 4, "d", [0.5] * 4)
            came, seconds = [4, 2, 0, 3][i % 4], 10 + 0.1 * (i % 3)
            emitted = [[0] * (came + 1)]
            schedule.observe(RoundRecord(SLOTS, [proposal], [4], [came], emitted, 5, seconds, 2 + 0.1 * (i % 5), 0.2))
        schedule.forget(0)
        accepted = schedule.acceptance.survivals("d", 0, 4)
        known.append([schedule._elapsed, schedule._drafting(3), schedule.costs.seconds(5, 100), *accepted])
    assert known[1] == pytest.approx(known[0])
    assert known[2] == pytest.approx(known[0])


@pytest.mark.parametrize("make", [_adaptive, _prefix])
def test_decisions_follow_what_was_learnt_and_are_made_anew_then(make: object) -> None:
    """Nothing is accepted any more: off within a few rounds more than it takes a schedule that learns at once."""
    off = {}
    for together in (1, 8):
        schedule = make(8, together)  # type: ignore[operator]
        _play(schedule, 100, [2, 1, 0, 1])
        seen = _play(schedule, 400, [0])
        off[together] = next(i for i in range(400) if not any(n for n, _ in seen[i : i + 8]))
    assert 0 < off[8] <= off[1] + 16


def test_thresholds_follow_what_was_learnt() -> None:
    schedule = _prefix(0, 4)
    before = schedule.thresholds(SLOTS)
    proposal = Proposal([0] * 4, [None] * 4, "d", [0.9] * 4)
    for _ in range(4):
        assert schedule.thresholds(SLOTS) == before
        schedule.observe(RoundRecord(SLOTS, [proposal], [4], [4], [[0] * 5], 5, 10.2, 3.0, 0.2))
    assert schedule.thresholds(SLOTS) != before


@pytest.mark.parametrize("make", [AdaptiveSchedule, PrefixSchedule])
def test_where_a_width_is_kept_every_round_is_learnt_from_at_once(
    make: type[AdaptiveSchedule | PrefixSchedule],
) -> None:
    schedule = make(CostCurve({1: 10.0, 5: 10.2}, switch=4.0), 4, at_once=0, together=1000)
    assert _play(schedule, 60, [4])[-1] == (4, 4)
    assert (0, 0) in _play(schedule, 800, [0])


def test_rounds_of_several_requests_do_not_wait() -> None:
    """Each holds its proposals, whose distributions may be megabytes."""
    proposal = Proposal([0], None, "d")
    record = RoundRecord([*SLOTS, *SLOTS], [proposal] * 2, [1, 1], [0, 0], [[1], [1]], 4, 1.0, 0.1, 0.0)
    for schedule in (_prefix(0, 3), _adaptive(0, 3)):
        schedule.observe(record)
        assert schedule._later.take() == []
