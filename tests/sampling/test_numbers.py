"""Degenerate numbers (faults class B): an id inside the support comes out, or a typed error names the place."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_kit import controls, logits, probs, table

from draftproof.chance import pick
from draftproof.errors import BadLogits
from draftproof.sampling.controls import DeadEnd
from draftproof.target.base import LogitRows

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("asked", [{}, {"temperature": 0}, {"top_k": 1}, {"top_p": 0.5}, {"min_p": 0.5}])
@pytest.mark.parametrize("bad", [NAN, INF])
def test_nan_and_infinity_in_a_row_are_an_error_and_never_an_id(asked: dict[str, Any], bad: float) -> None:
    for row in ([bad] * 5, [0.0, 1.0, bad, 2.0, -INF]):
        with pytest.raises(BadLogits):
            controls(5, **asked).distribution(logits(row), 0, ())


def test_a_row_without_any_finite_entry_has_no_token() -> None:
    with pytest.raises(DeadEnd):
        controls(9).distribution(logits([-INF] * 9), 0, ())


def test_ids_stay_below_a_vocabulary_size_that_is_no_multiple_of_eight_whatever_lies_in_the_last_tile() -> None:
    for size in (1, 7, 9, 13, 63, 65, 130):
        row = [-1.0] * size
        for last in range(max(0, size - 8), size):
            row[last] = -INF if last else -1.0
        for asked in ({"temperature": 0}, {"top_k": 5}, {"top_p": 0.9}):
            p = controls(size, **asked).distribution(logits(row), 0, ())
            assert p.size == size
            assert all(0 <= p.token_at(i) < size for i in range(len(p.probs)))


def test_greedy_takes_the_smallest_of_tied_ids_alone_and_beside_a_sampled_row() -> None:
    rows = logits([1, 1, 0], [1, 1, 0])
    assert controls(3, temperature=0).distribution(rows, 0, ()).token == 0
    controls(3, temperature=1).distribution(rows, 1, ())
    assert controls(3, temperature=0).distribution(rows, 0, ()).token == 0
    assert controls(3, temperature=0, banned_ids=[0]).distribution(rows, 0, ()).token == 1


def test_temperature_zero_is_the_argmax_and_divides_by_nothing() -> None:
    p = controls(3, temperature=0).distribution(logits([-3e38, 3e38, -INF]), 0, ())
    assert p.token == 1
    assert p.prob(1) == 1


@pytest.mark.parametrize("temperature", [5e-324, 1e-310, 1e-30, 1e30, 1e308])
def test_extreme_temperatures_give_a_distribution(temperature: float) -> None:
    p = controls(4, temperature=temperature).distribution(logits([-3e38, 0.0, 3e38, -INF]), 0, ())
    assert np.isfinite(p.probs).all()
    assert p.prob(3) == 0
    assert p.probs.sum() == pytest.approx(1, abs=1e-15)


def test_impossible_tokens_have_probability_exactly_zero() -> None:
    for asked in ({}, {"temperature": 0.5}, {"min_p": 0.1}, {"top_k": 3}, {"top_p": 1 - 1e-12}, {"logit_bias": {1: 9}}):
        p = probs(controls(3, **asked).distribution(logits([0, -INF, 0]), 0, ()))
        assert p == [0.5, 0, 0.5]


def test_a_single_allowed_token_is_certain_under_every_other_control() -> None:
    hard = {"allowed_ids": [3], "top_p": 0.1, "min_p": 0.9, "top_k": 2, "frequency_penalty": 2.0, "temperature": 9.0}
    assert controls(5, **hard).distribution(logits([9, 9, 9, -9, 9]), 0, [3, 3]).token == 3


def test_a_vocabulary_of_one_token_is_that_token() -> None:
    for asked in ({}, {"temperature": 0}, {"top_k": 4, "top_p": 0.1, "min_p": 1.0}, {"repetition_penalty": 5.0}):
        assert probs(controls(1, **asked).distribution(logits([-2.5]), 0, [0, 0])) == [1]


def test_a_processor_or_penalty_that_overflows_is_an_error_here_and_not_a_wrong_id_later() -> None:
    with pytest.raises(BadLogits):
        controls(2, prompt=[0], repetition_penalty=5e-324).distribution(logits([1, 0]), 0, ())


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_the_drawn_id_is_always_inside_the_support(data: st.DataObject) -> None:
    size = data.draw(st.sampled_from([1, 2, 7, 8, 9, 33]))
    value = st.one_of(st.sampled_from([-INF, 0.0, 1e-45, -1e-45, 3e38, -3e38]), st.floats(-60, 60, width=32))
    row = data.draw(st.lists(value, min_size=size, max_size=size).filter(lambda r: max(r) > -INF))
    asked = {
        "temperature": data.draw(st.sampled_from([0, 0.01, 1.0, 7.0])),
        "top_k": data.draw(st.integers(0, size + 1)),
        "top_p": data.draw(st.floats(0, 1, exclude_min=True)),
        "min_p": data.draw(st.floats(0, 1)),
    }
    p = controls(size, **asked).distribution(LogitRows(np.array([row], dtype=np.float32)), 0, ())
    assert not np.isnan(p.probs.astype(np.float64)).any()
    for u in (0.0, 0.5, np.nextafter(1.0, 0.0)):
        token = p.token_at(pick(p.probs.astype(np.float64), u))
        assert p.prob(token) > 0
        assert row[token] > -INF


def test_exact_rows_keep_their_exact_zeros() -> None:
    p = controls(3).distribution(table(["1", "0", "0"]), 0, ())
    assert probs(p) == [1, 0, 0]
    q = controls(3, top_k=2).distribution(table(["1/2", "1/2", "0"]), 0, ())
    assert probs(q) == [Fraction(1, 2), Fraction(1, 2), 0]
