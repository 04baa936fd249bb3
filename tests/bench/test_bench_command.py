"""`draftproof bench` from end to end, on a table target instead of a model."""

import json
from pathlib import Path

import pytest
import typer
from bench_kit import SIZE, ClockedTarget, FakeClock
from typer.testing import CliRunner

from draftproof.cli import bench
from draftproof.errors import DraftproofError
from draftproof.text import IdTokenizer


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "cache"))
    loaded = []

    def load_target(name, options, *, progress):
        loaded.append(name)
        return ClockedTarget(FakeClock()), IdTokenizer(SIZE)

    monkeypatch.setattr("draftproof.load.load_target", load_target)
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(bench.bench)
    prompts = tmp_path / "count.jsonl"
    prompts.write_text(json.dumps({"prompt": " ".join(str(i % SIZE) for i in range(SIZE + 2))}))

    def call(*arguments: str):
        return CliRunner().invoke(app, [*arguments, "--prompts", str(prompts), "-r", "1"]), loaded

    return call


def test_json_is_all_there_is_on_standard_output(run):
    result, _ = run("--json", "--max-tokens", "12", "--fixed", "2", "--draft", "lookup", "--draft", "wrong")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert [g["workload"] for g in data["results"]] == ["count", "count"]
    modes = [m["name"] for m in data["results"][0]["modes"]]
    assert modes == ["plain", "lookup", "lookup fixed 2", "wrong", "wrong fixed 2"]
    assert data["settings"]["max_tokens"] == 12
    by_name = {m["name"]: m for m in data["results"][0]["modes"]}
    assert by_name["lookup fixed 2"]["tokens_per_round"] > 2
    assert by_name["wrong fixed 2"]["acceptance_rate"] < 0.3  # the counter says the "wrong" token once a round


def test_a_drafter_that_reads_hidden_states_gets_a_target_that_keeps_them(run, monkeypatch):
    asked = []

    def load_target_for(draft, model, options, progress):
        asked.append((draft, model))
        raise DraftproofError("loaded", "no model here")

    monkeypatch.setattr(bench, "load_target_for", load_target_for)
    result, loaded = run("--draft", "lookup", "--draft", "dspark:folder")
    assert "loaded" in str(result.exception)
    assert asked == [("dspark:folder", "smollm2")]
    run("--draft", "dspark:folder", "--draft", "lookup+dspark:folder")  # one checkpoint, read by two
    assert len(asked) == 2
    assert loaded == []


def test_the_table_is_not_cut_where_there_is_no_terminal(run):
    result, _ = run("--max-tokens", "12")
    assert result.exit_code == 0, result.output
    assert "…" not in result.stdout
    assert "efficiency" in result.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("--draft", "nothing"),
        ("--draft", "dspark:a", "--draft", "lookup+dspark:b"),
        ("--fixed", "99"),
        ("--temperature", "-1"),
        ("--max-tokens", "1"),
        ("--limit", "0"),
        ("--peer", "vllm"),
        ("--peer-python", "transformers"),
        ("--plot", "here.pdf"),
        ("nonsense",),
    ],
)
def test_what_can_be_refused_is_refused_before_a_model_is_loaded(run, arguments):
    result, loaded = run(*arguments)
    assert isinstance(result.exception, DraftproofError), result.output
    assert loaded == []
