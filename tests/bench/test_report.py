"""The report: JSON that holds everything, tables, Markdown, plots."""

import dataclasses
import io
import json
from pathlib import Path

import pytest
from bench_kit import CURVE, SIZE, FakeClock, ScriptedMode, lookup, parts, plain, seconds
from rich.console import Console

from draftproof.bench import plots
from draftproof.bench.peers import PeerStatus
from draftproof.bench.report import Machine, Report, brief, markdown, notes, tables
from draftproof.bench.run import RunOptions, run
from draftproof.bench.workloads import Workload
from draftproof.errors import InvalidValue, MissingExtra
from draftproof.schedule.costs import CostCurve

QUIET = Machine("a processor x2", "Linux", "3.11", {"numpy": "2.0"}, load=0.1)
PROMPT = " ".join(str(i % SIZE) for i in range(SIZE + 2))


@pytest.fixture(scope="module")
def report() -> Report:
    p = parts(FakeClock())
    peer = ScriptedMode("x plain", [seconds(200.0)], [], baseline="x plain")
    options = RunOptions(workloads=(Workload("count", (PROMPT,)),), max_tokens=21, repeats=2)
    groups = run(
        options,
        [plain(p), lookup(p), peer],
        lambda text: [int(word) for word in text.split()],
        lambda: CostCurve(CURVE, refine=False),
    )
    missing = PeerStatus("transformers", "missing", "not installed; pip install transformers")
    return Report(QUIET, "counter", {"max_tokens": 21}, CURVE, tuple(groups), (missing,))


def test_the_json_has_the_promised_shape(report: Report):
    data = json.loads(json.dumps(report.to_json()))
    assert data["schema"] == "draftproof.bench/1"
    assert set(data) == {
        "schema",
        "version",
        "machine",
        "model",
        "settings",
        "cost_curve_seconds",
        "results",
        "peers",
    }
    assert data["machine"]["busy"] is False
    assert data["peers"] == [
        {"name": "transformers", "status": "missing", "detail": "not installed; pip install transformers"}
    ]
    assert [(g["workload"], g["temperature"]) for g in data["results"]] == [("count", 0.0), ("count", 1.0)]
    group = data["results"][0]
    assert group["best_peer"] == "x plain"
    assert set(group["against_best_peer"]) == {"plain", "lookup fixed 4"}
    mode = {m["name"]: m for m in group["modes"]}["lookup fixed 4"]
    assert set(mode["tokens_per_second"]) == {"median", "low", "high", "count"}
    assert mode["tokens_per_second"]["count"] == 2
    assert mode["acceptance_by_position"] == [1.0] * 4
    for name in ("speedup", "efficiency", "outside"):
        assert mode[name]["median"] is not None
    assert mode["predicted_leviathan"] > mode["predicted_curve"] > 1


def test_a_figure_that_does_not_exist_is_null_and_not_zero(report: Report):
    peer = report.to_json()["results"][0]["modes"][2]
    for name in ("efficiency", "outside", "tokens_per_round", "acceptance_rate", "predicted_curve"):
        assert peer[name] is None


def test_the_tables_show_every_mode_and_only_columns_that_apply(report: Report):
    console = Console(width=160, record=True, file=io.StringIO())
    for table in tables(report):
        console.print(table)
    text = console.export_text()
    assert "count, T = 0, 1 prompts" in text
    for word in ("plain", "lookup", "x plain", "tokens/round", "100 100 100 100", "x best peer", "predicted"):
        assert word in text
    alone = dataclasses.replace(
        report, groups=tuple(dataclasses.replace(g, against_best_peer={}) for g in report.groups)
    )
    assert all("x best peer" not in [c.header for c in t.columns] for t in tables(alone))


def test_missing_peers_and_busy_machines_are_named(report: Report):
    assert notes(report) == ["transformers missing: not installed; pip install transformers"]
    busy = dataclasses.replace(report, machine=dataclasses.replace(QUIET, load=1.5))
    assert "busy" in notes(busy)[0]
    assert "1.50 runnable processes per core" in notes(busy)[0]
    assert busy.to_json()["machine"]["busy"] is True


def test_the_markdown_table_has_one_line_for_each_mode_with_equal_columns(report: Report):
    lines = markdown(report).splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) == 2 + 2 * 3
    assert {line.count("|") for line in rows} == {11}
    assert "Transformers missing" in markdown(report)


def test_the_brief_table_has_one_line_for_each_workload_and_ratios_to_our_own_plain(report: Report):
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in brief(report).splitlines() if "|" in line]
    assert rows[0] == ["Workload", "T", "plain, tokens/s", "lookup fixed 4", "best other program"]
    assert len(rows) == 2 + 2
    for group, row in zip(report.groups, rows[2:], strict=True):
        ours, drafted, peer = (mode.tokens_per_second for mode in group.modes)
        assert ours is not None
        assert drafted is not None
        assert peer is not None
        assert row[2] == f"{ours.median:.1f}"
        assert float(row[3]) == pytest.approx(drafted.median / ours.median, abs=0.005)
        assert row[4] == f"{peer.median / ours.median:.2f} (x plain)"


def test_this_machine_can_be_described():
    here = Machine.here()
    assert here.libraries["numpy"]
    assert here.processor


@pytest.mark.parametrize(("ending", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_plots_are_written_in_both_formats(report: Report, tmp_path: Path, ending: str, start: bytes):
    pytest.importorskip("matplotlib")
    file = tmp_path / f"bench.{ending}"
    plots.save(report, file)
    assert file.read_bytes().startswith(start)
    if ending == "svg":
        assert "count" in file.read_text(encoding="utf-8")


def test_a_plot_that_cannot_be_written_is_refused_first(tmp_path: Path):
    with pytest.raises(InvalidValue, match=r"\.png or \.svg"):
        plots.check(tmp_path / "bench.pdf")
    with pytest.raises(InvalidValue, match="no such folder"):
        plots.check(tmp_path / "none" / "bench.png")


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match=r"draftproof\[bench\]"):
        plots.check(tmp_path / "bench.png")
