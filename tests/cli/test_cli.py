"""The command line, in process, on a toy engine: output, exit codes, refusals."""

import json
import sys

import pytest

from draftproof.cli import generate as generate_command
from draftproof.cli.main import main
from draftproof.draft.lookup import LookupDrafter
from draftproof.engine import Engine
from draftproof.proof.toys import toy_target
from draftproof.schedule.fixed import FixedSchedule
from draftproof.text import IdTokenizer
from draftproof.verify import token as token_rule


@pytest.fixture
def run(monkeypatch, capsys):
    """run("generate", "0 1 0", ...) -> (exit code, stdout, stderr)."""

    def runner(*arguments):
        monkeypatch.setattr(sys, "argv", ["draftproof", *arguments])
        try:
            main()
            code = 0
        except SystemExit as stopped:
            code = stopped.code or 0
        out = capsys.readouterr()
        return code, out.out, out.err

    return runner


@pytest.fixture
def toy(monkeypatch):
    """Replaces loading by a toy engine; returns the arguments load_engine was called with."""
    called = {}

    def load(model, **arguments):
        called.update(arguments, model=model)
        return Engine(toy_target(4), drafter=LookupDrafter(2, 1), tokenizer=IdTokenizer(4), schedule=FixedSchedule(3))

    monkeypatch.setattr(generate_command, "load_engine", load)
    return called


def test_json_has_the_documented_names_and_nothing_else_on_stdout(run, toy):
    code, out, _ = run("generate", "0 1 0", "--json", "--max-tokens", "12", "--seed", "3", "--ignore-eos", "--no-chat")
    assert code == 0
    result = json.loads(out)
    assert {"text", "token_ids", "finish_reason", "usage", "speculation", "timing"} <= set(result)
    assert {
        "rounds", "drafted", "accepted", "emitted", "tokens_per_round", "acceptance_rate", "acceptance_by_position",
        "drafter", "verifier",
    } <= set(result["speculation"])  # fmt: skip
    assert set(result["timing"]) == {"total", "target", "draft", "other", "load"}
    assert result["usage"] == {"prompt_tokens": 3, "completion_tokens": 12, "total_tokens": 15}
    assert result["speculation"]["emitted"] == len(result["token_ids"]) == 12
    assert result["timing"]["total"] == pytest.approx(sum(result["timing"][k] for k in ("target", "draft", "other")))


def test_the_text_goes_to_stdout_and_the_summary_to_stderr(run, toy):
    code, out, err = run("generate", "0 1 0", "--max-tokens", "5", "--seed", "3", "--ignore-eos", "--no-chat")
    assert code == 0
    assert len(out.split()) == 5
    assert "rounds" in err
    assert "rounds" not in out


def test_the_same_seed_prints_the_same_answer(run, toy):
    answers = {run("generate", "0 1 0", "--max-tokens", "8", "--seed", "9", "--no-chat")[1] for _ in range(2)}
    assert len(answers) == 1


def test_several_answers_are_numbered_and_all_in_the_json(run, toy):
    arguments = ("generate", "0 1 0", "-n", "3", "--max-tokens", "6", "--seed", "3", "--ignore-eos", "--no-chat")
    code, out, _ = run(*arguments)
    assert code == 0
    assert [line[:2] for line in out.splitlines() if line[1:2] == "."] == ["1.", "2.", "3."]
    result = json.loads(run(*arguments, "--json")[1])
    texts = [result["text"], *(a["text"] for a in result["alternatives"])]
    assert len(texts) == 3
    assert len(set(texts)) > 1


def test_a_trace_is_written_as_a_page_or_as_lines_and_one_becomes_the_other(run, toy, tmp_path):
    arguments = ("generate", "0 1 0", "--max-tokens", "6", "--seed", "3", "--ignore-eos", "--no-chat")
    lines, page, again = (tmp_path / name for name in ("t.jsonl", "t.html", "again.html"))
    assert run(*arguments, "--trace", str(lines))[0] == 0
    assert run(*arguments, "--trace", str(page))[0] == 0
    assert run("trace", str(lines), "--html", str(again))[0] == 0
    assert "<html" in page.read_text()
    assert "<html" in again.read_text()
    code, out, err = run(*arguments, "--trace", str(tmp_path / "t.txt"))
    assert (code, out) == (2, "")
    assert "ends in .html or .jsonl" in err


def test_explain_writes_its_page(run, tmp_path):
    page = tmp_path / "explain.html"
    assert run("explain", "--html", str(page))[0] == 0
    assert len(page.read_bytes()) < 500_000


def test_options_reach_the_engine(run, toy):
    parts = ("--model", "m", "--draft", "suffix", "--verifier", "block", "--draft-length", "5", "--schedule", "fixed")
    run("generate", "0 1 0", *parts, "--no-chat", "--threads", "1", "--max-tokens", "2")
    assert (toy["model"], toy["draft"], toy["verifier"], toy["draft_length"]) == ("m", "suffix", "block", 5)
    assert (toy["schedule"], toy["options"].threads) == ("fixed", 1)


@pytest.mark.parametrize(
    ("arguments", "narrow"), [([], None), (["--narrow", "0"], ()), (["--narrow", "1", "--narrow", "4"], (1, 4))]
)
def test_narrow_passes_reach_the_engine(run, toy, arguments, narrow):
    run("generate", "0 1 0", "--no-chat", "--max-tokens", "2", *arguments)
    assert toy["options"].narrow == narrow


def test_ctrl_c_ends_cleanly_with_what_was_generated(run, toy, monkeypatch):
    whole = Engine.round

    def interrupted(engine):
        if any(s.emitted >= 4 for s in engine.live.values()):
            raise KeyboardInterrupt
        return whole(engine)

    monkeypatch.setattr(Engine, "round", interrupted)
    code, out, _ = run("generate", "0 1 0", "--json", "--max-tokens", "50", "--seed", "1", "--ignore-eos", "--no-chat")
    assert code == 130
    result = json.loads(out)
    assert result["finish_reason"] == "cancelled"
    assert 4 <= len(result["token_ids"]) < 50
    assert result["usage"]["completion_tokens"] == len(result["token_ids"])


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--temperature", "-1"], "temperature"),
        (["--temperature", "nan"], "temperature"),
        (["--max-tokens", "0"], "max_tokens"),
        (["--seed", "-1"], "seed"),
        (["--top-p", "0"], "top_p"),
        (["--logit-bias", "x"], "--logit-bias x"),
        (["--stop", ""], "stop"),
        (["--min-tokens", "9", "--max-tokens", "3"], "min_tokens"),
        (["--json-schema", "@nowhere.json"], "nowhere.json"),
        (["--backend", "abacus"], "abacus"),
        (["--threads", "0"], "threads"),
    ],
)
def test_a_bad_value_is_one_line_with_its_name_and_exit_code_2(run, toy, arguments, what):
    code, out, err = run("generate", "0 1 0", "--no-chat", *arguments)
    assert code == 2
    assert out == ""
    assert what in err
    assert err.startswith("error: ")
    assert " - " in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--draft", "lokup"], "did you mean 'lookup'"),
        (["--verifier", "tokens"], "did you mean 'token'"),
        (["--schedule", "fix"], "known: adaptive, fixed, prefix, prefix-budget"),
        (["--draft-length", "65"], "0 to 64"),
        (["--model", "no-such-model"], "known: gemma3-270m, smollm2"),
    ],
)
def test_unknown_names_list_the_known_ones_before_anything_is_loaded(run, arguments, what, tmp_path, monkeypatch):
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path))
    monkeypatch.setattr("draftproof.models.store.obtain", None)  # loading anything would fail in another way
    code, out, err = run("generate", "hello", *arguments)
    assert (code, out) == (2, "")
    assert what in err
    assert len(err.strip().splitlines()) == 1


def test_a_model_drafter_without_its_model_is_told_how_to_write_it(run, monkeypatch):
    monkeypatch.setattr("draftproof.load.load_target", lambda *a, **k: (toy_target(4), IdTokenizer(4)))
    monkeypatch.setattr("draftproof.load.make_schedule", lambda *a: FixedSchedule(1))
    code, _, err = run("generate", "hello", "--draft", "model")
    assert code == 2
    assert "model:ID" in err


@pytest.mark.parametrize("prompt", ["", "   "])
def test_an_empty_prompt_is_refused(run, toy, prompt):
    code, _, err = run("generate", prompt)
    assert code == 2
    assert "empty" in err


def test_prove_reports_exact_zero_and_json(run):
    code, out, _ = run("prove", "--only", "block x mixed x fixed: vocabulary 2", "--jobs", "1", "--json")
    report = json.loads(out)
    assert code == 0
    assert report["proved"] is True
    assert {c["error"] for c in report["cases"]} == {"0"}
    assert len(report["cases"]) == 5


def test_prove_fails_with_the_first_differing_answer_when_the_rule_is_broken(run, monkeypatch):
    monkeypatch.setattr(token_rule, "residual", lambda p, q: p)  # the replacement is drawn from p
    code, out, _ = run("prove", "--only", "token x model x fixed: vocabulary 3, draft 1", "--jobs", "1")
    assert code == 1
    assert "first differing answer" in out
    assert "engine" in out
    assert "target" in out
    code, out, _ = run("prove", "--only", "token x model x fixed: vocabulary 3, draft 1", "--jobs", "1", "--json")
    assert code == 1
    case = json.loads(out)["cases"][0]
    assert case["error"] != "0"
    assert case["first_difference"]["engine"] != case["first_difference"]["target"]


def test_prove_faults_catches_every_planted_fault(run):
    code, out, _ = run("prove", "--faults", "--json")
    report = json.loads(out)
    assert code == 0
    assert report["all_caught"] is True
    assert all(f["caught"] and f["equals_figure"] for f in report["faults"])
    assert len(report["faults"]) >= 20


def test_prove_of_an_unknown_case_names_the_known_ones(run):
    code, _, err = run("prove", "--only", "nothing like this")
    assert code == 2
    assert "token x lookup x fixed" in err


def test_explain_shows_both_paths_and_their_sum(run):
    code, out, _ = run("explain", "--p", ".5,.3,.2", "--q", ".7,.2,.1")
    assert code == 0
    assert "0.714286" in out
    assert "Z" in out
    assert "0.2" in out


@pytest.mark.parametrize(
    ("p", "q", "what"),
    [
        (".5,.6", ".5,.5", "--p sums to 1.1"),
        (".5,.5", ".5,.4", "--q sums to 0.9"),
        (".5,.5", "1", "p has 2 tokens, q 1"),
        ("a,b", ".5,.5", "comma-separated"),
        ("1.5,-.5", ".5,.5", "negative"),
    ],
)
def test_explain_refuses_what_is_no_distribution(run, p, q, what):
    code, _, err = run("explain", "--p", p, "--q", q)
    assert code == 2
    assert what in err


def test_help_groups_the_options(run):
    code, out, _ = run("generate", "--help")
    assert code == 0
    for group in ("Model", "Speculation", "Sampling", "Length and stops", "Output"):
        assert group in out
