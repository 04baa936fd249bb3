"""The trace of a run: it tells what happened, changes nothing, and survives its file or says why not."""

import json
import shutil
from fractions import Fraction

import numpy as np
import pytest
from pages_kit import NASTY, nasty_run, toy_engine

from draftproof import rule
from draftproof.chance import Address, Purpose, SeededChance
from draftproof.cli.trace import trace_to_html, write_trace_file
from draftproof.errors import InvalidValue
from draftproof.sampling.params import SamplingParams
from draftproof.trace import Recorder, read_trace, write_trace
from draftproof.trace.records import Part, TokenRecord
from draftproof.verify import BlockVerifier, CoupledVerifier, MatchVerifier, TokenVerifier
from draftproof.verify.base import Origin

VERIFIERS = [TokenVerifier(), BlockVerifier(), MatchVerifier(), CoupledVerifier()]


def tokens_of(trace):
    return [(part, k, token) for record in trace.rounds for part in record.parts for k, token in enumerate(part.tokens)]


@pytest.mark.parametrize("verifier", VERIFIERS, ids=lambda v: v.name)
def test_a_trace_holds_the_results_tokens_origins_text_and_counts(verifier):
    trace, result = nasty_run(150, verifier=verifier, length=2)
    tokens = tokens_of(trace)
    assert [token.id for _, _, token in tokens] == list(result.token_ids)
    assert [token.origin for _, _, token in tokens] == list(result.origins)
    assert "".join(token.text for _, _, token in tokens) == result.text
    parts = [part for record in trace.rounds for part in record.parts]
    s = result.speculation
    assert (len(parts), sum(p.admitted for p in parts), sum(p.accepted for p in parts)) == (
        s.rounds,
        s.drafted,
        s.accepted,
    )
    assert {str(origin) for origin in result.origins} == {str(origin) for origin in Origin}  # all four paths are seen


@pytest.mark.parametrize("verifier", VERIFIERS, ids=lambda v: v.name)
def test_recording_changes_nothing_about_the_run(verifier):
    bare = toy_engine(verifier=verifier).generate([1, 2], SamplingParams(max_tokens=120, seed=9))
    engine = toy_engine(verifier=verifier)
    engine.observers.append(Recorder(engine))
    assert engine.generate([1, 2], SamplingParams(max_tokens=120, seed=9)).token_ids == bare.token_ids


def test_peeking_at_a_coin_draws_nothing():
    address = Address(Purpose.ACCEPT, position=7, epoch=5)
    untouched, peeked = SeededChance(11).at(address), SeededChance(11).at(address)
    seen = [peeked.peek(), peeked.peek()]
    assert seen[0] == seen[1]
    flips = [untouched.flip(0.5) for _ in range(50)]
    assert [peeked.flip(0.5) for _ in range(50)] == flips
    assert flips[0] == (seen[0] < 0.5)


def test_the_coin_of_token_verification_is_the_one_that_decided():
    trace, _ = nasty_run(400)
    tossed = 0
    for part, k, token in tokens_of(trace):
        drafted = token.drafted
        if drafted is None or k >= part.admitted:
            continue
        accepted = k < part.accepted
        if drafted.u is None:
            assert drafted.alpha in (0, 1)
            assert accepted == (drafted.alpha == 1)
            continue
        tossed += 1
        assert drafted.limit == drafted.alpha
        # With a wrong address each of these would hold by luck only, about one in two.
        assert (drafted.u < drafted.alpha) == accepted
    assert tossed > 100


def test_the_coins_of_block_verification_are_the_ones_that_decided():
    trace, _ = nasty_run(400, verifier=BlockVerifier())
    tossed = 0
    for part, k, token in tokens_of(trace):
        if token.drafted is None or token.drafted.u is None:
            continue
        tossed += 1
        assert (token.drafted.u < token.drafted.limit) == (k < part.accepted)
    assert tossed > 100


@pytest.mark.parametrize("verifier", VERIFIERS, ids=lambda v: v.name)
def test_p_q_alpha_and_the_residual_are_those_of_the_rule(verifier):
    engine = toy_engine(size=5, verifier=verifier)
    seen = []

    class Spy:
        def round(self, record, settled):
            seen.extend(settled)

    recorder = Recorder(engine, top=5)
    engine.observers += [Spy(), recorder]
    engine.generate([1, 2], SamplingParams(max_tokens=120, seed=4))
    checked = 0
    for settled, part in zip(seen, (p for r in recorder.trace().rounds for p in r.parts), strict=True):
        for k, token in enumerate(part.tokens):
            p = settled.rows.p(k).dense().astype(float)
            assert token.p == p[token.id]
            if token.drafted is None:
                continue
            q = settled.drafted.q[k].dense().astype(float)
            drafted = token.drafted
            assert (drafted.p, drafted.q) == (p[drafted.id], q[drafted.id])
            assert drafted.alpha == pytest.approx(rule.accept_prob(p, q)[drafted.id], abs=1e-12)
            if verifier.name == "token" and token.origin is Origin.RESIDUAL:
                checked += 1
                assert token.law == "residual"
                want = rule.residual(p, q)
                assert {c.id: c.prob for c in token.top} == pytest.approx(
                    {i: w for i, w in enumerate(want) if w > 0}, abs=1e-12
                )
            if verifier.name in ("match", "coupled") and token.origin is Origin.RESIDUAL:
                assert token.law == "p"  # these draw from p itself
    assert checked > 0 or verifier.name != "token"


def test_exact_tables_and_several_requests_are_recorded():
    from draftproof.engine import Engine
    from draftproof.target.table import TableModel, TableTarget

    third = Fraction(1, 3)
    engine = Engine(TableTarget(TableModel({(): [third, third, third]}, 3)))
    recorder = Recorder(engine)
    engine.observers.append(recorder)
    results = engine.generate_all([[0], [1, 2]], SamplingParams(max_tokens=5, seed=1, n=2))
    trace = recorder.trace([choice for result in results for choice in result.choices])
    assert [(r.sample, r.prompt_tokens, r.prompt) for r in trace.requests] == [
        (0, 1, "0"),
        (1, 1, "0"),
        (0, 2, "1 2"),
        (1, 2, "1 2"),
    ]
    assert len(trace.results) == 4
    assert all(token.p == pytest.approx(1 / 3) for _, _, token in tokens_of(trace))


def test_controls_in_force_are_the_ones_that_differ_from_the_defaults():
    engine = toy_engine(size=6)
    recorder = Recorder(engine)
    engine.observers.append(recorder)
    engine.generate([1], SamplingParams(max_tokens=3, top_k=3, banned_ids={2}, logit_bias={1: 0.5}, seed=5))
    (request,) = recorder.trace().requests
    assert request.seed == 5
    assert request.controls == {
        "max_tokens": 3,
        "banned_ids": [2],
        "logit_bias": [[1, 0.5]],
        "temperature": 1.0,
        "top_k": 3,
    }


def test_temperature_zero_needs_no_coin():
    engine = toy_engine(size=6)
    recorder = Recorder(engine)
    engine.observers.append(recorder)
    engine.generate([1], SamplingParams(max_tokens=30, temperature=0, seed=5))
    assert all(t.drafted is None or t.drafted.u is None for _, _, t in tokens_of(recorder.trace()))


@pytest.fixture
def written(tmp_path):
    trace, _ = nasty_run(40)
    path = tmp_path / "run.jsonl"
    write_trace(trace, path)
    return trace, path


def test_a_trace_is_read_back_equal_and_its_file_is_plain_lines(written):
    trace, path = written
    assert read_trace(path) == trace
    raw = path.read_bytes()
    assert raw.isascii()
    assert raw.count(b"\n") == 1 + len(trace.requests) + len(trace.rounds) + 1
    assert json.loads(raw.splitlines()[0])["version"] == 1


def test_a_file_cut_off_anywhere_is_refused_with_what_to_do(written, tmp_path):
    _, path = written
    raw = path.read_bytes()
    cut = tmp_path / "cut.jsonl"
    rng = np.random.default_rng(0)
    line_ends = [i + 1 for i, byte in enumerate(raw[:-1]) if byte == ord("\n")]
    for length in [0, 1, len(raw) - 1, *line_ends, *rng.integers(1, len(raw), 60)]:
        cut.write_bytes(raw[:length])
        with pytest.raises(InvalidValue, match=r"cut off|is empty") as error:
            read_trace(cut)
        assert "record it again" in str(error.value)
        assert "\n" not in str(error.value)


def test_a_line_missing_in_the_middle_is_noticed(written, tmp_path):
    _, path = written
    lines = path.read_bytes().splitlines(keepends=True)
    damaged = tmp_path / "damaged.jsonl"
    damaged.write_bytes(b"".join(lines[:5] + lines[6:]))
    with pytest.raises(InvalidValue, match=r"has \d+ of \d+ rounds"):
        read_trace(damaged)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 0}, "trace of version 0, this program reads version 1 - record it again"),
        ({"version": 2}, "trace of version 2, this program reads version 1 - update draftproof"),
        ({"version": None}, "trace of version None"),
        ({"format": "something"}, "is not a trace"),
        ({"target": None, "extra": 1}, "line 1: .*extra"),
    ],
)
def test_another_version_or_format_is_refused_by_name(written, tmp_path, change, message):
    _, path = written
    first, rest = path.read_text().split("\n", 1)
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps(json.loads(first) | change) + "\n" + rest)
    with pytest.raises(InvalidValue, match=message):
        read_trace(other)


@pytest.mark.parametrize(
    "content", [b"\xff\xfe\x00", b"{}\n", b"[1]\n", b"hello\n", b'{"format": "draftproof-trace"\n']
)
def test_what_is_no_trace_is_refused(tmp_path, content):
    path = tmp_path / "no.jsonl"
    path.write_bytes(content)
    with pytest.raises(InvalidValue):
        read_trace(path)
    with pytest.raises(InvalidValue, match="no such file"):
        read_trace(tmp_path / "missing.jsonl")


@pytest.mark.parametrize(
    ("find", "put"),
    [('"p": 0.', '"p": 7.'), ('"origin": "accepted"', '"origin": "guessed"'), ('"admitted": ', '"admitted": 9')],
)
def test_impossible_values_are_refused_with_their_line(written, tmp_path, find, put):
    _, path = written
    bad = tmp_path / "bad.jsonl"
    text = path.read_text()
    assert find in text
    bad.write_text(text.replace(find, put, 1))
    with pytest.raises(InvalidValue, match=r"line \d+"):
        read_trace(bad)


def test_records_refuse_what_contradicts_itself():
    plain = TokenRecord(1, "a", "a", Origin.PLAIN, 0.5)
    with pytest.raises(InvalidValue):
        Part(0, 0, "d", ("a",), 2, 0, 0, ())
    with pytest.raises(InvalidValue):
        Part(0, 0, "d", ("a",), 1, 1, 0, (plain,))
    with pytest.raises(InvalidValue):
        TokenRecord(1, "a", "a", Origin.PLAIN, float("nan"))


def test_the_command_lines_paths_are_checked_before_anything_is_written(written, tmp_path):
    trace, path = written
    out = tmp_path / "out.html"
    trace_to_html(path, out)
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    write_trace_file(trace, tmp_path / "again.html")
    assert (tmp_path / "again.html").read_bytes() == out.read_bytes()
    for bad in (tmp_path / "out.txt", tmp_path / "none" / "out.html"):
        with pytest.raises(InvalidValue):
            write_trace_file(trace, bad)
        with pytest.raises(InvalidValue):
            trace_to_html(path, bad)
    shutil.rmtree(tmp_path)


def test_every_nasty_text_is_in_the_run_that_the_page_tests_use():
    trace, _ = nasty_run(60)
    assert trace.requests[0].prompt == "".join(NASTY)
    assert len({token.piece for _, _, token in tokens_of(trace)}) >= 12
