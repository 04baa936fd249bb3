"""The fast controls against `sampling.plain`: same support, same numbers, on rows made to be awkward."""

from __future__ import annotations

import copy
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.sampling.constraint import TokenAutomaton
from draftproof.sampling.controls import Controls, DeadEnd
from draftproof.sampling.params import SamplingParams
from draftproof.sampling.plain import plain_law
from draftproof.target.base import LogitRows, ProbRows, Rows

SIZES = st.sampled_from([1, 2, 3, 5, 7, 8, 9, 13, 31])
LOGIT = st.one_of(
    st.sampled_from([-math.inf, 0.0, -0.0, 1.0, 1.0, 2.0, 1e-45, -1e-45, 3.0e38, -3.0e38, 88.0, -104.0]),
    st.floats(-30, 30, width=32),
)
FRACTION = st.sampled_from([Fraction(1, 10), Fraction(1, 3), Fraction(1, 2), Fraction(2, 3), Fraction(1)])
SHARE = st.one_of(FRACTION, st.sampled_from([0.1, 0.3, 0.5, 0.8, 0.9, 0.999]), st.floats(1e-6, 1))


@st.composite
def rational(draw: Any, size: int) -> dict[str, Any]:
    """Controls that are exact on exact rows."""
    ids = st.integers(0, size - 1)
    asked: dict[str, Any] = {"max_tokens": None}
    optional = {
        "temperature": st.just(0),
        "top_k": st.integers(0, size + 2),
        "top_p": SHARE,
        "min_p": SHARE,
        "banned_ids": st.sets(ids, max_size=2),
        "allowed_ids": st.sets(ids, min_size=1),
        "banned_words": st.lists(st.lists(ids, min_size=1, max_size=3), max_size=3),
        "min_tokens": st.integers(0, 4),
        "stop_ids": st.sets(ids, max_size=1),
        "ignore_eos": st.booleans(),
    }
    for name in draw(st.sets(st.sampled_from(sorted(optional)), max_size=4)):
        asked[name] = draw(optional[name])
    return asked


@st.composite
def irrational(draw: Any, size: int) -> dict[str, Any]:
    """Any controls."""
    asked: dict[str, Any] = draw(rational(size))
    optional = {
        "temperature": st.sampled_from([0, 0.3, 0.7, 1.5, 30.0, 1e-3]),
        "repetition_penalty": st.sampled_from([0.5, 1.0, 1.3, 2.0]),
        "frequency_penalty": st.sampled_from([-1.0, 0.0, 0.5, 2.0]),
        "presence_penalty": st.sampled_from([-1.0, 0.0, 0.5, 2.0]),
        "logit_bias": st.dictionaries(st.integers(0, size - 1), st.sampled_from([-100.0, -1.0, 1.0, 5.0]), max_size=3),
        "processors": st.just(["tilt"]),
    }
    for name in draw(st.sets(st.sampled_from(sorted(optional)), max_size=4)):
        asked[name] = draw(optional[name])
    return asked


def tilt(history: tuple[int, ...], logits: np.ndarray) -> np.ndarray:
    return logits - 0.25 * np.arange(len(logits)) * (len(history) % 3)


def agree(rows: Rows, asked: dict[str, Any], prompt: list[int], answer: list[int], drafted: list[int]) -> None:
    """Controls fed token by token, with some drafted tokens, against the twin that gets the whole history."""
    size = rows.values.shape[1]
    eos = frozenset([size - 1])
    try:
        params = SamplingParams(**asked)
        controls = Controls(params, size, prompt=prompt, eos_ids=eos, processors={"tilt": tilt})
    except ValueError:  # a contradiction: nothing to compare
        return
    for token in answer:
        controls.commit(token)
    expected = plain_law(
        params,
        rows.values[0].tolist(),
        logits=isinstance(rows, LogitRows),
        prompt=prompt,
        answer=[*answer, *drafted],
        eos_ids=eos,
        processors={"tilt": tilt},
    )
    peak = int(rows.values[0].argmax()) if isinstance(rows, LogitRows) else None  # what the engine knows of the row
    if expected is None:
        for known in {None, peak}:
            with pytest.raises(DeadEnd):
                controls.distribution(rows, 0, drafted, peak=known)
        return
    p = controls.distribution(rows, 0, drafted)
    found = {i: prob for i, prob in enumerate(p.dense().tolist()) if prob > 0}
    assert controls.distribution(rows, 0, drafted, peak=peak).dense().tolist() == p.dense().tolist()
    assert p.size == size
    assert p.ids is None or (np.diff(p.ids) > 0).all()
    assert found.keys() == expected.keys()
    if p.exact and params.temperature != 0:
        assert found == expected
    else:
        assert all(math.isclose(found[i], expected[i], rel_tol=1e-13) for i in found)
        assert math.isclose(sum(found.values()), 1, rel_tol=1e-13)


def tokens(size: int, most: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, size - 1), max_size=most)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_rows_of_logits_equal_the_slow_twin_with_the_same_support(data: st.DataObject) -> None:
    size = data.draw(SIZES)
    row = data.draw(st.lists(LOGIT, min_size=size, max_size=size).filter(lambda r: max(r) > -math.inf))
    rows = LogitRows(np.array([row], dtype=data.draw(st.sampled_from([np.float32, np.float64]))))
    agree(rows, data.draw(irrational(size)), *(data.draw(tokens(size, n)) for n in (3, 4, 3)))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_exact_rows_under_rational_controls_equal_the_slow_twin_exactly(data: st.DataObject) -> None:
    size = data.draw(SIZES)
    weights = data.draw(st.lists(st.integers(0, 3), min_size=size, max_size=size).filter(any))
    values = np.empty((1, size), dtype=object)
    values[0] = [Fraction(w, sum(weights)) for w in weights]
    agree(ProbRows(values), data.draw(rational(size)), *(data.draw(tokens(size, n)) for n in (3, 4, 3)))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_tables_of_floats_and_irrational_controls_on_exact_tables_equal_the_slow_twin(data: st.DataObject) -> None:
    size = data.draw(SIZES)
    weights = data.draw(st.lists(st.integers(0, 3), min_size=size, max_size=size).filter(any))
    values = np.empty((1, size), dtype=object)
    values[0] = [Fraction(w, sum(weights)) for w in weights]
    if data.draw(st.booleans()):
        values = values.astype(np.float64)
    agree(ProbRows(values), data.draw(irrational(size)), *(data.draw(tokens(size, n)) for n in (3, 4, 3)))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_drafted_tokens_leave_nothing_behind_and_copies_do_not_share(data: st.DataObject) -> None:
    size = data.draw(st.sampled_from([3, 5]))
    automaton = TokenAutomaton({0: {0: 0, 1: 1}, 1: {0: 1, 1: 0}}, accepting={0, 1})
    asked = {**data.draw(irrational(size)), "grammar": automaton, "ignore_eos": False}
    rows = LogitRows(
        np.array([data.draw(st.lists(st.floats(-5, 5, width=32), min_size=size, max_size=size))], np.float32)
    )
    try:
        params = SamplingParams(**asked)
        visited, clean = (
            Controls(params, size, prompt=[0], eos_ids=frozenset([2]), processors={"tilt": tilt}) for _ in range(2)
        )
    except ValueError:
        return
    for token in data.draw(st.lists(st.integers(0, 1), max_size=4)):
        drafted = data.draw(st.lists(st.integers(0, size - 1), max_size=4))
        for i in data.draw(st.permutations(range(len(drafted) + 1))):
            outcome(visited, rows, drafted[:i])
        visited.allowed_prefix(drafted)
        copy.deepcopy(visited).commit(token)
        visited.commit(token)
        clean.commit(token)
        assert outcome(visited, rows, []) == outcome(clean, rows, [])


def outcome(controls: Controls, rows: Rows, drafted: list[int]) -> object:
    try:
        return controls.distribution(rows, 0, drafted).dense().tolist()
    except DeadEnd:
        return None
