"""Lookup and suffix drafters against slow obvious twins."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.draft.base import DraftRequest
from draftproof.draft.lookup import LookupDrafter, copy_from
from draftproof.draft.suffix import SuffixAutomaton, SuffixDrafter
from draftproof.errors import InvalidValue

texts = st.lists(st.integers(0, 2), min_size=1, max_size=40)
cuts = st.lists(st.integers(1, 40), max_size=6)


def ask(drafter, tokens, limit=4, id=0):
    (proposal,) = drafter.propose([DraftRequest(id, tokens, 1, limit, None)])
    return list(proposal.tokens)


def slow_lookup(tokens, longest, shortest, limit):
    for size in range(min(longest, len(tokens) - 1), shortest - 1, -1):
        for start in range(len(tokens) - 1, size - 1, -1):
            if tokens[start - size : start] == tokens[-size:]:
                return copy_from(tokens, start, limit)
    return []


@given(texts, cuts, st.integers(1, 4), st.integers(1, 4), st.integers(1, 6))
def test_lookup_equals_a_search_over_all_positions(tokens, steps, a, b, limit):
    shortest, longest = sorted((a, b))
    drafter = LookupDrafter(longest, shortest)
    drafter.open(0)
    for cut in sorted(c for c in steps if c < len(tokens)):  # taken in piece by piece, as rounds do
        drafter.commit(0, tokens[:cut])
    assert ask(drafter, tokens, limit) == slow_lookup(tokens, longest, shortest, limit)


def slow_match(tokens):
    """(length, ends) of the longest ending that also occurs earlier, and all places where it ends."""
    for size in range(len(tokens) - 1, 0, -1):
        ends = [e for e in range(size - 1, len(tokens) - 1) if tokens[e - size + 1 : e + 1] == tokens[-size:]]
        if ends:
            return size, ends
    return 0, [-1]


@given(texts)
def test_the_automaton_finds_the_longest_earlier_occurrence_of_the_ending(tokens):
    automaton = SuffixAutomaton()
    for i, token in enumerate(tokens):
        automaton.extend([token])
        length, ends = slow_match(tokens[: i + 1])
        assert automaton.match[0] == length
        assert automaton.match[1] in ends


@given(texts, texts)
def test_stepping_through_another_text_tracks_the_longest_ending_found_in_it(memory, tokens):
    automaton = SuffixAutomaton()
    automaton.extend(memory)
    state = length = 0
    for i, token in enumerate(tokens):
        state, length = automaton.step(state, length, token)
        windows = [tokens[i + 1 - n : i + 1] for n in range(i + 1, 0, -1)]
        longest = next((len(w) for w in windows if any(memory[k : k + len(w)] == w for k in range(len(memory)))), 0)
        assert length == longest
        if longest:
            end = automaton.recent[state]
            assert memory[end + 1 - longest : end + 1] == tokens[i + 1 - longest : i + 1]


def test_suffix_proposes_more_after_a_longer_match():
    drafter = SuffixDrafter(shortest=1)
    drafter.open(0)
    assert ask(drafter, [1, 2, 3, 4, 5, 6, 1], limit=10) == [2, 3]
    drafter.open(1)
    assert ask(drafter, [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3], limit=10, id=1) == [4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("make", [lambda: LookupDrafter(3, 1), lambda: SuffixDrafter(1)])
def test_no_match_is_an_empty_proposal_and_never_token_zero(make):
    drafter = make()
    drafter.open(0)
    assert ask(drafter, [1, 2, 3, 4]) == []
    assert ask(drafter, [1, 2, 3, 4, 2]) != []


def test_lookup_by_name_goes_down_to_single_tokens_after_longer_matches():
    drafter = LookupDrafter()
    drafter.open(0)
    assert ask(drafter, [1, 2, 3, 9, 2], limit=2) == [3, 9]  # only "2" came before
    drafter.open(1)
    assert ask(drafter, [1, 2, 3, 9, 2, 4, 1, 2], limit=2, id=1) == [3, 9]  # "1 2" did, though "2" did so later


def test_suffix_remembers_ended_sequences_only_when_asked_to():
    for remember, found in ((0, []), (100, [12, 13])):
        drafter = SuffixDrafter(shortest=2, remember=remember)
        drafter.open(0)
        drafter.commit(0, [10, 11, 12, 13])
        drafter.close(0)
        drafter.open(1)
        assert ask(drafter, [1, 10, 11], id=1, limit=5) == found


def test_the_memory_stays_within_its_size_and_no_match_crosses_answers():
    drafter = SuffixDrafter(shortest=1, remember=20)
    for id in range(10):
        drafter.open(id)
        drafter.commit(id, [id, id + 1, id + 2])
        drafter.close(id)
    assert len(drafter._memory.tokens) <= 20
    drafter.open(99)
    assert ask(drafter, [50, 11], id=99) == []  # 11 ended the last answer; what follows it is another one


def test_sequences_do_not_see_each_others_tokens():
    drafter = LookupDrafter(2, 1)
    for id in (0, 1):
        drafter.open(id)
    drafter.commit(0, [7, 8, 9])
    assert ask(drafter, [5, 7], id=1) == []


@given(texts)
def test_a_copied_drafter_goes_on_like_the_original(tokens):
    for make in (lambda: LookupDrafter(3, 1), lambda: SuffixDrafter(1)):
        drafter = make()
        drafter.open(0)
        drafter.commit(0, tokens[: len(tokens) // 2])
        twin = copy.deepcopy(drafter)
        assert ask(twin, tokens) == ask(drafter, tokens)


@pytest.mark.parametrize(
    "make",
    [lambda: LookupDrafter(1, 2), lambda: LookupDrafter(2, 0), lambda: SuffixDrafter(0), lambda: SuffixDrafter(1, -1)],
)
def test_senseless_sizes_are_refused(make):
    with pytest.raises(InvalidValue):
        make()
