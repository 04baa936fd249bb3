"""Constraints over ids: the cursor's walks, automata, and where EOS may come."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_kit import controls, logits, probs

from draftproof.errors import InvalidValue, Unsupported
from draftproof.sampling.constraint import Cursor, TokenAutomaton, TokenConstraint

EOS = 2
LOOPS = TokenAutomaton({0: {0: 0, 1: 1}, 1: {0: 2, 1: 1}, 2: {1: 0}}, accepting={0})
EXACTLY = TokenAutomaton({0: {0: 1}, 1: {1: 2}}, accepting={2})


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_the_matcher_after_any_walks_equals_a_fresh_one_fed_the_committed_tokens(data: st.DataObject) -> None:
    cursor = Cursor(LOOPS.start(3, frozenset([EOS])), frozenset([EOS]))
    committed: list[int] = []
    for _ in range(data.draw(st.integers(1, 6))):
        for _ in range(data.draw(st.integers(0, 3))):
            drafted = tuple(data.draw(st.lists(st.integers(0, 2), max_size=4)))
            fresh = LOOPS.start(3, frozenset([EOS]))
            taken = sum(1 for token in committed if fresh.advance(token))
            assert taken == len(committed)
            reach = 0
            while reach < len(drafted) and fresh.advance(drafted[reach]):
                reach += 1
            expected = fresh.mask().tolist() if reach == len(drafted) and drafted[-1:] != (EOS,) else None
            mask = cursor.mask(drafted)
            assert (None if mask is None else mask.tolist()) == expected
            assert cursor.reach(drafted) == reach
        mask = cursor.mask(())
        assert mask is not None
        allowed = [i for i, ok in enumerate(mask) if ok and i != EOS]
        token = data.draw(st.sampled_from(allowed))
        twin = copy.deepcopy(cursor)
        twin.mask((allowed[0],))
        cursor.commit(token)
        committed.append(token)


def test_eos_is_possible_where_the_grammar_may_end_forced_where_it_must_and_impossible_elsewhere() -> None:
    asked = controls(3, eos=[EOS], grammar=EXACTLY)
    row = logits([0, 0, 0])
    assert [probs(asked.distribution(row, 0, [0, 1][:i])) for i in range(3)] == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    free = controls(3, eos=[EOS], grammar=LOOPS)
    assert probs(free.distribution(row, 0, ())) == pytest.approx([1 / 3] * 3)
    assert probs(free.distribution(row, 0, [1])) == [0.5, 0.5, 0]


def test_rows_after_the_end_or_after_a_forbidden_token_are_no_error() -> None:
    asked = controls(3, eos=[EOS], grammar=EXACTLY)
    row = logits([0, 0, 0])
    for drafted in ([0, 1, EOS], [0, 1, EOS, EOS], [1], [0, 0, 1], [EOS]):
        assert sum(probs(asked.distribution(row, 0, drafted))) == pytest.approx(1)
    assert probs(asked.distribution(row, 0, [0])) == [0, 1, 0]


def test_allowed_prefix_ends_at_the_first_forbidden_token_and_moves_nothing() -> None:
    asked = controls(3, eos=[EOS], grammar=EXACTLY)
    assert [asked.allowed_prefix(d) for d in ([], [0], [1, 0], [0, 0, 1], [0, 1, EOS], [0, 1, EOS, 0], [0, 1, 1])] == [
        0, 1, 0, 1, 3, 3, 2,
    ]  # fmt: skip
    assert probs(asked.distribution(logits([0, 0, 0]), 0, ())) == [1, 0, 0]


def test_a_constraint_without_eos_ids_or_with_steps_on_eos_is_refused() -> None:
    with pytest.raises(Unsupported, match="without EOS"):
        controls(3, grammar=EXACTLY)
    with pytest.raises(InvalidValue, match="id 2 in state 0"):
        controls(3, eos=[EOS], grammar=TokenAutomaton({0: {2: 0}}, accepting={0}))
    with pytest.raises(InvalidValue, match="id 7"):
        controls(3, eos=[EOS], grammar=TokenAutomaton({0: {7: 0}}, accepting={0}))
    assert isinstance(EXACTLY, TokenConstraint)


def test_a_constraint_that_no_token_can_satisfy_is_refused_before_the_first() -> None:
    with pytest.raises(InvalidValue, match="no first token"):
        controls(3, eos=[EOS], grammar=TokenAutomaton({}, accepting=set()))
    with pytest.raises(InvalidValue, match="no first token"):
        controls(3, eos=[EOS], grammar=EXACTLY, banned_ids=[0])
