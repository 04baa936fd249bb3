"""The cost curve: shape, refinement, files."""

import json

import pytest

from draftproof.draft.base import Proposal
from draftproof.errors import InvalidValue
from draftproof.proof.toys import toy_target
from draftproof.registry import make_schedule
from draftproof.schedule import curves
from draftproof.schedule.base import RoundRecord, Slot
from draftproof.schedule.costs import STEADY, CostCurve, learn_pass, measure
from draftproof.schedule.renewal import REST, Renewal


def test_between_points_linear_and_beyond_them_the_last_slope():
    curve = CostCurve({1: 1.0, 3: 2.0, 5: 2.0, 9: 6.0})
    assert [curve.seconds(r) for r in (1, 2, 3, 4, 5, 7, 9, 11)] == [1, 1.5, 2, 2, 2, 4, 6, 8]


def test_a_last_point_that_came_out_low_does_not_make_further_rows_free():
    """Levelled it has no slope; the whole curve's is taken: 1.6 over 7 rows."""
    curve = CostCurve({1: 10.3, 2: 10.6, 4: 11.2, 6: 11.9, 8: 11.85})
    assert curve.seconds(8) == 11.9
    assert curve.seconds(64) == pytest.approx(11.9 + 56 * 1.6 / 7)


def test_passes_wider_than_the_curve_are_learnt_by_their_width():
    """Eight requests drafting: dear beyond 16 rows, which the curve of one request could not know."""
    curve = CostCurve({1: 10.3, 8: 12.4})

    def true(rows):
        return 10 + 0.3 * rows + max(0, rows - 16)

    for _ in range(60):
        for rows in (72, 24, 40):
            curve.observe(rows, 100, true(rows))
    assert [curve.seconds(r, 100) for r in (24, 40, 72)] == pytest.approx([true(r) for r in (24, 40, 72)])
    assert curve.seconds(56, 100) == pytest.approx((true(40) + true(72)) / 2)
    assert curve.seconds(80, 100) == pytest.approx(true(72) + 8 * 0.3)
    assert curve.seconds(8, 100) == 12.4  # what was measured stays
    for _ in range(60):
        curve.observe(32, 100, 5.0)  # a hiccup the other way: seconds never fall with rows
    seconds = [curve.seconds(r, 100) for r in range(1, 100)]
    assert seconds == sorted(seconds)
    assert not curve.stale


def test_noise_that_makes_more_rows_cheaper_is_levelled():
    assert list(CostCurve({1: 2.0, 2: 1.5, 4: 3.0}).points.values()) == [2.0, 2.0, 3.0]


@pytest.mark.parametrize("points", [{}, {0: 1.0}, {1: 0.0}, {1: -1.0}, {1: float("nan")}, {1: float("inf")}])
def test_a_senseless_curve_is_refused(points):
    with pytest.raises(InvalidValue):
        CostCurve(points)


def test_real_rounds_scale_the_curve_and_contexts_are_kept_apart():
    curve = CostCurve({1: 1.0, 4: 2.0})
    for _ in range(100):
        curve.observe(4, 100, 2.2)
        curve.observe(4, 4000, 4.0)
    assert curve.seconds(1, 100) == pytest.approx(1.1, rel=1e-3)
    assert curve.seconds(1, 4000) == pytest.approx(2.0, rel=1e-3)


def test_a_curve_asked_at_one_context_says_what_it_says_row_by_row():
    curve = CostCurve({1: 1.0, 4: 1.5, 8: 3.0})
    for rows, context, seconds in ((2, 10, 1.3), (4, 900, 4.0), (24, 10, 9.0)):
        curve.observe(rows, context, seconds)
    for context in (0, 10, 100, 900, 5000):
        at = curve.at(context)
        assert [at(rows) for rows in range(1, 40)] == [curve.seconds(rows, context) for rows in range(1, 40)]
    assert curve.at(10)(1) != curve.at(900)(1)


def test_prompts_are_not_rounds():
    curve = CostCurve({1: 1.0, 4: 2.0}, switch=0.5)
    slots = [Slot(0, 500, 8, "d"), Slot(1, 30, 8, "d")]
    curve.observe(2, 500, 1.4)  # after a change of width, this one too
    with_prompt = RoundRecord(slots, [Proposal()] * 2, [0, 0], [0, 0], [[1], [1]], 501, 100.0, 0.0, 0.0)
    after_it = RoundRecord(slots, [Proposal()] * 2, [0, 0], [0, 0], [[1], [1]], 2, 1.4, 0.0, 0.0)
    learn_pass(curve, with_prompt, 1)
    learn_pass(curve, after_it, 1)
    assert curve.seconds(2, 500) == pytest.approx(4 / 3)
    for _ in range(100):
        learn_pass(curve, after_it, 1)
    assert curve.seconds(2, 500) == pytest.approx(1.4, rel=1e-3)


@pytest.mark.parametrize("factor", [0.2, 0.5, 0.7, 1.4, 2.0, 10.0])
@pytest.mark.parametrize("rows", [1, 4])
def test_a_curve_disproved_by_many_rounds_in_a_row_is_stale(factor, rows):
    """Measured on a busy machine (or an idle one that is busy now): no round agrees, and none is off the others."""
    curve = CostCurve({1: 1.0, 4: 2.0})
    for _ in range(STEADY - 1):
        curve.observe(rows, 10, factor * curve.points[rows])
    assert not curve.stale
    curve.observe(rows, 10, factor * curve.points[rows])
    assert curve.stale
    curve.observe(rows, 10, curve.points[rows])
    assert not curve.stale


def test_what_a_long_context_costs_does_not_disprove_a_curve():
    curve = CostCurve({1: 1.0, 4: 2.0})
    for _ in range(100):
        curve.observe(1, 1000, 2.9)
        curve.observe(4, 250, 2.6)
    assert not curve.stale
    for _ in range(STEADY):
        curve.observe(1, 1000, 0.7)  # but none makes a pass cheaper
    assert curve.stale


def test_a_disproved_curve_is_measured_again_when_nobody_waits_and_not_all_the_time():
    made = []

    def again():
        made.append(CostCurve({1: 1.0}))
        return made[-1]

    wrong = CostCurve({1: 1.0})
    for _ in range(STEADY):
        wrong.observe(1, 10, 3.0)
    renewal = Renewal(again)
    renewal.join([0, 1])
    assert renewal.leave(0, wrong, 1.0) is wrong
    assert renewal.leave(1, wrong, 1.0) is made[0]
    renewal.join([2])
    assert renewal.leave(2, wrong, REST) is wrong
    assert renewal.leave(2, wrong, REST + 1.0) is made[1]
    assert renewal.leave(2, CostCurve({1: 1.0}), 1e9) is not made[1]
    assert Renewal(None).leave(0, wrong, 1.0) is wrong


def test_real_rounds_teach_what_rows_cost_beside_others():
    """Timed when nine rows took 1.1 times what five do; they take 1.3 times, on a machine of changing speed."""
    curve = CostCurve({1: 5.0, 5: 5.0, 6: 5.5, 9: 5.5})
    for i in range(300):
        slow = 1.0 if i % 100 < 50 else 1.25
        rows = 9 if i % 3 == 2 else 5
        curve.observe(rows, 100, slow * (6.5 if rows == 9 else 5.0))
    assert curve.seconds(9, 100) / curve.seconds(5, 100) == pytest.approx(1.3, rel=0.03)
    seconds = [curve.seconds(r, 100) for r in range(1, 12)]
    assert seconds == sorted(seconds)


def test_a_phase_of_the_machine_and_a_hiccup_say_nothing_of_single_rows():
    curve = CostCurve({1: 5.0, 5: 5.0, 6: 5.5, 9: 5.5})
    for i in range(400):
        curve.observe(5, 100, 5.0 if i % 100 < 50 else 7.0)
    assert curve.seconds(9, 100) / curve.seconds(5, 100) == pytest.approx(1.1)
    curve.observe(9, 100, 500.0)
    assert curve.seconds(9, 100) / curve.seconds(5, 100) < 1.15
    beside = curve.seconds(9, 100) / curve.seconds(5, 100)
    curve.other_pass()  # a prompt was read: another context, perhaps another request
    curve.observe(5, 100, 50.0)
    assert curve.seconds(9, 100) / curve.seconds(5, 100) == pytest.approx(beside)


def test_unrefined_curves_do_not_learn():
    curve = CostCurve({1: 1.0}, refine=False)
    curve.observe(1, 10, 9.0)
    assert curve.seconds(1, 10) == 1.0


class SlowClock:
    """A clock that advances by a fixed amount each time it is read, and by the rows of each pass."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_measuring_recovers_the_targets_own_costs_and_leaves_no_trace():
    clock = SlowClock()
    target = toy_target(3)
    plain = target.score

    def score(feeds):
        clock.now += 0.010 + 0.002 * sum(len(f.tokens) for f in feeds)
        return plain(feeds)

    target.score = score
    curve = measure(target, longest=4, budget=0.5, clock=clock)
    assert curve.points == pytest.approx({r: 0.010 + 0.002 * r for r in (1, 2, 3, 4, 5)})
    assert target._caches == {}
    assert clock.now < 1.0


def test_what_a_change_of_width_costs_is_measured_apart_from_the_widths():
    clock = SlowClock()
    target = toy_target(3)
    plain, last = target.score, [0]

    def score(feeds):
        tokens = sum(len(f.tokens) for f in feeds)
        clock.now += 0.010 + 0.002 * tokens + 0.007 * (tokens != last[0])
        last[0] = tokens
        return plain(feeds)

    target.score = score
    curve = measure(target, longest=4, budget=0.5, clock=clock)
    assert curve.points == pytest.approx({r: 0.010 + 0.002 * r for r in (1, 2, 3, 4, 5)})
    assert curve.switch == pytest.approx(0.007)
    assert measure(target, longest=0, budget=0.1, clock=clock).switch == pytest.approx(0.007)


def test_a_pass_after_a_change_of_width_does_not_refine_the_curve():
    curve = CostCurve({1: 1.0, 4: 2.0}, switch=1.0)
    curve.observe(4, 100, 2.2)
    curve.observe(1, 100, 2.2)
    assert curve.seconds(4, 100) == 2.0
    for _ in range(100):
        curve.observe(1, 100, 1.1)
    assert curve.seconds(4, 100) == pytest.approx(2.2, rel=1e-3)
    for bad in (-1.0, float("inf"), float("nan")):
        with pytest.raises(InvalidValue, match="switch"):
            CostCurve({1: 1.0}, switch=bad)


def test_a_kept_curve_is_read_back_and_a_damaged_one_measured_again(tmp_path, monkeypatch):
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path))
    target = toy_target(3)
    first = curves.load_or_measure(target, "table", 2)
    file = curves.curve_file(target, "table", 2)
    assert curves.load_or_measure(target, "table", 2).points == first.points
    curves.write(file, CostCurve({1: 1.0}, switch=0.5))
    assert curves.read(file).switch == 0.5
    curves.write(file, first)
    assert curves.curve_file(target, "other", 2) != file
    for damage in (
        "",
        "{",
        json.dumps({"seconds_by_rows": {"1": 1.0}}),
        json.dumps({"seconds_by_rows": {"1": -1}}),
        json.dumps([]),
    ):
        file.write_text(damage)
        assert curves.read(file) is None
        assert curves.load_or_measure(target, "table", 2).points
        assert curves.read(file) is not None


@pytest.mark.parametrize("longest", [0, 1, 6, 8, 20])
def test_the_widest_round_of_a_draft_length_is_measured(longest):
    curve = measure(toy_target(3), longest=longest, budget=0.01)
    assert max(curve.points) == max(longest + 1, 2)


def test_a_slow_target_is_measured_with_fewer_passes():
    clock, passes = SlowClock(), []
    target = toy_target(3)
    plain = target.score

    def score(feeds):
        clock.now += 0.3
        passes.append(len(feeds[0].tokens))
        return plain(feeds)

    target.score = score
    measure(target, longest=8, budget=1.0, clock=clock)
    assert len(passes) == 1 + 3 * 8  # 1..6, 8 and 9 rows: a first call, a change, and one more


@pytest.mark.parametrize("name", ["adaptive", "prefix", "prefix-budget"])
def test_a_curve_that_rounds_disproved_is_replaced_in_its_file_too(tmp_path, monkeypatch, name):
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path))
    target = toy_target(3)
    file = curves.curve_file(target, "table", 2)
    curves.write(file, CostCurve({1: 50.0, 3: 60.0}))
    schedule = make_schedule(name, 2, target, "table")
    slots = [Slot(0, 10, 8, "d")]
    for _ in range(STEADY):
        schedule.lengths(slots)
        schedule.admit(slots, [Proposal()])
        schedule.observe(RoundRecord(slots, [Proposal()], [0], [0], [[1]], 1, 1e-5, 0.0, 0.0))
    assert schedule.costs.seconds(1) > 0.1
    schedule.forget(0)
    assert schedule.costs.seconds(1) < 0.1
    assert curves.read(file).points == schedule.costs.points
