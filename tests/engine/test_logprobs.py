"""Log-probabilities (faults class P): of the row each token was decided on, on every path, as in plain decoding."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from engine_kit import PROMPT, five_drafters, float_model, model, says

from draftproof.engine import Engine
from draftproof.logprobs import PROMPT_CHUNK
from draftproof.result import Result
from draftproof.sampling.controls import Controls
from draftproof.sampling.params import SamplingParams
from draftproof.sampling.scores import Scores
from draftproof.schedule.fixed import FixedSchedule
from draftproof.target.table import TableModel, TableTarget
from draftproof.verify import BlockVerifier, CoupledVerifier, Origin, TokenVerifier

CONTROLLED = SamplingParams(
    max_tokens=24, seed=5, temperature=0.8, top_k=4, frequency_penalty=0.4, repetition_penalty=1.2, logprobs=3
)


def close(got: Result, want: Result) -> None:
    assert got.logprobs is not None
    assert want.logprobs is not None
    for a, b in zip(got.logprobs, want.logprobs, strict=True):
        assert a.token == b.token
        assert a.logprob == pytest.approx(b.logprob, abs=1e-12)
        assert [t for t, _ in a.top] == [t for t, _ in b.top]
        assert [x for _, x in a.top] == pytest.approx([x for _, x in b.top], abs=1e-12)


def test_an_accepted_token_has_the_logarithm_of_its_own_probability_and_not_zero() -> None:
    table = TableModel({(): [0.7, 0.3]}, 2)
    for drafter in (says([0] * 9), None):
        engine = Engine(TableTarget(table), drafter=drafter, schedule=FixedSchedule(4))
        result = engine.generate(PROMPT, SamplingParams(max_tokens=9, seed=1, logprobs=2))
        assert result.logprobs is not None
        for token, entry in zip(result.token_ids, result.logprobs, strict=True):
            assert entry.logprob == pytest.approx(math.log((0.7, 0.3)[token]), abs=1e-12)
            assert entry.top == ((0, pytest.approx(math.log(0.7))), (1, pytest.approx(math.log(0.3))))


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("length", [1, 4, 8])
@pytest.mark.parametrize("name", list(five_drafters(6)))
def test_every_path_reports_what_plain_decoding_does(name: str, length: int, raw: bool) -> None:
    table = float_model(6)
    params = replace(CONTROLLED, raw_logprobs=raw)
    plain = Engine(TableTarget(table), verifier=CoupledVerifier()).generate_all([PROMPT, [2, 3], [4]], params)
    engine = Engine(
        TableTarget(table),
        drafter=five_drafters(6)[name](),
        verifier=CoupledVerifier(),
        schedule=FixedSchedule(length),
    )
    for got, want in zip(engine.generate_all([PROMPT, [2, 3], [4]], params), plain, strict=True):
        assert got.token_ids == want.token_ids
        close(got, want)


def test_all_four_paths_occur_and_each_entry_is_that_of_its_row() -> None:
    table = float_model(6)
    origins = set()
    for verifier in (TokenVerifier(), BlockVerifier()):
        for name in ("model", "lookup", "none"):
            engine = Engine(
                TableTarget(table), drafter=five_drafters(6)[name](), verifier=verifier, schedule=FixedSchedule(2)
            )
            result = engine.generate(PROMPT, SamplingParams(max_tokens=40, seed=2, logprobs=1))
            origins |= set(result.origins)
            assert result.logprobs is not None
            for i, entry in enumerate(result.logprobs):
                row = table.row((*PROMPT, *result.token_ids[:i]))
                assert entry.token == result.token_ids[i]
                assert entry.logprob == pytest.approx(math.log(row.prob(entry.token)), abs=1e-12)
                assert entry.top[0][1] == pytest.approx(math.log(row.top(1)[0][1]), abs=1e-12)
    assert origins == set(Origin)


def test_raw_are_before_the_controls_and_the_others_after_them() -> None:
    table = TableModel({(): [0.5, 0.3, 0.2]}, 3)
    params = SamplingParams(max_tokens=6, seed=3, top_k=2, logprobs=3)
    after = Engine(TableTarget(table)).generate(PROMPT, params).logprobs
    before = Engine(TableTarget(table)).generate(PROMPT, replace(params, raw_logprobs=True)).logprobs
    assert after is not None
    assert before is not None
    assert [(t, pytest.approx(x)) for t, x in after[0].top] == [(0, math.log(5 / 8)), (1, math.log(3 / 8))]
    assert [(t, pytest.approx(x)) for t, x in before[0].top] == [
        (0, math.log(0.5)),
        (1, math.log(0.3)),
        (2, math.log(0.2)),
    ]


def test_greedy_tokens_have_the_logarithms_of_their_rows_and_not_zero() -> None:
    table = TableModel({(): [0.7, 0.3]}, 2)
    for drafter in (says([0] * 9), None):
        result = Engine(TableTarget(table), drafter=drafter, schedule=FixedSchedule(4)).generate(
            PROMPT, SamplingParams(max_tokens=6, temperature=0, logprobs=2)
        )
        assert result.logprobs is not None
        for entry in result.logprobs:
            assert entry.logprob == pytest.approx(math.log(0.7), abs=1e-12)
            assert entry.top == ((0, entry.logprob), (1, pytest.approx(math.log(0.3), abs=1e-12)))


@pytest.mark.parametrize("length", [1, 2, PROMPT_CHUNK, PROMPT_CHUNK + 1, PROMPT_CHUNK + 2, 2 * PROMPT_CHUNK + 1])
def test_prompt_logprobs_are_the_models_own_for_every_length_around_the_chunk_size(length: int) -> None:
    table = float_model(5)
    prompt = [(7 * i + i // 3) % 5 for i in range(length)]
    params = replace(CONTROLLED, prompt_logprobs=2)
    for name in ("none", "model"):
        engine = Engine(TableTarget(table), drafter=five_drafters()[name](), verifier=CoupledVerifier())
        result = engine.generate(prompt, params)
        entries = result.prompt_logprobs
        assert entries is not None
        assert entries[0] is None
        assert len(entries) == length
        for i, entry in enumerate(entries[1:], 1):
            assert entry is not None
            row = table.row(tuple(prompt[:i]))
            assert (entry.token, entry.logprob) == (prompt[i], pytest.approx(math.log(row.prob(prompt[i]))))
            assert [t for t, _ in entry.top] == [t for t, _ in row.top(2)]
        without = Engine(TableTarget(table), verifier=CoupledVerifier()).generate(prompt, CONTROLLED)
        assert result.token_ids == without.token_ids
        close(result, without)


def test_nothing_is_computed_that_was_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: object, **options: object) -> None:
        raise AssertionError("not asked for")

    monkeypatch.setattr(Controls, "scores", never)
    monkeypatch.setattr(Scores, "of_dist", never)
    result = Engine(TableTarget(model(4)), drafter=five_drafters(4)["model"]()).generate(PROMPT, SamplingParams())
    assert result.logprobs is None
    assert result.prompt_logprobs is None


def test_logprobs_zero_gives_the_chosen_token_alone() -> None:
    result = Engine(TableTarget(model(4))).generate(PROMPT, SamplingParams(max_tokens=3, logprobs=0))
    assert result.logprobs is not None
    assert [entry.top for entry in result.logprobs] == [(), (), ()]


def test_the_json_of_a_result_is_json_also_where_the_prompt_was_impossible() -> None:
    table = TableModel({(): [0.0, 1.0]}, 2)
    result = Engine(TableTarget(table)).generate([1, 0], SamplingParams(max_tokens=2, logprobs=1, prompt_logprobs=1))
    plain = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert plain["prompt_logprobs"] == [None, {"token": 0, "logprob": None, "top": [[1, 0.0]]}]
    assert plain["logprobs"][0] == {"token": 1, "logprob": 0.0, "top": [[1, 0.0]]}
