"""The cost curve: shape, refinement, files."""

import json

import pytest

from draftproof.errors import InvalidValue
from draftproof.proof.toys import toy_target
from draftproof.schedule import curves
from draftproof.schedule.costs import DRIFT, STEADY, CostCurve, measure


def test_between_points_linear_and_beyond_them_the_last_slope():
    curve = CostCurve({1: 1.0, 3: 2.0, 5: 2.0, 9: 6.0})
    assert [curve.seconds(r) for r in (1, 2, 3, 4, 5, 7, 9, 11)] == [1, 1.5, 2, 2, 2, 4, 6, 8]


def test_noise_that_makes_more_rows_cheaper_is_levelled():
    assert list(CostCurve({1: 2.0, 2: 1.5, 4: 3.0}).points.values()) == [2.0, 2.0, 3.0]


@pytest.mark.parametrize("points", [{}, {0: 1.0}, {1: 0.0}, {1: -1.0}])
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


def test_prompts_are_not_rounds():
    curve = CostCurve({1: 1.0, 4: 2.0})
    curve.observe(500, 500, 100.0)
    assert curve.seconds(4, 500) == 2.0


def test_a_curve_disproved_by_many_rounds_in_a_row_is_stale():
    curve = CostCurve({1: 1.0, 4: 2.0})
    for _ in range(STEADY - 1):
        curve.observe(1, 10, 1.0)
    assert not curve.stale
    # A row count whose cost was measured under load: it disagrees each time, while the others agree on the scale.
    for _ in range(STEADY):
        curve._scale.clear()
        curve.observe(4, 10, 2.0 * (1 + DRIFT) * 1.1)
    assert curve.stale


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
    with pytest.raises(InvalidValue, match="switch"):
        CostCurve({1: 1.0}, switch=-1.0)


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
