"""Rows over some ids give what the same rows over all of them give, -inf elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

from draftproof.errors import InvalidValue
from draftproof.sampling.controls import Controls, DeadEnd
from draftproof.sampling.params import SamplingParams
from draftproof.target.base import LogitRows

SIZE = 40
IDS = np.array([1, 2, 5, 8, 9, 13, 20, 21, 30, 39])

PARAMS = {
    "plain": {},
    "greedy": {"temperature": 0},
    "hot": {"temperature": 1.7},
    "top-k": {"top_k": 3},
    "top-p": {"top_p": 0.7},
    "min-p": {"min_p": 0.2},
    "bias": {"logit_bias": {5: 3.0, 6: 9.0, 39: -2.0}},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.3},
    "banned": {"banned_ids": frozenset({2, 3, 39})},
    "allowed": {"allowed_ids": frozenset({0, 5, 8, 30})},
    "min tokens": {"min_tokens": 3, "stop_ids": frozenset({9})},
}


@pytest.mark.parametrize("name", PARAMS)
def test_a_row_over_some_ids_is_the_row_over_all_of_them(name: str) -> None:
    source = np.random.default_rng(1)
    controls = Controls(SamplingParams(**PARAMS[name]), SIZE, prompt=[1, 5, 7], eos_ids=frozenset({20}))  # type: ignore[arg-type]
    for _ in range(50):
        values = np.round(source.normal(0, 2, (2, len(IDS))), 1).astype(np.float32)  # rounded: some are equal
        dense = np.full((2, SIZE), -np.inf, np.float32)
        dense[:, IDS] = values
        for row in (0, 1):
            found = controls.distribution(LogitRows(values, ids=IDS, size=SIZE), row, [8, 30])
            expected = controls.distribution(LogitRows(dense), row, [8, 30])
            assert found.size == expected.size == SIZE
            np.testing.assert_allclose(found.dense(), expected.dense(), rtol=1e-12, atol=0)
            assert ((found.dense() > 0) == (expected.dense() > 0)).all()


def test_no_id_of_the_row_left_is_a_dead_end() -> None:
    controls = Controls(SamplingParams(allowed_ids=frozenset({0, 3})), SIZE)
    with pytest.raises(DeadEnd):
        controls.distribution(LogitRows(np.zeros((1, len(IDS)), np.float32), ids=IDS, size=SIZE), 0, [])


def test_ids_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InvalidValue):
        LogitRows(np.zeros((1, 3)), ids=IDS, size=SIZE)
    with pytest.raises(InvalidValue):
        LogitRows(np.zeros((1, len(IDS))), ids=IDS)
