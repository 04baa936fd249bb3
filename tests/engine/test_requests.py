"""n answers, cancellation, Ctrl-C, speculation switched off per request (faults class S)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from engine_kit import PROMPT, Spy, WatchedTarget, five_drafters, float_model, letters, line, run, says, shown

from draftproof.chance import SeededSource
from draftproof.draft.chain import ChainDrafter
from draftproof.draft.lookup import LookupDrafter
from draftproof.draft.model import ModelDrafter
from draftproof.draft.suffix import SuffixDrafter
from draftproof.engine import Engine
from draftproof.errors import BadLogits, DraftproofError, InvalidValue
from draftproof.result import FinishEvent, TokenEvent
from draftproof.sampling.params import SamplingParams
from draftproof.schedule.fixed import FixedSchedule
from draftproof.target.base import Feed, LogitRows, Rows
from draftproof.target.table import TableTarget
from draftproof.verify import BlockVerifier, CoupledVerifier, Origin, TokenVerifier

PARAMS = SamplingParams(max_tokens=16, seed=3)


def watched(**options: object) -> tuple[Engine, WatchedTarget, WatchedTarget]:
    """An engine with a model drafter, and both models, whose caches can be counted."""
    target, draft = WatchedTarget(float_model(5)), WatchedTarget(float_model(5, salt=2))
    return Engine(target, drafter=ModelDrafter(draft), schedule=FixedSchedule(3), **options), target, draft


def left_behind(engine: Engine, *models: WatchedTarget) -> bool:
    assert isinstance(engine.chance, SeededSource)
    return bool(engine.live or engine.chance._live or any(m.open_sequences for m in models))


@pytest.mark.parametrize("verifier", [TokenVerifier(), BlockVerifier(), CoupledVerifier()])
def test_n_answers_are_independent_and_each_is_the_one_its_sample_number_gives_alone(verifier: object) -> None:
    engine, target, draft = watched(verifier=verifier)
    result = engine.generate(PROMPT, replace(PARAMS, n=4))
    answers = [choice.token_ids for choice in result.choices]
    assert len(answers) == 4
    assert result.choices[0] is result
    assert len(set(answers)) == 4  # fixed seed: a fact, not a chance
    assert all(choice.seed == 3 and choice.alternatives == () for choice in result.alternatives)
    for sample, answer in enumerate(answers):
        alone, *_ = watched(verifier=verifier)
        alone.add(PROMPT, replace(PARAMS, n=4), sample=sample)
        assert tuple(e.token for e, _ in run(alone) if isinstance(e, TokenEvent)) == answer
    assert engine.generate(PROMPT, PARAMS).token_ids == answers[0]
    assert not left_behind(engine, target, draft)


def test_n_answers_without_a_seed_share_one_that_repeats_all_of_them() -> None:
    engine, *_ = watched()
    first = engine.generate(PROMPT, replace(PARAMS, seed=None, n=3))
    again = engine.generate(PROMPT, replace(PARAMS, seed=first.seed, n=3))
    assert [c.token_ids for c in first.choices] == [c.token_ids for c in again.choices]


def test_streamed_events_of_n_answers_say_which_answer_they_belong_to() -> None:
    engine = Engine(TableTarget(float_model(5)), tokenizer=letters())
    events = list(engine.stream(PROMPT, replace(PARAMS, n=3)))
    results = {e.sample: e.result for e in events if isinstance(e, FinishEvent)}
    assert sorted(results) == [0, 1, 2]
    for sample, result in results.items():
        mine = [e for e in events if e.sample == sample]
        assert tuple(e.token for e in mine if isinstance(e, TokenEvent)) == result.token_ids
        assert shown(mine) == result.text


def test_n_for_a_single_sequence_is_refused() -> None:
    with pytest.raises(InvalidValue, match="n=2 for one sequence"):
        watched()[0].add(PROMPT, replace(PARAMS, n=2))


def test_several_prompts_at_once_give_what_each_gives_alone() -> None:
    prompts = [PROMPT, [2], [3, 3, 3], [4, 0]]
    alone = [watched()[0].generate(p, PARAMS).token_ids for p in prompts]
    engine, target, draft = watched()
    results = engine.generate_all(prompts, PARAMS)
    assert [r.token_ids for r in results] == alone
    assert target.passes <= 16
    seeds = [replace(PARAMS, seed=i, n=1 + i % 2) for i in range(4)]
    mixed = engine.generate_all(prompts, seeds)
    assert [len(r.choices) for r in mixed] == [1, 2, 1, 2]
    with pytest.raises(InvalidValue, match="1 params for 2 prompts"):
        engine.generate_all(prompts[:2], [PARAMS])
    assert not left_behind(engine, target, draft)


def test_one_bad_prompt_among_several_leaves_nothing_behind() -> None:
    engine, target, draft = watched()
    with pytest.raises(InvalidValue, match="prompt token 9"):
        engine.generate_all([PROMPT, [9]], PARAMS)
    with pytest.raises(DraftproofError):
        engine.generate(PROMPT, replace(PARAMS, banned_ids=[99]))
    assert not left_behind(engine, target, draft)


def test_a_prompt_that_fails_while_it_is_scored_leaves_nothing_behind() -> None:
    engine, target, draft = watched()
    target.fail_at = 1
    with pytest.raises(KeyboardInterrupt):
        engine.add(PROMPT, replace(PARAMS, prompt_logprobs=1))
    assert not left_behind(engine, target, draft)
    assert len(engine.generate(PROMPT, PARAMS).token_ids) == 16


def test_a_request_without_speculation_has_no_proposals_from_any_drafter() -> None:
    spies = [Spy(LookupDrafter(3, 1)), Spy(SuffixDrafter(1)), Spy(ModelDrafter(WatchedTarget(float_model(5, salt=2))))]
    engine = Engine(TableTarget(float_model(5)), drafter=ChainDrafter(spies), verifier=CoupledVerifier())
    result = engine.generate([0, 1] * 6, replace(PARAMS, draft="none"))
    assert [spy.calls for spy in spies] == [[], [], []]
    assert set(result.origins) == {Origin.PLAIN}
    assert result.speculation.drafted == 0
    assert result.speculation.drafter == "none"
    assert result.speculation.rounds == 16
    both = engine.generate_all([[0, 1] * 6] * 2, [replace(PARAMS, draft="none"), PARAMS])
    assert both[0].token_ids == both[1].token_ids == result.token_ids
    assert both[0].speculation.drafted == 0 < both[1].speculation.drafted
    assert [len(spy.inner._indexes) for spy in spies[:1]] == [0]


def test_cancelling_frees_everything_and_touches_nobody_else() -> None:
    alone = watched()[0].generate([2, 2], PARAMS).token_ids
    for after in range(4):
        engine, target, draft = watched()
        victim = engine.add(PROMPT, PARAMS)
        other = engine.add([2, 2], PARAMS)
        events = [e for _ in range(after) for e in engine.round()]
        result = engine.cancel(victim)
        assert result.finish_reason == "cancelled"
        assert len(result.token_ids) == sum(e.request == victim for e in events)
        assert target.open_sequences == draft.open_sequences == 1
        events += [e for e, _ in run(engine)]
        assert tuple(e.token for e in events if isinstance(e, TokenEvent) and e.request == other) == alone
        assert not left_behind(engine, target, draft)
    with pytest.raises(InvalidValue, match="is not live"):
        engine.cancel(victim)


def test_the_same_prompt_after_an_abort_gives_the_same_answer() -> None:
    fresh = watched()[0].generate(PROMPT, PARAMS).token_ids
    engine, target, draft = watched()
    for _ in range(3):
        request = engine.add(PROMPT, PARAMS)
        engine.round()
        engine.cancel(request)
        assert engine.generate(PROMPT, PARAMS).token_ids == fresh
    assert not left_behind(engine, target, draft)


def test_closing_a_stream_cancels_its_request() -> None:
    engine, target, draft = watched()
    stream = engine.stream(PROMPT, replace(PARAMS, n=2))
    next(stream)
    assert len(engine.live) == 2
    stream.close()
    assert not left_behind(engine, target, draft)


@pytest.mark.parametrize("verifier", [TokenVerifier(), CoupledVerifier()])
@pytest.mark.parametrize("culprit", ["target", "draft"])
def test_an_interrupt_in_the_middle_of_a_round_leaves_the_engine_usable(culprit: str, verifier: object) -> None:
    alone = watched(verifier=verifier)[0].generate([2, 2], PARAMS).token_ids
    for fail_at in range(1, 6):
        engine, target, draft = watched(verifier=verifier)
        other = engine.add([2, 2], PARAMS)
        (target if culprit == "target" else draft).fail_at = fail_at
        seen: list[TokenEvent] = []
        with pytest.raises(KeyboardInterrupt):
            list(engine.stream(PROMPT, PARAMS))
        assert list(engine.live) == [other]
        for s in engine.live.values():
            assert target.length(s.handle) <= len(s.tokens) - 1
            seen = [
                TokenEvent(other, i, t, "", o) for i, (t, o) in enumerate(zip(s.tokens[2:], s.origins, strict=True))
            ]
        rest = [e.token for e, _ in run(engine) if isinstance(e, TokenEvent)]
        assert (*(e.token for e in seen), *rest) == alone
        assert engine.generate([2, 2], PARAMS).token_ids == alone
        assert not left_behind(engine, target, draft)


def test_an_observer_that_fails_loses_no_finished_answer() -> None:
    engine = Engine(line([2, 3], 4), drafter=says([2, 3]))
    request = engine.add(PROMPT, SamplingParams(max_tokens=2, temperature=0))

    class Broken:
        def round(self, record: object, settled: object) -> None:
            raise OSError("disk full")

    engine.observers.append(Broken())
    with pytest.raises(OSError, match="disk full"):
        engine.round()
    engine.observers.clear()
    (finish,) = engine.round()
    assert isinstance(finish, FinishEvent)
    assert (finish.request, list(finish.result.token_ids)) == (request, [2, 3])


def test_a_broken_row_is_named_by_position_and_the_request_that_meets_it_can_be_cancelled() -> None:
    class Logits(TableTarget):
        def score(self, feeds: list[Feed]) -> list[Rows]:
            rows = []
            for feed, row in zip(feeds, super().score(feeds), strict=True):
                values = np.log(np.asarray(row.values, dtype=np.float64))
                first = self.length(feed.handle) - feed.rows + 1
                for j in range(feed.rows):
                    if first + j == 6:
                        values[j] = np.nan
                rows.append(LogitRows(values))
            return rows

    engine = Engine(Logits(float_model(5)), drafter=five_drafters()["lookup"](), schedule=FixedSchedule(3))
    with pytest.raises(BadLogits, match="NaN at position 6"):
        engine.generate(PROMPT, PARAMS)
    assert not engine.live
    assert len(engine.generate(PROMPT, replace(PARAMS, max_tokens=4)).token_ids) == 4


def test_sequences_join_and_leave_between_rounds_in_any_order() -> None:
    alone = {p: watched()[0].generate(list(p), PARAMS).token_ids for p in ((0, 1), (2,), (3, 3, 3))}
    engine, target, draft = watched()
    names = {}
    answers: dict[int, list[int]] = {}
    arrivals = [(0, 1), None, (2,), None, None, (3, 3, 3)]
    while arrivals or engine.live:
        if arrivals and (prompt := arrivals.pop(0)):
            names[engine.add(list(prompt), PARAMS)] = prompt
        for event in engine.round():
            if isinstance(event, TokenEvent):
                answers.setdefault(event.request, []).append(event.token)
    assert {names[r]: tuple(tokens) for r, tokens in answers.items()} == alone
    assert not left_behind(engine, target, draft)


def test_processors_are_called_by_the_names_they_were_registered_under() -> None:
    def no_two(history, logits):  # type: ignore[no-untyped-def]
        logits[2] = -1e9
        if history[-1] == 3:
            logits[3] = -1e9  # never twice in a row, drafted or not
        return logits

    engine = Engine(TableTarget(float_model(5)), drafter=says([3, 3, 3, 3, 3, 3]), processors={"no two": no_two})
    result = engine.generate(PROMPT, replace(PARAMS, max_tokens=60, processors=["no two"]))
    pairs = set(zip(result.token_ids, result.token_ids[1:], strict=False))
    assert 2 not in result.token_ids
    assert 3 in result.token_ids
    assert (3, 3) not in pairs
    with pytest.raises(DraftproofError, match="no two"):
        engine.generate(PROMPT, replace(PARAMS, processors=["no too"]))
