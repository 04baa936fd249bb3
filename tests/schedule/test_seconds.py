"""What schedules believe of seconds: means and lines, unmoved by a hiccup, moved by what stays."""

from __future__ import annotations

import pytest

from draftproof.draft.base import Proposal
from draftproof.schedule.adaptive import AdaptiveSchedule
from draftproof.schedule.base import RoundRecord, Slot
from draftproof.schedule.costs import CostCurve
from draftproof.schedule.prefix import PrefixSchedule
from draftproof.schedule.seconds import RARE, DraftSeconds, RestSeconds, Seconds

POINTS = {1: 6.8e-3, 2: 6.9e-3, 3: 7.1e-3, 4: 7.7e-3, 9: 9.2e-3}
SWITCH = 4.5e-3
PAUSE = 0.08  # seconds that a first call or a busy machine takes more


def test_the_cost_of_a_draft_is_the_line_through_what_was_seen() -> None:
    line = DraftSeconds()
    assert line(3) is None
    line.observe(4, 2.0)
    assert line(3) is None  # a first call says nothing
    line.observe(4, 2.0)
    assert line(0) == 0.0
    assert line(4) == pytest.approx(2.0)
    assert line(2) == pytest.approx(2.0 - 2 * 0.4 * 2.0 / 4)  # 0.6 of it believed not to depend on the length
    for i in range(300):
        tokens = 1 + i % 5
        line.observe(tokens, 1.5 + 0.25 * tokens)
    for tokens in range(1, 7):
        assert line(tokens) == pytest.approx(1.5 + 0.25 * tokens, rel=0.02)
    level = DraftSeconds()
    for i in range(300):
        level.observe(1 + i % 5, 3.0 - 0.2 * (i % 5))  # falling by chance: never taken to go on falling
    assert level(9) == pytest.approx(level(1), rel=1e-6)


def test_the_slope_outlives_rounds_that_say_nothing_of_it_and_the_level_does_not() -> None:
    """Blocks all alike for long, on a machine that has become slower: no return to what was believed at first."""
    line = DraftSeconds()
    line.observe(4, 1.0)
    for i in range(8):
        line.observe(5 - 2 * (i % 2), 1.5 + 0.05 * (5 - 2 * (i % 2)))
    before = line.slope
    assert before == pytest.approx(0.05, rel=0.2)
    for _ in range(2000):
        line.observe(4, 3.0)
    assert line(4) == line.mean == pytest.approx(3.0)
    assert line.slope == pytest.approx(before, rel=0.5)  # what it was believed to be is 0.3 here
    assert (line(2) or 0) == pytest.approx(3.0 - 2 * line.slope)


def test_an_average_follows_what_stays_and_not_what_passes() -> None:
    average = Seconds()
    assert average.value is None
    average.observe(40.0)  # a first call that compiles
    assert average.value is None
    average.observe(1.0)
    assert average.value == 1.0
    for _ in range(3):
        average.observe(30.0)
        assert average.value == pytest.approx(1.0)
        for _ in range(RARE):
            average.observe(1.0)
    for i in range(60):
        average.observe(30.0)
        if i == 1:
            assert average.value > 3.5  # the second one in a row is believed
    assert average.value == pytest.approx(30.0, rel=0.01)


def test_what_takes_long_every_few_rounds_counts_in_full() -> None:
    """A chain of drafters: three cheap rounds, then one that asks the model. The mean is 10, and so is the belief."""
    average, line = Seconds(), DraftSeconds()
    seen, drawn = [], []
    for i in range(400):
        average.observe(37.0 if i % 4 == 3 else 1.0)
        line.observe(4, 37.0 if i % 4 == 3 else 1.0)
        seen.append(average.value or 0.0)
        drawn.append(line(4) or 0.0)
    assert sum(seen[-40:]) / 40 == pytest.approx(10.0, rel=0.02)
    assert sum(drawn[-40:]) / 40 == pytest.approx(10.0, rel=0.02)


def test_a_line_is_not_moved_by_a_hiccup() -> None:
    line = DraftSeconds()
    line.observe(3, 60.0)
    line.observe(3, 2.0)
    assert line(3) == pytest.approx(2.0)
    for i in range(40):
        line.observe(1 + i % 5, 1.5 + 0.25 * (1 + i % 5))
    before = [line(n) for n in range(1, 6)]
    line.observe(3, 60.0)
    assert [line(n) for n in range(1, 6)] == before
    line.observe(3, 60.0)
    assert (line(3) or 0) > 4


def test_a_given_cost_is_no_first_call() -> None:
    known = Seconds(2.0)
    known.observe(1.0)
    assert known.value == pytest.approx(1.9)
    nothing = Seconds(0.0)
    nothing.observe(1.0)
    assert nothing.value == pytest.approx(0.1)


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


@pytest.mark.parametrize("switch", [0.0, SWITCH])
@pytest.mark.parametrize("paused", [{0}, {3}, {0, 30, 60, 90}])
def test_pauses_do_not_switch_off_a_drafter_that_pays(switch: float, paused: set[int]) -> None:
    """Blocks of a drafter that is always right and takes a third of a pass; adaptive: a free one."""
    slots = [Slot(0, 50, 64, "d")]
    schedules = (
        (PrefixSchedule(CostCurve(POINTS, switch=switch), 5), 2.2e-3),
        (AdaptiveSchedule(CostCurve(POINTS, switch=switch), 5), 30e-6),
    )
    for schedule, seconds in schedules:
        admitted = []
        for i in range(120):
            (n,) = schedule.lengths(slots)
            proposal = Proposal([1] * n, [None] * n, "d", [0.6] * n) if n else Proposal(drafter="d")
            (k,) = schedule.admit(slots, [proposal])
            draft = (seconds + (PAUSE if i in paused else 0.0)) * (n > 0)
            target = CostCurve(POINTS).seconds(1 + k)
            schedule.observe(
                RoundRecord(slots, [proposal], [k], [k * (i % 2)], [[1] * (k * (i % 2) + 1)], 1 + k, target, draft, 0.0)
            )
            admitted.append(k)
        assert sum(k > 0 for k in admitted[1:]) > 100, (schedule.name, admitted)
