"""Medians, quartiles, ratios."""

import numpy as np
import pytest

from draftproof.bench.stats import Spread, ratio
from draftproof.errors import InvalidValue


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 10])
def test_quartiles_are_those_of_the_sample(count):
    values = list(np.random.default_rng(count).standard_normal(count))
    spread = Spread.of(values)
    assert [spread.low, spread.median, spread.high] == pytest.approx(np.quantile(values, [0.25, 0.5, 0.75]))
    assert spread.iqr == pytest.approx(spread.high - spread.low)
    assert spread.count == count


def test_one_slow_repeat_moves_no_median():
    assert Spread.of([10.0, 11.0, 12.0, 13.0, 900.0]).median == 12.0


def test_what_is_not_there_is_left_out_and_nothing_is_none():
    assert Spread.of([None, 2.0, None]).count == 1
    assert Spread.of([None]) is None
    assert Spread.of([]) is None


def test_nothing_to_divide_by_is_no_ratio():
    assert ratio(1.0, 0.0) is None
    assert ratio(3.0, 2.0) == 1.5


def test_a_spread_out_of_order_is_refused():
    with pytest.raises(InvalidValue):
        Spread(median=1.0, low=2.0, high=3.0, count=3)
