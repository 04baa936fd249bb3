"""Log-probabilities one by one: the same as those of the whole row, and the logarithms of what plain controls say."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sampling_kit import controls, logits

from draftproof.dist import Dist
from draftproof.errors import BadLogits
from draftproof.sampling.plain import plain_law
from draftproof.sampling.row import WorkingRow
from draftproof.sampling.scores import Scores


def slowly(scores: Scores, count: int) -> list[tuple[int, float]]:
    return [(i, -x) for x, i in sorted((-x, i) for i, x in enumerate(scores.dense().tolist()) if x > -math.inf)][:count]


def test_the_chosen_and_the_most_probable_tokens_equal_a_full_sort_also_with_ties_and_impossible_ones() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        size = int(rng.integers(1, 600))
        values = rng.integers(-3, 1, size).astype(np.float64)
        values[rng.random(size) < 0.3] = -np.inf
        values[rng.integers(size)] = 0.0
        row = WorkingRow(logits(values.tolist()), 0, log=True)
        if rng.random() < 0.5:
            row.restrict(rng.random(size) < 0.5)
        if not len(row.values) or row.top() == -np.inf:
            continue
        weights = np.exp(row.values.astype(np.float64))
        ids = None if row.ids is None else row.ids
        for scores in (Scores.of_logits(row), Scores.of_dist(Dist.over_sum(weights, ids=ids, size=size))):
            for count in (0, 1, 3, size, size + 5):
                assert list(scores.top(count)) == slowly(scores, count)
            assert [scores.of(i) for i in range(size)] == scores.dense().tolist()


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"temperature": 0.7},
        {"top_k": 4},
        {"top_p": 0.6, "temperature": 2.0},
        {"banned_ids": [2, 5], "logit_bias": {1: 1.5}},
        {"allowed_ids": [1, 3, 6], "repetition_penalty": 1.3},
    ],
)
def test_they_are_logarithms_of_the_law_of_plain_controls(asked: dict[str, object]) -> None:
    row = [0.5, -1.0, 3.0, 2.5, 0.0, 3.0, -4.0]
    made = controls(7, prompt=[3], answer=[1], **asked)
    scores = made.scores(logits(row), 0, (), raw=False)
    law = plain_law(made.params, row, logits=True, prompt=[3], answer=[1])
    assert law is not None
    for token in range(7):
        want = math.log(law[token]) if token in law else -math.inf
        assert scores.of(token) == pytest.approx(want, abs=1e-12)
    raw = made.scores(logits(row), 0, (), raw=True)
    total = math.log(sum(map(math.exp, row)))
    assert [raw.of(token) for token in range(7)] == pytest.approx([x - total for x in row], abs=1e-12)


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_row_that_is_no_row_is_refused(broken: float) -> None:
    with pytest.raises(BadLogits):
        Scores.of_logits(WorkingRow(logits([0.0, broken, 1.0]), 0, log=True))
