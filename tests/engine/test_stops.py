"""Stops inside accepted blocks (faults class D): the earliest event wins and everything ends at the same token."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from engine_kit import PROMPT, Pieces, Spy, five_drafters, float_model, letters, line, model, run, says, shown

from draftproof.draft.base import Drafter
from draftproof.engine import Engine
from draftproof.errors import InvalidValue
from draftproof.result import FinishEvent, Result, TokenEvent
from draftproof.sampling.params import SamplingParams
from draftproof.schedule.fixed import FixedSchedule
from draftproof.target.table import TableTarget
from draftproof.verify import CoupledVerifier, MatchVerifier, TokenVerifier, Verifier

A, B, C, D, E, S = range(6)
FREE = SamplingParams(max_tokens=8, temperature=0)


def spelled(answer: list[int], length: int = 8, **options: object) -> Engine:
    """Target and drafter agree on this answer, so a block is accepted whole."""
    return Engine(line(answer, 8, **options), drafter=says(answer), schedule=FixedSchedule(length), tokenizer=letters())


def ends(result: Result, ids: list[int], reason: str, stop_reason: int | str | None) -> None:
    assert list(result.token_ids) == ids
    assert (result.finish_reason, result.stop_reason) == (reason, stop_reason)
    assert result.usage.completion_tokens == len(ids) == result.speculation.emitted
    assert len(result.origins) == len(result.offsets) == len(ids)
    assert result.speculation.accepted <= len(ids)


def test_a_stop_string_completed_in_mid_block_ends_the_answer_at_its_last_token() -> None:
    result = spelled([A, B, C, D]).generate(PROMPT, replace(FREE, stop=["bc"]))
    ends(result, [A, B, C], "stop", "bc")
    assert result.text == "a"
    assert result.offsets == (0, 1, 1)
    assert result.speculation.accepted == 3  # the drafted d was verified and never emitted
    assert result.speculation.drafted_at[:4] == (1, 1, 1, 1)
    assert result.speculation.accepted_at[:4] == (1, 1, 1, 0)


def test_include_stop_leaves_the_stop_string_in_the_text() -> None:
    result = spelled([A, B, C, D]).generate(PROMPT, replace(FREE, stop=["bc"], include_stop=True))
    ends(result, [A, B, C], "stop", "bc")
    assert result.text == "abc"
    assert result.offsets == (0, 1, 2)


def test_a_stop_string_that_straddles_blocks_is_found() -> None:
    for length in range(5):
        result = spelled([A, B, C, D, E], length).generate(PROMPT, replace(FREE, stop=["bcd"]))
        ends(result, [A, B, C, D], "stop", "bcd")
        assert result.text == "a"


def test_what_follows_the_stop_string_in_its_token_is_cut_with_it() -> None:
    engine = Engine(line([0, 1, 2], 3), drafter=says([0, 1, 2]), tokenizer=Pieces(["x", "y<e", "nd>z"]))
    result = engine.generate(PROMPT, replace(FREE, stop=["<end>"]))
    assert (result.text, list(result.token_ids)) == ("xy", [0, 1, 2])
    kept = engine.generate(PROMPT, replace(FREE, stop=["<end>"], include_stop=True))
    assert kept.text == "xy<end>"


@pytest.mark.parametrize(("cap", "ids", "reason", "by"), [
    (5, [A, B, S], "stop", S),
    (3, [A, B, S], "stop", S),
    (2, [A, B], "length", None),
    (1, [A], "length", None),
])  # fmt: skip
def test_a_stop_and_the_budget_in_one_block_the_earlier_wins_and_a_tie_is_a_stop(
    cap: int, ids: list[int], reason: str, by: int | None
) -> None:
    answer = [A, B, S, C, D, E]
    for stops in (SamplingParams(stop_ids=[S]), SamplingParams(stop=["f"])):
        params = replace(stops, max_tokens=cap, temperature=0)
        result = spelled(answer).generate(PROMPT, params)
        ends(result, ids, reason, by if params.stop_ids else by and "f")


def test_eos_in_a_block_ends_the_answer_and_ignore_eos_goes_on() -> None:
    answer = [A, S, B, C]
    ends(spelled(answer, eos_ids=[S]).generate(PROMPT, replace(FREE, max_tokens=4)), [A, S], "stop", S)
    ignoring = replace(FREE, max_tokens=4, ignore_eos=True)
    ends(spelled(answer, eos_ids=[S]).generate(PROMPT, ignoring), answer, "length", None)


def test_the_text_of_a_stop_id_is_shown_only_with_include_stop() -> None:
    assert spelled([A, S, B]).generate(PROMPT, replace(FREE, stop_ids=[S])).text == "a"
    assert spelled([A, S, B]).generate(PROMPT, replace(FREE, stop_ids=[S], include_stop=True)).text == "af"


def test_nothing_past_a_drafted_eos_is_verified() -> None:
    spy = Spy(says([A, S, B, C]))
    engine = Engine(line([A, S, B, C], 8, eos_ids=[S]), drafter=spy, schedule=FixedSchedule(8))
    result = engine.generate(PROMPT, FREE)
    assert spy.proposals == [[A, S, B, C]]
    assert result.speculation.drafted == 2


def test_a_drafted_eos_that_the_target_rejects_does_not_end_the_answer() -> None:
    engine = Engine(line([A, B, C, S], 8, eos_ids=[S]), drafter=says([S, S, S, S]), schedule=FixedSchedule(4))
    result = engine.generate(PROMPT, FREE)
    assert list(result.token_ids) == [A, B, C, S]
    assert result.finish_reason == "stop"


def test_the_budget_is_never_exceeded_however_much_was_accepted() -> None:
    for budget in range(1, 10):
        for length in (0, 1, 4, 8):
            result = spelled([A, B, C, D] * 4, length).generate(PROMPT, replace(FREE, max_tokens=budget))
            assert list(result.token_ids) == ([A, B, C, D] * 4)[:budget]
            assert result.finish_reason == "length"


def test_min_tokens_holds_back_stop_strings_and_ids_alike() -> None:
    answer = [A, B, A, B, A, B]
    result = spelled(answer).generate(PROMPT, replace(FREE, stop=["ab"], min_tokens=2))
    ends(result, [A, B, A, B], "stop", "ab")
    assert result.text == "ab"
    table = TableTarget(model(3))
    early = Engine(table).generate(PROMPT, SamplingParams(max_tokens=6, min_tokens=4, stop_ids=[0], seed=3))
    assert 0 not in early.token_ids[:4]


@pytest.mark.parametrize("verifier", [CoupledVerifier(), MatchVerifier()], ids=["coupled", "match"])
@pytest.mark.parametrize("name", list(five_drafters()))
def test_stop_and_continue_equals_never_having_stopped(name: str, verifier: Verifier) -> None:
    table = float_model(5)
    tokenizer = letters()

    def fresh(drafter: Drafter | None = None) -> Engine:
        return Engine(TableTarget(table), drafter=drafter, verifier=verifier, tokenizer=tokenizer)

    controls = SamplingParams(
        max_tokens=24, seed=11, presence_penalty=1.0, repetition_penalty=1.3, frequency_penalty=0.5, logprobs=2
    )
    whole = fresh().generate(PROMPT, controls)
    for stopping in (
        replace(controls, stop_ids=[whole.token_ids[6]]),
        replace(controls, stop=[whole.text[5:8]]),
        replace(controls, max_tokens=9),
    ):
        first = fresh(five_drafters()[name]()).generate(PROMPT, stopping)
        ids = first.token_ids
        assert ids == whole.token_ids[: len(ids)]
        assert 0 < len(ids) < 24
        engine = fresh(five_drafters()[name]())
        request = engine.add(PROMPT, controls, answered=ids)
        second = next(e.result for e, _ in run(engine) if isinstance(e, FinishEvent) and e.request == request)
        assert (*ids, *second.token_ids) == whole.token_ids
        assert tokenizer.decode(ids) + second.text == whole.text
        assert second.logprobs is not None
        assert whole.logprobs is not None
        for got, want in zip(second.logprobs, whole.logprobs[len(ids) :], strict=True):
            assert got.logprob == pytest.approx(want.logprob, abs=1e-12)
        assert second.usage.prompt_tokens == len(PROMPT) + len(ids)


def test_a_continuation_counts_the_earlier_tokens_for_min_tokens_and_stop_strings() -> None:
    engine = spelled([A, B, C, D, E])
    params = replace(FREE, stop=["bcd"])
    request = engine.add(PROMPT, params, answered=[A, B])
    events = [e for e, _ in run(engine)]
    result = next(e.result for e in events if isinstance(e, FinishEvent) and e.request == request)
    ends(result, [C, D], "stop", "bcd")
    assert result.text == shown(events) == ""  # the b was given out before and is not taken back
    late = spelled([A, B, A, B, C, C])
    late.add(PROMPT, replace(FREE, max_tokens=6, min_tokens=3, stop=["ab"]), answered=[A, B])
    assert [e.token for e, _ in run(late) if isinstance(e, TokenEvent)] == [A, B]


def test_the_state_after_a_stop_in_mid_block_is_that_of_the_returned_tokens() -> None:
    class Lengths:
        seen: list[int]

        def __init__(self, engine: Engine) -> None:
            self.engine, self.seen = engine, []

        def round(self, record: object, settled: object) -> None:
            self.seen += [len(s.tokens) for s in self.engine.live.values()]

    engine = spelled([A, S, B, C], eos_ids=[S])
    watcher = Lengths(engine)
    engine.observers.append(watcher)
    engine.add(PROMPT, FREE)
    engine.round()
    assert watcher.seen == [len(PROMPT) + 2]
    assert not engine.live


def test_ids_text_offsets_logprobs_and_counters_end_at_one_token_wherever_the_stop_falls() -> None:
    table = float_model(6)
    params = SamplingParams(max_tokens=20, seed=4, logprobs=1)
    for verifier in (TokenVerifier(), CoupledVerifier()):
        for name, build in five_drafters(6).items():
            plain = Engine(TableTarget(table), verifier=verifier, tokenizer=letters()).generate(PROMPT, params)
            for stop in ({plain.token_ids[7]}, ()):
                strings = () if stop else (plain.text[9:11],)
                engine = Engine(TableTarget(table), drafter=build(), verifier=verifier, tokenizer=letters())
                events = list(engine.stream(PROMPT, replace(params, stop_ids=stop, stop=strings)))
                result = events[-1].result
                count = len(result.token_ids)
                assert [e.token for e in events[:-1]] == list(result.token_ids), name
                assert result.logprobs is not None
                assert count == len(result.logprobs) == len(result.offsets) == len(result.origins)
                assert count == result.usage.completion_tokens == result.speculation.emitted
                assert shown(events) == result.text
                assert all(math.isfinite(entry.logprob) for entry in result.logprobs)
                expected = letters().decode(result.token_ids)
                if result.finish_reason == "stop":
                    expected = expected[: -len(strings[0]) if strings else -1]
                assert result.text == expected


def test_stop_strings_without_a_tokenizer_are_refused_before_anything_joins() -> None:
    engine = Engine(line([A], 4))
    with pytest.raises(InvalidValue, match="stop strings without a tokenizer"):
        engine.generate(PROMPT, SamplingParams(stop=["x"]))
    assert not engine.live
