"""Telling a rounding tie from a fault, on a target whose rounding is known."""

import dataclasses

import numpy as np
import pytest

from draftproof.engine import Engine
from draftproof.errors import InvalidValue
from draftproof.proof.equality import compare_answers, first_difference, row_noise, rows_by_width
from draftproof.sampling.params import SamplingParams
from draftproof.target.base import LogitRows
from draftproof.target.table import TableModel, TableTarget

NOISE = 1e-5
GREEDY = SamplingParams(max_tokens=3, temperature=0.0)


class RoundingTarget(TableTarget):
    """Logits of a table; the first logit moves by NOISE with the number of rows in the pass."""

    def score(self, feeds):
        answers = []
        for feed, rows in zip(feeds, super().score(feeds), strict=True):
            logits = np.log(rows.values.astype(np.float64))
            logits[:, 0] += NOISE * (len(feed.tokens) % 2)
            answers.append(LogitRows(logits))
        return answers


def target(gap):
    """Two tokens whose logits are `gap` apart after every prefix."""
    p = 1 / (1 + np.exp(-gap))
    return RoundingTarget(TableModel({(): [1 - p, p]}, 2))


def answer(tokens):
    result = Engine(TableTarget(TableModel({(): [0.5, 0.5]}, 2))).generate([0], GREEDY)
    return dataclasses.replace(result, token_ids=tuple(tokens), seed=7)


@pytest.mark.parametrize(("gap", "tie"), [(NOISE / 2, True), (NOISE * 3, False), (1.0, False)])
def test_a_greedy_difference_is_a_tie_only_below_the_measured_row_noise(gap, tie):
    found = compare_answers(target(gap), [[0]], [answer([1, 1, 1])], [answer([1, 0, 1])], GREEDY)
    assert len(found.divergences) == 1
    d = found.divergences[0]
    assert (d.position, d.plain, d.other) == (1, 1, 0)
    assert d.noise == pytest.approx(NOISE, rel=1e-3)
    assert d.margin == pytest.approx(gap, abs=1.01 * NOISE)
    assert d.tie is tie
    assert len(found.faults) == (not tie)
    assert found.tokens == 1


def test_a_coupled_difference_needs_arrival_times_within_the_noise():
    params = SamplingParams(max_tokens=3, seed=7)
    found = compare_answers(target(0.3), [[0]], [answer([1, 1, 1])], [answer([1, 0, 1])], params)
    assert found.divergences[0].margin > 1e-3
    assert len(found.faults) == 1


def test_equal_answers_have_no_divergence():
    found = compare_answers(target(1.0), [[0], [0]], [answer([1, 1])] * 2, [answer([1, 1])] * 2, GREEDY)
    assert found.divergences == ()
    assert (found.answers, found.tokens) == (2, 4)


def test_an_answer_that_ends_early_is_a_fault():
    found = compare_answers(target(1e-9), [[0]], [answer([1, 1, 1])], [answer([1, 1])], GREEDY)
    assert len(found.faults) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2


def test_other_seeds_are_refused():
    a = answer([1])
    with pytest.raises(InvalidValue, match="seeds"):
        compare_answers(target(1.0), [[0]], [a], [dataclasses.replace(a, seed=8)], SamplingParams(temperature=1.0))


def test_noise_is_the_largest_change_of_a_difference_of_two_logits():
    rows = np.array([[0.0, 1.0, -np.inf], [0.1, 0.8, -np.inf], [0.1, 1.1, -np.inf]])
    assert row_noise(rows) == pytest.approx(0.3)  # between the first two: +0.1 and -0.2
    assert row_noise(rows + np.array([[5.0], [0.0], [0.0]])) == pytest.approx(0.3)


def test_rows_by_width_leave_the_target_as_it_was():
    fresh = target(1.0)
    assert rows_by_width(fresh, [0] * 50).shape == (5, 2)
    assert fresh._caches == {}
    with pytest.raises(InvalidValue):
        rows_by_width(TableTarget(TableModel({(): [0.5, 0.5]}, 2)), [0])
