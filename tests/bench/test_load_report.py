"""What a run under load is summed up to: its table, its plot, and the curve file's content."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from draftproof.bench.load_report import LoadReport, error_of_best_fixed, of_best_fixed, save_plot, table
from draftproof.bench.policies import LoadPoint
from draftproof.bench.profile import Profile
from draftproof.bench.report import Machine
from draftproof.bench.seen import Seen, token_slope
from draftproof.errors import InvalidValue


def _report(simulated: bool = True) -> LoadReport:
    points = [
        LoadPoint(policy=p, requests=n, throughput=t * n, error=e, tokens_per_round=1.5, rows_per_round=2.0 * n)
        for n in (1, 8)
        for p, t, e in (("plain", 10.0, 0.0), ("fixed 2", 16.0, 0.5), ("prefix", 20.0, None))
    ]
    profile = Profile(name="x", target_seconds={1: 1.0}, draft_seconds={1: 0.1}, acceptance=(0.5,))
    here = Machine("cpu", "Linux", "3.11", {}, None)
    return LoadReport(
        title="x", simulated=simulated, machine=here, settings={"seed": 1}, points=tuple(points), profile=profile
    )


def test_json_holds_every_figure_of_the_table() -> None:
    report = _report()
    data = json.loads(json.dumps(report.to_json()))
    assert data["simulated"] is True
    assert data["profile"]["acceptance"] == [0.5]
    last = data["points"][-1]
    assert last == {
        "policy": "prefix",
        "requests": 8,
        "tokens_per_second": 160.0,
        "tokens_per_second_error": None,
        "tokens_per_second_per_request": 20.0,
        "tokens_per_round": 1.5,
        "rows_per_round": 16.0,
        "of_best_fixed": 1.25,
        "of_best_fixed_error": None,
        "tokens_per_second_by_repeat": [],
    }
    assert of_best_fixed(report.points, report.points[0]) == pytest.approx(0.625)
    assert table(report).row_count == 6


def test_the_error_of_a_ratio_is_of_the_ratios_within_repeats() -> None:
    """A machine that becomes slower by half moves no ratio."""

    def point(policy: str, *rates: float) -> LoadPoint:
        mean = sum(rates) / len(rates)
        return LoadPoint(
            policy=policy, requests=1, throughput=mean, error=1.0, tokens_per_round=1, rows_per_round=1, rates=rates
        )

    points = [point("plain", 5.0, 4.0, 3.0), point("fixed 1", 10.0, 8.0, 5.0), point("prefix", 11.0, 8.8, 5.5)]
    assert of_best_fixed(points, points[2]) == pytest.approx(1.1)
    assert error_of_best_fixed(points, points[2]) == pytest.approx(0, abs=1e-12)
    assert error_of_best_fixed(points, points[0]) == pytest.approx(0.1 / 3)
    assert error_of_best_fixed(points[:1], point("prefix", 1.0)) is None


@pytest.mark.parametrize("name", ["a.png", "a.svg"])
def test_the_plot_is_written_and_shows_every_policy(tmp_path: Path, name: str) -> None:
    pytest.importorskip("matplotlib")
    save_plot(_report(), tmp_path / name)
    data = (tmp_path / name).read_bytes()
    assert len(data) > 5000
    if name.endswith("svg"):
        assert all(f"<!-- {policy} -->".encode() in data for policy in ("plain", "fixed 2", "prefix", "x (simulated)"))
    with pytest.raises(InvalidValue):
        save_plot(_report(), tmp_path / "a.pdf")


@pytest.mark.parametrize("bad", [{"requests": 0}, {"throughput": 0.0}, {"error": -1.0}])
def test_bad_points_are_refused(bad: dict[str, object]) -> None:
    good = {
        "policy": "x",
        "requests": 1,
        "throughput": 1.0,
        "error": 0.0,
        "tokens_per_round": 1.0,
        "rows_per_round": 1.0,
    }
    with pytest.raises(InvalidValue):
        LoadPoint(**{**good, **bad})  # type: ignore[arg-type]


def test_a_drafted_token_costs_the_slope_of_the_medians_by_length() -> None:
    seen = {n: Seen(draft_seconds=[1.0 + 0.25 * n] * 3 + [9.0]) for n in (1, 2, 4)}
    assert token_slope(seen, 1.0) == pytest.approx(0.25)
    assert token_slope(seen, 0.1) == 0.1  # five tokens cost no more than a block of five
    assert token_slope({n: Seen(draft_seconds=[2.0 - 0.1 * n]) for n in (1, 2)}, 1.0) == 0.0
    assert token_slope({2: seen[2], 3: Seen()}, 1.0) == 0.0  # one length says nothing
