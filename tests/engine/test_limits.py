"""Context limit, the drafter's own window, empty drafts (faults class E): a round without drafts is a plain step."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import pytest
from engine_kit import PROMPT, Spy, WatchedTarget, float_model, line, model, run, says

from draftproof.draft.base import DraftRequest, Proposal, StatelessDrafter
from draftproof.draft.chain import ChainDrafter
from draftproof.draft.lookup import LookupDrafter
from draftproof.draft.model import ModelDrafter
from draftproof.draft.scripted import ScriptedDrafter
from draftproof.engine import Engine
from draftproof.errors import BadProposal, InvalidValue
from draftproof.sampling.params import SamplingParams
from draftproof.schedule.fixed import FixedSchedule
from draftproof.target.table import TableTarget
from draftproof.verify import CoupledVerifier, Origin

GREEDY = SamplingParams(max_tokens=None, temperature=0)


@pytest.mark.parametrize("room", [1, 2, 3, 5])
def test_near_the_context_limit_the_answer_fills_it_exactly_and_says_so(room: int) -> None:
    answer = [2, 3, 2, 3, 2, 3]
    target = WatchedTarget(line(answer, 4).model, context_limit=len(PROMPT) + room)
    spy = Spy(says(answer))
    result = Engine(target, drafter=spy, schedule=FixedSchedule(3)).generate(PROMPT, GREEDY)
    assert list(result.token_ids) == answer[:room]
    assert (result.finish_reason, result.stop_reason) == ("context", None)
    assert target.most <= target.context_limit - 1  # the last token is never scored
    assert all(limit >= 1 for limit in spy.limits)


def test_a_number_of_tokens_reached_at_the_context_limit_is_length() -> None:
    target = TableTarget(line([2, 3], 4).model, context_limit=len(PROMPT) + 2)
    assert Engine(target).generate(PROMPT, SamplingParams(max_tokens=2, temperature=0)).finish_reason == "length"


def test_drafts_leave_one_token_of_the_budget_for_the_round_itself() -> None:
    spy = Spy(says([2] * 9))
    Engine(line([2] * 9, 4), drafter=spy, schedule=FixedSchedule(4)).generate(
        PROMPT, SamplingParams(max_tokens=7, temperature=0)
    )
    assert spy.limits == [4, 1]  # 5 tokens, then 2


def test_a_round_that_drafts_nothing_proposes_nothing_and_never_token_zero() -> None:
    spy = Spy(says([2, 3]))
    engine = Engine(line([2, 3, 1], 4), drafter=spy, schedule=FixedSchedule(0))
    result = engine.generate(PROMPT, SamplingParams(max_tokens=3, temperature=0))
    assert spy.proposals == []
    assert "propose" not in spy.calls
    assert list(result.token_ids) == [2, 3, 1]
    assert result.origins == (Origin.PLAIN,) * 3
    assert result.speculation.drafted == 0


def test_no_match_is_a_plain_step() -> None:
    engine = Engine(line([2, 3, 1], 4), drafter=LookupDrafter(3, 2), schedule=FixedSchedule(4))
    result = engine.generate(PROMPT, SamplingParams(max_tokens=3, temperature=0))
    assert list(result.token_ids) == [2, 3, 1]
    assert result.origins == (Origin.PLAIN,) * 3
    assert result.speculation.rounds == 3


def test_a_draft_model_whose_context_is_full_stops_proposing_and_costs_nothing() -> None:
    draft = WatchedTarget(float_model(5, salt=2), context_limit=16)
    engine = Engine(
        TableTarget(float_model(5), context_limit=64),
        drafter=ModelDrafter(draft),
        verifier=CoupledVerifier(),
        schedule=FixedSchedule(3),
    )
    params = SamplingParams(max_tokens=40, seed=2)
    request = engine.add(PROMPT, params)
    tokens, passes = [], []
    while engine.live:
        before = draft.passes
        tokens += [e.token for e in engine.round()[:4] if hasattr(e, "token")]
        if request in engine.live and len(engine.live[request].tokens) > 17:
            passes.append(draft.passes - before)
    plain = Engine(TableTarget(float_model(5)), verifier=CoupledVerifier()).generate(PROMPT, params)
    assert tuple(tokens) == plain.token_ids
    assert draft.most <= 16
    assert passes[1:] == [0] * (len(passes) - 1)


def test_a_prompt_or_budget_that_does_not_fit_is_refused_with_the_room_there_is() -> None:
    engine = Engine(TableTarget(model(3), context_limit=4))
    for prompt, params, message in (
        ([0] * 4, GREEDY, "the prompt has 4 tokens - the context holds 4, answer included"),
        ([0] * 3, SamplingParams(max_tokens=2), "leaves at most 1"),
        ([0] * 3, SamplingParams(max_tokens=None, min_tokens=2), "min_tokens=2 .* leaves at most 1"),
        ([], GREEDY, "the prompt is empty"),
        ([0, 3], GREEDY, "prompt token 3"),
        ("text", GREEDY, "without a tokenizer"),
    ):
        with pytest.raises(InvalidValue, match=message):
            engine.generate(prompt, params)
    with pytest.raises(InvalidValue, match="max_tokens=None on a target without context limit"):
        Engine(TableTarget(model(3))).generate([0], GREEDY)
    with pytest.raises(InvalidValue, match="answered token 7"):
        engine.add([0], GREEDY, answered=[7])
    with pytest.raises(InvalidValue, match="max_tokens=1 after 1 tokens of the answer"):
        engine.add([0], SamplingParams(max_tokens=1), answered=[1])
    assert not engine.live
    assert not engine.target._caches


def test_a_drafter_that_breaks_its_contract_is_named_and_the_engine_goes_on() -> None:
    class TooLong(StatelessDrafter):
        name = "eager"

        def propose(self, requests: Seq[DraftRequest]) -> list[Proposal]:
            return [Proposal([2] * (r.limit + 1), drafter=self.name) for r in requests]

    engine = Engine(line([2, 3], 4), drafter=TooLong(), schedule=FixedSchedule(2))
    with pytest.raises(BadProposal, match="'eager' proposed 3 tokens, asked for 2"):
        engine.generate(PROMPT, SamplingParams(max_tokens=5, temperature=0))
    assert not engine.live
    outside = Engine(line([2, 3], 4), drafter=says([2, 4]), schedule=FixedSchedule(2))
    with pytest.raises(BadProposal, match="proposed id 4 at position 1"):
        outside.generate(PROMPT, SamplingParams(max_tokens=5, temperature=0))


def test_a_schedule_that_asks_for_more_than_there_is_room_is_refused() -> None:
    class Greedy(FixedSchedule):
        def lengths(self, slots):  # type: ignore[no-untyped-def]
            return [9 for _ in slots]

    engine = Engine(line([2], 4), drafter=says([2]), schedule=Greedy(1))
    with pytest.raises(InvalidValue, match="asks for 9 tokens - 0 to 2"):
        engine.generate(PROMPT, SamplingParams(max_tokens=3, temperature=0))


def test_drafters_are_asked_in_their_order_and_the_second_only_when_the_first_is_silent() -> None:
    first = Spy(ScriptedDrafter(lambda history, drafted: 2 if len(history) % 2 else None, name="first"))
    second = Spy(ScriptedDrafter(lambda history, drafted: 3, name="second"))
    engine = Engine(line([1, 1, 1, 1], 4), drafter=ChainDrafter([first, second]), schedule=FixedSchedule(2))
    engine.add(PROMPT, SamplingParams(max_tokens=4, temperature=0))
    run(engine)
    assert first.proposals == [[], [2, 2], []]  # lengths 2, 3, 4; at 5 there is no room
    assert second.proposals == [[3, 3], [3]]
