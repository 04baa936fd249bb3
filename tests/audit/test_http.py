"""The HTTP audit against a server with chosen faults: each is found by name, a right server shows nothing."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import pytest
from audit_tables import SIZE, Markov
from fake_server import EOS, FakeServer, reference

from draftproof.audit import client as client_module
from draftproof.audit.client import Client, Completion, ServerTrouble
from draftproof.audit.http import HttpPlan, audit_http, shapes
from draftproof.audit.reference import Reference
from draftproof.audit.report import AuditReport, Verdict
from draftproof.errors import InvalidValue
from draftproof.target.table import TableTarget
from draftproof.text import IdTokenizer

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
        ("dies", "cannot be reached: connection refused; the try before, it answered 500: the engine is dead"),
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


class _Bytes:
    """A tokenizer whose ids 0 to 3 are letters, 4 and 5 halves of a character, 6 a space with a half, 7 is special."""

    has_chat = False
    TEXTS = ("a", "b", " ", "c", "\ufffd", "\ufffd\ufffd", " \ufffd", "<|start|>", "d", "e", "f", "<|end|>")

    def encode(self, text: str) -> list[int]:
        return [self.TEXTS.index(t) for t in text]

    def prompt(self, text: str) -> list[int]:
        return self.encode(text)

    def decode(self, ids: Seq[int], *, skip_special: bool = True) -> str:
        return "".join("" if skip_special and i in (7, 11) else self.TEXTS[i] for i in ids)

    def chat(self, messages: Seq[dict[str, str]]) -> list[int]:
        return self.encode(messages[0]["content"])

    def fingerprint(self) -> str:
        return "bytes"


@pytest.mark.parametrize("ignored", [False, True], ids=["as U+FFFD", "left out"])
def test_a_reading_is_a_function_of_the_id_however_the_server_writes_bytes_and_special_tokens(ignored: bool) -> None:
    ref = Reference(reference().target, _Bytes())
    sets = set()
    for i, text in enumerate(_Bytes.TEXTS):
        written = text.replace("\ufffd", "") if ignored else text
        written = "" if ignored and i in (7, 11) else written
        [reading, *_] = ref.read(Completion("x", tokens=[written], finish="length"))
        assert i in reading
        sets.add(reading)
    # The end of an answer is in the set that it would be read in if it were shown: no id is in two sets.
    assert ref.read(Completion("", tokens=[], finish="stop"))[0] in sets
    assert sorted(i for r in sets for i in r) == list(range(len(_Bytes.TEXTS)))
    assert (0,) in sets  # what all servers write alike stays certain


def test_a_token_that_is_counted_and_not_shown_is_cannot_tell() -> None:
    ref = reference()
    usage = {"completion_tokens": 3}
    with pytest.raises(ServerTrouble, match="counts 3 tokens of an answer and shows 2"):
        ref.read(Completion("", ids=[3, 4], finish="length", usage=usage))
    with pytest.raises(ServerTrouble, match="counts 3 tokens of an answer and shows 1"):
        ref.read(Completion("", ids=[3], finish="stop", usage=usage))
    assert ref.read(Completion("", ids=[3, 4], finish="stop", usage=usage)) == [(3,), (4,), (EOS,)]
    assert ref.read(Completion("", ids=[3, 4, 5], finish="stop", usage=usage)) == [(3,), (4,), (5,), (EOS,)]


def test_prompt_ids_of_the_server_are_compared_where_it_shows_them() -> None:
    report = audit_http(FakeServer("other prompt ids").client(), PLAN, reference=reference())
    [finding] = report.findings
    assert finding.verdict is Verdict.UNKNOWN
    assert "prompt ids are not the reference's" in finding.detail
    reference().check_prompt("0 1", "completions", Completion("", prompt_ids=[0, 1]))


def test_an_end_the_reference_has_no_token_for_is_cannot_tell() -> None:
    endless = Reference(TableTarget(Markov().model()), IdTokenizer(SIZE))
    with pytest.raises(ServerTrouble, match="no end-of-text token"):
        endless.read(Completion("", ids=[3], finish="stop"))
    assert endless.read(Completion("", ids=[3], finish="length")) == [(3,)]


def test_the_control_matrix_can_be_run_alone() -> None:
    server = FakeServer()
    report = audit_http(server.client(), HttpPlan(prompts=PROMPTS, answers=0), reference=reference())
    assert SAMPLED not in _verdicts(report)
    assert _verdicts(report)["top_k = 1"] is Verdict.HONOURED
    with pytest.raises(InvalidValue):
        HttpPlan(prompts=PROMPTS, answers=0, matrix=False)


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
