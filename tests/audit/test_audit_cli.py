"""The audit's command line: options reach the audit, errors are one line, exit codes say what was found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from audit_tables import Markov
from fake_server import EOS, SIZE, FakeServer
from typer.testing import CliRunner

from draftproof.audit import client as client_module
from draftproof.audit import process_peer
from draftproof.bench.peers import Peers, PeerStatus
from draftproof.cli import audit
from draftproof.errors import InvalidValue, MissingExtra
from draftproof.target.table import TableTarget
from draftproof.text import IdTokenizer

RUN = CliRunner()


@pytest.fixture(autouse=True)
def _tables(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = (TableTarget(Markov().model(), eos_ids=(EOS,)), IdTokenizer(SIZE))
    monkeypatch.setattr(audit, "load_target", lambda name, options: loaded)


def _prompts(tmp_path: Path) -> list[str]:
    file = tmp_path / "prompts.txt"
    file.write_text("0 1\n\n3 2\n", encoding="utf-8")
    return ["--prompts", str(file)]


def test_the_self_audit_prints_writes_and_exits_with_0(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    sizes = ["--tokens", "100", "--answer", "20", "--verifier", "token"]
    result = RUN.invoke(audit.audit_app, ["self", *_prompts(tmp_path), *sizes, "--json", "--html", str(page)])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert [f["verdict"] for f in report["findings"]] == ["nothing found"] * 3
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_server_audit_exits_with_1_for_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeServer("biased", "usage wrong")
    own = client_module.httpx2.Client

    def client(**settings: object) -> object:
        return own(**{**settings, "transport": client_module.httpx2.MockTransport(server.answer)})

    monkeypatch.setattr(client_module.httpx2, "Client", client)
    where = ["--base-url", "http://fake/v1", "--model", "m", "--header", "X-Key: 7", "--concurrency", "1"]
    sizes = ["--answers", "120", "--answer", "30", "--noise", "0", "--reference", "tables"]
    result = RUN.invoke(audit.audit_app, ["http", *where, *sizes, *_prompts(tmp_path)])
    assert result.exit_code == 1, result.output
    assert server.headers[0]["x-key"] == "7"
    assert server.bodies[0]["model"] == "m"
    assert "wrong" in result.stdout
    assert "usage adds up" in result.stdout


def test_a_header_without_a_colon_and_an_empty_prompt_file_are_refused(tmp_path: Path) -> None:
    arguments = ["http", "--base-url", "http://fake/v1", "--model", "m", "--header", "nonsense"]
    assert isinstance(RUN.invoke(audit.audit_app, arguments).exception, InvalidValue)
    empty = tmp_path / "empty.txt"
    empty.write_text("\n")
    assert isinstance(RUN.invoke(audit.audit_app, ["self", "--prompts", str(empty)]).exception, InvalidValue)


def test_a_peer_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = PeerStatus("llama-cpp-python", "missing", "not installed; pip install llama-cpp-python")
    monkeypatch.setattr(Peers, "__enter__", lambda self: self.statuses.append(missing) or self)
    with (
        process_peer.start_peers("llama-cpp-python", "m", eos_ids=frozenset(), lookup=5, threads=1) as peers,
        pytest.raises(MissingExtra, match="not installed"),
    ):
        process_peer.opened(peers)


def test_a_peer_in_another_python_is_started_there_and_reports_its_version_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = PeerStatus("llama-cpp-python", "measured", "0.9.9")
    monkeypatch.setattr(Peers, "__enter__", lambda self: self.statuses.append(there) or self)
    with process_peer.start_peers(
        "llama-cpp-python", "m", eos_ids=frozenset(), lookup=5, threads=1, python="/there/python"
    ) as peers:
        assert peers._job.pythons == {"llama-cpp-python": "/there/python"}
        assert process_peer.version_of(peers) == {"llama-cpp-python": "0.9.9"}
