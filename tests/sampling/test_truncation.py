"""Temperature, min-p, top-k, top-p: the documented rule for ties, and the partitions against full sorts."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_kit import controls, logits, probs, table

from draftproof.sampling.truncation import as_written, most, nucleus, weights_of
from draftproof.target.base import LogitRows

SHAPES: dict[str, Any] = {
    "peaked": lambda rng, n: rng.standard_normal(n) * 4,
    "flat": lambda rng, n: rng.standard_normal(n) * 1e-3,
    "equal": lambda rng, n: np.zeros(n),
    "few values": lambda rng, n: rng.integers(0, 5, n).astype(float),
    "one far away": lambda rng, n: np.where(np.arange(n) == n // 2, 30.0, rng.standard_normal(n) * 1e-4),
    "huge": lambda rng, n: rng.standard_normal(n) * 3e37,
    "with -inf": lambda rng, n: np.where(rng.random(n) < 0.5, -np.inf, rng.standard_normal(n)),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [5000, 8191, 20_011])
def test_top_k_and_top_p_of_large_rows_equal_a_full_sort(shape: str, size: int) -> None:
    rng = np.random.default_rng(size)
    values = SHAPES[shape](rng, size).astype(np.float32)
    ranking = np.lexsort((np.arange(size), -values))
    for k in (1, 2, 50, size // 9, size - 1):
        assert most(values, k).tolist() == sorted(ranking[:k].tolist())
    for temperature in (0.3, 1.0, 20.0):
        weights = weights_of(values, temperature, values.max())
        units = [round(w * 2.0 ** (62 - size.bit_length())) for w in weights.tolist()]
        for top_p in (1e-9, 0.1, 0.5, 0.9, 0.999999, Fraction(2, 3)):
            enough, reached, count = as_written(top_p) * sum(units), 0, 0
            while reached < enough:
                reached += units[ranking[count]]
                count += 1
            assert nucleus(values, weights, top_p, size).tolist() == sorted(ranking[:count].tolist())


def test_a_border_of_one_unit_in_sums_that_no_float_holds() -> None:
    size = 5000
    one = 2.0 ** (62 - size.bit_length())
    values = np.r_[np.zeros(40), -np.arange(1.0, size - 39)].astype(np.float32)
    weights = np.r_[np.ones(40), np.full(size - 40, 1 / one)]
    high = 40 * int(one)
    total = high + size - 40
    assert total > 2**54
    for more in range(1, 30):
        assert len(nucleus(values, weights, Fraction(high + more, total), size)) == 40 + more


def test_exactly_k_are_kept_and_ties_go_to_smaller_ids_in_floats_and_fractions() -> None:
    for rows in (logits([1, 2, 1, 1, 2]), table(["1/7", "2/7", "1/7", "1/7", "2/7"])):
        for k, kept in ((1, [1]), (2, [1, 4]), (3, [0, 1, 4]), (4, [0, 1, 2, 4]), (5, [0, 1, 2, 3, 4])):
            p = probs(controls(5, top_k=k).distribution(rows, 0, ()))
            assert [i for i, prob in enumerate(p) if prob > 0] == kept


def test_top_k_above_the_vocabulary_is_the_vocabulary() -> None:
    row = logits([0.3, 0.1, 0.2])
    assert probs(controls(3, top_k=3).distribution(row, 0, ())) == probs(controls(3).distribution(row, 0, ()))
    assert probs(controls(3, top_k=10**9).distribution(row, 0, ())) == probs(controls(3).distribution(row, 0, ()))


@pytest.mark.parametrize("tenths", range(1, 10))
def test_a_share_written_as_a_decimal_keeps_that_many_of_ten_equals(tenths: int) -> None:
    for rows in (logits([0.7] * 10), table(["1/10"] * 10)):
        p = controls(10, top_p=tenths / 10).distribution(rows, 0, ())
        assert [i for i, prob in enumerate(probs(p)) if prob > 0] == list(range(tenths))


def test_top_p_keeps_the_token_that_reaches_the_share_and_none_after_it() -> None:
    half = table(["1/2", "1/4", "1/4"])
    assert probs(controls(3, top_p=0.5).distribution(half, 0, ())) == [1, 0, 0]
    assert probs(controls(3, top_p=0.500001).distribution(half, 0, ())) == [Fraction(2, 3), Fraction(1, 3), 0]
    assert probs(controls(3, top_p=1e-12).distribution(half, 0, ())) == [1, 0, 0]


def test_min_p_is_relative_to_the_most_probable_token_and_includes_its_bound() -> None:
    rows = table(["1/2", "1/4", "1/8", "1/8"])
    assert probs(controls(4, min_p=0.5).distribution(rows, 0, ())) == [Fraction(2, 3), Fraction(1, 3), 0, 0]
    assert probs(controls(4, min_p=0).distribution(rows, 0, ())) == [Fraction(x, 8) for x in (4, 2, 1, 1)]
    ties = logits([1, 1, 0.5])
    assert probs(controls(3, min_p=1.0).distribution(ties, 0, ())) == [0.5, 0.5, 0]


def test_min_p_comes_after_temperature_and_top_p_shares_what_the_others_left() -> None:
    row = LogitRows(np.log(np.array([[0.5, 0.3, 0.2]])))
    assert probs(controls(3, min_p=0.5, temperature=0.5).distribution(row, 0, ()))[1] == 0  # .36 of the first
    assert probs(controls(3, min_p=0.5, temperature=1.0).distribution(row, 0, ()))[1] > 0
    # Of the two that top-k leaves the first has 5/8: enough for 0.6 though not of the whole.
    assert controls(3, top_k=2, top_p=0.6).distribution(row, 0, ()).ids.tolist() == [0]
    assert len(controls(3, top_p=0.6).distribution(row, 0, ()).ids) == 2


def test_bfloat_ties_are_told_apart_in_float32() -> None:
    p = probs(controls(2).distribution(logits([20.0, 20.05]), 0, ()))
    assert p[0] == pytest.approx(0.4875, abs=1e-4)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([0.0, 1.0, 1.5, -np.inf, 2.0]), min_size=2, max_size=600), st.data())
def test_top_k_through_block_maxima_equals_a_sort_with_many_ties(row: list[float], data: st.DataObject) -> None:
    values = np.array(row, dtype=np.float32)
    k = data.draw(st.integers(1, len(row) - 1))
    ranking = sorted(range(len(row)), key=lambda i: (-row[i], i))
    assert most(values, k).tolist() == sorted(ranking[:k])


def test_the_rows_of_the_target_are_never_written_to() -> None:
    rows = logits([1.0, 2.0, 3.0])
    rows.values.setflags(write=False)
    everything = {"banned_ids": [0], "logit_bias": {1: 1.0}, "frequency_penalty": 1.0, "top_p": 0.9, "min_p": 0.1}
    asked = controls(3, **everything)
    asked.distribution(rows, 0, [1])
    asked.scores(rows, 0, [1], raw=True)
    asked.scores(rows, 0, [1], raw=False)


def test_log_probabilities_before_and_after_the_controls() -> None:
    rows = logits([1.0, 0.0, 2.0])
    z = math.log(math.exp(1) + 1 + math.exp(2))
    asked = controls(3, top_k=2, temperature=0.5)
    assert asked.scores(rows, 0, (), raw=True).dense().tolist() == pytest.approx([1 - z, -z, 2 - z], abs=1e-15)
    after = asked.scores(rows, 0, (), raw=False).dense()
    assert after.dtype == np.float64
    assert after.tolist() == pytest.approx(
        [math.log(1 / (1 + math.exp(2))), -math.inf, math.log(1 / (1 + math.exp(-2)))]
    )
    exact = controls(3, top_k=1).scores(table(["7/10", "3/10", "0"]), 0, (), raw=True).dense()
    assert exact.tolist() == pytest.approx([math.log(0.7), math.log(0.3), -math.inf], abs=1e-15)


def test_at_temperature_zero_log_probabilities_are_those_of_the_row_the_argmax_was_taken_of() -> None:
    asked = controls(3, temperature=0, banned_ids=[2], top_k=1)
    after = asked.scores(logits([1.0, 0.0, 9.0]), 0, (), raw=False).dense()
    z = math.log(math.exp(1) + 1)
    assert after.tolist() == pytest.approx([1 - z, -z, -math.inf])


@pytest.mark.parametrize("temperature", [1.0, 0.7, 3.0, 1e-3])
@pytest.mark.parametrize("top", [-1e4, -400.0, -1.0, 0.0, 3.5, 599.0, 601.0, 1e4, 3e38])
def test_a_row_of_any_height_is_the_same_law_with_the_same_support(top: float, temperature: float) -> None:
    """Whether or not the largest logit is subtracted first, which is a matter of speed."""
    below = np.array([0.0, -0.5, -3.0, -200.0, -700.0, -740.0, -800.0])
    values = top + below * temperature
    p = controls(len(below), temperature=temperature).distribution(LogitRows(values[None]), 0, ())
    weights = weights_of(values, temperature, values.max())
    assert np.allclose(p.dense().astype(float), weights / weights.sum(), rtol=1e-11, atol=0)
    assert not (weights > 0)[p.dense() == 0].any()
