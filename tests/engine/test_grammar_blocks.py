"""Grammars under speculation (faults class H) on exact tables: ends, cuts, dead ends, at every place of a block."""

from __future__ import annotations

from fractions import Fraction

import pytest
from engine_kit import PROMPT, Spy, float_model, model, says

from draftproof.dist import Dist
from draftproof.draft.base import Drafter
from draftproof.draft.model import ModelDrafter
from draftproof.draft.scripted import ScriptedDrafter
from draftproof.engine import Engine
from draftproof.proof.engine_law import engine_law
from draftproof.sampling.constraint import TokenAutomaton
from draftproof.sampling.params import SamplingParams
from draftproof.schedule.fixed import FixedSchedule
from draftproof.target.table import TableModel, TableTarget
from draftproof.verify import BlockVerifier, CoupledVerifier, MatchVerifier, TokenVerifier, Verifier

X, Y, Z, EOS = range(4)
VERIFIERS = {"token": TokenVerifier(), "block": BlockVerifier(), "match": MatchVerifier(), "coupled": CoupledVerifier()}
BRACKETS = TokenAutomaton({0: {X: 1}, 1: {Y: 1, Z: 2}}, accepting={2})  # X Y* Z, then EOS
DEAD = TokenAutomaton({0: {X: 1, Y: 0}, 1: {Z: 2, Y: 0}}, accepting=set())  # after X Z nothing may come


def test_a_drafted_token_past_the_end_of_the_grammar_is_no_error_and_not_emitted() -> None:
    for tail in ([EOS], [X], [EOS, X], [EOS, EOS]):
        engine = Engine(
            TableTarget(model(4), eos_ids=[EOS]), drafter=says([X, Z, *tail, Y, Y]), schedule=FixedSchedule(6)
        )
        result = engine.generate(PROMPT, SamplingParams(max_tokens=9, grammar=BRACKETS, temperature=0))
        assert result.token_ids[0] == X
        assert result.token_ids[-1] == EOS
        assert result.finish_reason == "stop"


def test_a_draft_that_the_grammar_forbids_is_cut_before_it_is_verified() -> None:
    spy = Spy(says([X, Y, X, Y]))
    engine = Engine(TableTarget(model(4), eos_ids=[EOS]), drafter=spy, schedule=FixedSchedule(4))
    request = engine.add(PROMPT, SamplingParams(max_tokens=9, grammar=BRACKETS, seed=1))
    seen = []
    engine.observers.append(type("Watch", (), {"round": lambda self, record, settled: seen.extend(settled)})())
    engine.round()
    assert spy.proposals[0] == [X, Y, X, Y]
    assert seen[0].drafted.tokens == (X, Y)
    engine.cancel(request)


def test_drafts_that_are_always_illegal_still_give_one_legal_token_a_round() -> None:
    for script in (EOS, Z):
        drafter = ScriptedDrafter(lambda history, drafted, script=script: script)
        engine = Engine(TableTarget(model(4), eos_ids=[EOS]), drafter=drafter, schedule=FixedSchedule(3))
        automaton = TokenAutomaton({0: {X: 1}, 1: {Y: 0}}, accepting=set())
        result = engine.generate(PROMPT, SamplingParams(max_tokens=6, grammar=automaton, seed=3))
        assert list(result.token_ids) == [X, Y, X, Y, X, Y]
        assert result.speculation.rounds == 6


def test_a_dead_end_ends_the_answer_with_what_there_is() -> None:
    engine = Engine(TableTarget(model(4), eos_ids=[EOS]), drafter=says([X, Z, Y, Y]), schedule=FixedSchedule(4))
    automaton = TokenAutomaton({0: {X: 1}, 1: {Z: 2}}, accepting=set())
    result = engine.generate(PROMPT, SamplingParams(max_tokens=9, grammar=automaton, logprobs=1))
    assert list(result.token_ids) == [X, Z]
    assert (result.finish_reason, result.stop_reason) == ("grammar_dead_end", None)
    assert result.usage.completion_tokens == 2
    assert result.logprobs is not None
    assert len(result.logprobs) == 2
    assert not engine.live


def test_a_dead_end_in_the_very_first_row_gives_an_empty_answer_and_does_not_hang() -> None:
    nothing_legal = TableModel(lambda prefix: [Fraction(0), Fraction(1), Fraction(0), Fraction(0)], 4)
    engine = Engine(TableTarget(nothing_legal, eos_ids=[EOS]), drafter=says([X, X]))
    result = engine.generate(PROMPT, SamplingParams(max_tokens=9, grammar=BRACKETS))
    assert (list(result.token_ids), result.finish_reason) == ([], "grammar_dead_end")


def legal_law(table: TableModel, automaton: TokenAutomaton, budget: int) -> dict[tuple[int, ...], Fraction]:
    """The law of the answer by hand: p restricted to what the automaton allows, token by token."""
    law: dict[tuple[int, ...], Fraction] = {}
    paths: list[tuple[tuple[int, ...], object, Fraction]] = [((), 0, Fraction(1))]
    while paths:
        answer, state, weight = paths.pop()
        steps = dict(automaton.steps.get(state, {})) if answer[-1:] != (EOS,) else {}
        if answer[-1:] != (EOS,) and state in automaton.accepting:
            steps[EOS] = None
        row = table.row((*PROMPT, *answer))
        mass = sum(Fraction(row.prob(t)) for t in steps)
        if len(answer) == budget or mass == 0:
            law[answer] = law.get(answer, Fraction(0)) + weight
            continue
        for token, then in steps.items():
            if row.prob(token) > 0:
                paths.append(((*answer, token), then, weight * Fraction(row.prob(token)) / mass))
    return law


def sampled(history: tuple[int, ...], drafted: tuple[int, ...]) -> Dist:
    # X and Z in turn, more often than p has them: blocks that lead to the dead end and are not always accepted
    return Dist.checked([Fraction(w, 20) for w in ((1, 2, 15, 2) if len(drafted) % 2 else (14, 2, 3, 1))])


DRAFTERS = {
    "model": lambda: ModelDrafter(TableTarget(model(4, salt=2))),
    "sampled blind to the grammar": lambda: ScriptedDrafter(sampled),
    "points": lambda: says([X, Z, Y, Y, X]),
}


@pytest.mark.parametrize("automaton", [BRACKETS, DEAD], ids=["ends", "dead end"])
@pytest.mark.parametrize("drafter", DRAFTERS.values(), ids=DRAFTERS)
@pytest.mark.parametrize("verifier", VERIFIERS.values(), ids=VERIFIERS)
def test_the_law_under_a_grammar_is_exact_with_ends_and_dead_ends_inside_blocks(
    verifier: Verifier, drafter: type[Drafter], automaton: TokenAutomaton
) -> None:
    table = model(4)
    budget = 3 if isinstance(verifier, CoupledVerifier) else 4  # races are enumerated through cones, and those grow
    params = SamplingParams(max_tokens=budget, grammar=automaton)
    for length in (1, 3):
        law = engine_law(
            lambda length=length: Engine(
                TableTarget(table, eos_ids=[EOS]), drafter=drafter(), verifier=verifier, schedule=FixedSchedule(length)
            ),
            [(PROMPT, params)],
        )
        assert {answer[0]: p for answer, p in law.items()} == legal_law(table, automaton, budget)


def test_coupled_answers_under_a_grammar_do_not_depend_on_the_drafter() -> None:
    params = SamplingParams(max_tokens=12, grammar=BRACKETS, seed=8, temperature=0.8)
    answers = set()
    for build in (*DRAFTERS.values(), lambda: None):
        engine = Engine(
            TableTarget(float_model(4), eos_ids=[EOS]),
            drafter=build(),
            verifier=CoupledVerifier(),
            schedule=FixedSchedule(3),
        )
        answers.add(engine.generate(PROMPT, params).token_ids)
    assert len(answers) == 1
