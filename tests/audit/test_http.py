"""The HTTP audit against a server with chosen faults: each is found by name, a right server shows nothing."""

from __future__ import annotations

from typing import Any

import pytest
from fake_server import EOS, FakeServer, reference

from draftproof.audit import client as client_module
from draftproof.audit.client import Client, Completion, ServerTrouble
from draftproof.audit.http import HttpPlan, audit_http, shapes
from draftproof.audit.report import AuditReport, Verdict
from draftproof.errors import InvalidValue

PROMPTS = ("0 1", "3 2", "5 5")
SAMPLED = "sampled text against the reference"
PAIRED = "sampled text against the control"
PLAN = HttpPlan(prompts=PROMPTS, answers=48, tokens=30, matrix=False, noise=0.0)
MATRIX = HttpPlan(prompts=PROMPTS, answers=1, tokens=5)


def _verdicts(report: AuditReport) -> dict[str, Verdict]:
    return {f.check: f.verdict for f in report.findings}


def _matrix(*faults: str, **options: Any) -> dict[str, Verdict]:
    return _verdicts(audit_http(FakeServer(*faults).client(**options), MATRIX, reference=reference()))


@pytest.mark.parametrize("api", ["completions", "chat"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_right_server_shows_nothing_in_every_form_of_the_protocol(api: str, stream: bool) -> None:
    plan = HttpPlan(prompts=PROMPTS, answers=48, tokens=30, noise=0.0)
    control = FakeServer(seed=500).client(api=api, stream=stream)
    report = audit_http(FakeServer().client(api=api, stream=stream), plan, reference=reference(), control=control)
    assert {f.verdict for f in report.findings} <= {Verdict.HONOURED, Verdict.NOTHING}, report.findings
    assert report.statistics[SAMPLED].n > 200  # type: ignore[union-attr]
    assert report.ok


@pytest.mark.parametrize("fault", ["biased", "greedy", "cuts ignored"])
def test_a_sampled_fault_is_found_by_the_reference(fault: str) -> None:
    plan = HttpPlan(prompts=PROMPTS, answers=160, tokens=30, matrix=False, noise=0.0)
    report = audit_http(FakeServer(fault).client(), plan, reference=reference())
    expected = Verdict.NOTHING if fault == "cuts ignored" else Verdict.WRONG  # no cut was asked for
    assert _verdicts(report)[SAMPLED] is expected


def test_token_texts_serve_where_ids_are_not_sent() -> None:
    report = audit_http(FakeServer("strict", ids=False).client(), PLAN, reference=reference())
    assert _verdicts(report)[SAMPLED] is Verdict.NOTHING
    biased = HttpPlan(prompts=PROMPTS, answers=160, tokens=30, matrix=False, noise=0.0)
    report = audit_http(FakeServer("biased", ids=False).client(), biased, reference=reference())
    assert _verdicts(report)[SAMPLED] is Verdict.WRONG


def test_a_server_that_fails_at_a_field_is_asked_without_it() -> None:
    server = FakeServer("no logprobs", ids=True)
    report = audit_http(server.client(), MATRIX, reference=reference())
    assert _verdicts(report)["log-probabilities"] is Verdict.UNKNOWN
    assert _verdicts(report)["usage adds up"] is Verdict.HONOURED


def test_a_difference_both_servers_share_is_not_blamed_on_speculation() -> None:
    plan = HttpPlan(prompts=PROMPTS, answers=160, tokens=30, matrix=False, noise=0.0)
    report = audit_http(
        FakeServer("biased").client(), plan, reference=reference(), control=FakeServer("biased", seed=500).client()
    )
    assert set(_verdicts(report).values()) == {Verdict.UNKNOWN, Verdict.NOTHING}
    assert _verdicts(report)[PAIRED] is Verdict.NOTHING


def test_without_a_reference_two_servers_are_told_apart() -> None:
    plan = HttpPlan(prompts=PROMPTS, answers=500, tokens=30, matrix=False)
    control = FakeServer(ids=False, tokens=False, seed=500).client()
    report = audit_http(FakeServer("greedy", ids=False, tokens=False).client(), plan, control=control)
    assert _verdicts(report) == {PAIRED: Verdict.WRONG}


@pytest.mark.parametrize(
    ("fault", "check", "verdict"),
    [
        ("greedy", "temperature 1 varies", Verdict.IGNORED),
        ("seed ignored", "a seed repeats its answer", Verdict.IGNORED),
        ("unseeded alike", "unseeded answers differ", Verdict.WRONG),
        ("cuts ignored", "top_k = 1", Verdict.IGNORED),
        ("cuts ignored", "min_p = 1", Verdict.IGNORED),
        ("cuts ignored", "top_p near 0", Verdict.IGNORED),
        ("no top_k", "top_k = 1", Verdict.REFUSED),
        ("bias ignored", "logit_bias", Verdict.IGNORED),
        ("stop ignored", "stop", Verdict.IGNORED),
        ("max_tokens ignored", "max_tokens", Verdict.IGNORED),
        ("usage wrong", "usage adds up", Verdict.WRONG),
        ("zero logprobs", "log-probabilities", Verdict.WRONG),
        ("shifted logprobs", "log-probabilities", Verdict.WRONG),
        ("stream loses", "a stream says the same", Verdict.WRONG),
    ],
)
def test_the_matrix_names_the_control_that_is_wrong(fault: str, check: str, verdict: Verdict) -> None:
    assert _matrix(fault)[check] is verdict


def test_the_matrix_finds_log_probabilities_of_the_wrong_row() -> None:
    report = audit_http(FakeServer("shifted logprobs").client(), MATRIX, reference=reference())
    assert any("row after" in f.detail for f in report.findings)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("down", "cannot be reached"),
        ("slow", "no answer within"),
        ("busy", "answers 429"),
        ("broken", "answers 500"),
        ("not json", "answers no JSON"),
    ],
)
def test_a_server_in_trouble_is_cannot_tell_with_the_reason(
    fault: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "LONGEST_PAUSE", 0.0)
    server = FakeServer(fault)
    report = audit_http(server.client(), PLAN, reference=reference())
    [finding] = report.findings
    assert finding.verdict is Verdict.UNKNOWN
    assert reason in finding.detail
    kinds_of_request = len(shapes("completions")) if fault == "broken" else 1  # a 500 may be about one field
    assert len(server.bodies) <= client_module.ATTEMPTS * kinds_of_request  # no retry storm
    assert report.ok


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        (FakeServer("other tokenizer"), "the server counts 3 prompt tokens, the reference 2"),
        (FakeServer("filtered"), "finish reason 'content_filter'"),
        (FakeServer(ids=False, tokens=False), "neither token ids nor token texts"),
    ],
    ids=["tokenizer", "filtered", "no tokens"],
)
def test_an_answer_that_cannot_be_scored_is_cannot_tell(server: FakeServer, reason: str) -> None:
    report = audit_http(server.client(), PLAN, reference=reference())
    [finding] = report.findings
    assert finding.verdict is Verdict.UNKNOWN
    assert reason in finding.detail


def test_a_cut_stream_loses_its_answer_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "LONGEST_PAUSE", 0.0)
    with pytest.raises(ServerTrouble, match="cut"):
        FakeServer("cut stream").client(stream=True).complete("0 1", temperature=1.0, max_tokens=20, seed=1)
    completion = FakeServer("busy once").client().complete("0 1", temperature=0.0, max_tokens=3)
    assert completion.finish in ("length", "stop")


def test_an_answer_that_ended_by_itself_gets_its_end_token_and_a_cut_one_does_not() -> None:
    ref = reference()
    assert ref.read(Completion("", ids=[3], finish="stop")) == [(3,), (EOS,)]
    assert ref.read(Completion("", ids=[3, EOS], finish="stop")) == [(3,), (EOS,)]
    assert ref.read(Completion("", ids=[3], finish="length")) == [(3,)]
    assert ref.read(Completion("", finish="stop")) == [(EOS,)]
    assert ref.read(Completion("", tokens=["3 ", "token_id:4"], finish="length")) == [(3,), (4,)]
    with pytest.raises(ServerTrouble, match="another tokenizer"):
        ref.read(Completion("", tokens=["word"], finish="length"))
    with pytest.raises(ServerTrouble, match="another tokenizer"):
        ref.read(Completion("", ids=[99], finish="length"))


def test_the_key_comes_from_the_environment_and_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUDIT_KEY", "sk-very-secret")
    monkeypatch.setattr(client_module, "LONGEST_PAUSE", 0.0)
    server = FakeServer("broken")
    report = audit_http(server.client(key_env="AUDIT_KEY"), PLAN, reference=reference())
    assert server.headers[0]["authorization"] == "Bearer sk-very-secret"
    assert "secret" not in str(report.to_json())


def test_the_audit_keeps_to_its_own_limits() -> None:
    server = FakeServer()
    report = audit_http(server.client(requests=20), PLAN, reference=reference())
    assert len(server.bodies) <= 20
    assert _verdicts(report)[SAMPLED] is Verdict.NOTHING  # what was measured until then is kept


@pytest.mark.parametrize("options", [{"base_url": "ftp://x"}, {"api": "edits"}, {"timeout": 0}])
def test_bad_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        FakeServer().client(**options)


def test_there_must_be_something_to_compare_with() -> None:
    with pytest.raises(InvalidValue):
        audit_http(FakeServer().client(), PLAN)
    with pytest.raises(InvalidValue):
        HttpPlan(prompts=())


def test_clients_can_be_closed() -> None:
    client: Client = FakeServer().client()
    client.close()
