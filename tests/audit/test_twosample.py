"""The two-sample test: fair for any common law, and it finds engines that differ."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from audit_tables import SIZE, Markov

from draftproof.errors import InvalidValue
from draftproof.proof.twosample import TwoSampleTest

WORDS = [(0,), (1, 0), (1, 1)]
CHANCES = np.array([0.5, 0.3, 0.2])


def test_over_all_pairs_of_pairs_the_e_value_averages_one() -> None:
    total = 0.0
    for indices in itertools.product(range(3), repeat=6):  # three pairs from one law, every outcome
        test = TwoSampleTest()
        for i, j in zip(indices[::2], indices[1::2], strict=True):
            test.update(WORDS[i], WORDS[j], prompt="p")
        total += float(np.prod(CHANCES[list(indices)])) * math.exp(test.log_e)
    assert total == pytest.approx(1)


def test_with_different_laws_the_average_is_above_one() -> None:
    # The check can fail: the same sum with the second engine's law changed.
    other = np.array([0.1, 0.3, 0.6])
    total = 0.0
    for indices in itertools.product(range(3), repeat=6):
        test = TwoSampleTest()
        for i, j in zip(indices[::2], indices[1::2], strict=True):
            test.update(WORDS[i], WORDS[j], prompt="p")
        weight = np.prod(CHANCES[list(indices[::2])]) * np.prod(other[list(indices[1::2])])
        total += float(weight) * math.exp(test.log_e)
    assert total > 1.01


def _answers(markov: Markov, seed: int, power: float) -> list[int]:
    """An answer of 20 tokens from p^power, ending early at token 11."""
    random = np.random.default_rng(seed)
    text = [0, 1]
    while len(text) < 22 and (len(text) == 2 or text[-1] != SIZE - 1):
        weights = markov.p[text[-2], text[-1]] ** power
        text.append(int(random.choice(SIZE, p=weights / weights.sum())))
    return text[2:]


def _run(power: float, pairs: int, level: float) -> TwoSampleTest:
    markov = Markov()
    test = TwoSampleTest(level=level)
    for i in range(pairs):
        test.update(_answers(markov, 2 * i, 1), _answers(markov, 2 * i + 1, power), prompt=None)
        if test.rejected:
            break
    return test


def test_engines_of_one_law_raise_no_alarm() -> None:
    assert not _run(1, 600, 1e-4).rejected  # an alarm has probability at most 1e-4


@pytest.mark.parametrize("power", [1.6, 0.6])
def test_an_engine_at_another_temperature_is_found(power: float) -> None:
    test = _run(power, 600, 1e-6)
    assert test.rejected, test.result()


def test_a_number_the_servers_report_can_give_them_away() -> None:
    random = np.random.default_rng(0)
    test = TwoSampleTest(level=1e-6, features=["mean log-probability"])
    for _ in range(200):
        a, b = random.normal(-1, 1), random.normal(0.5, 1)
        test.update([1], [1], features=({"mean log-probability": a}, {"mean log-probability": b}))
    result = test.result()
    assert result.rejected
    assert result.guesses[0].name == "mean log-probability"


def test_equal_answers_and_missing_features_are_ties() -> None:
    test = TwoSampleTest(features=["x"])
    test.update([1, 2], [1, 2], features=({"x": 1.0}, {}))
    assert test.log_e == pytest.approx(0)
    with pytest.raises(InvalidValue):
        TwoSampleTest(level=2)
