"""Distributions in their three forms, against the dense obvious twin in `rule`."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof import rule
from draftproof.dist import BLOCK, Dist, _excess, block_sums, excess, residual
from draftproof.errors import BadTable, InvalidValue


@st.composite
def dists(draw, size):
    """A dense, sparse or point distribution over `size` tokens, of Fractions, floats or floats with a total."""
    weights = draw(st.lists(st.integers(0, 4), min_size=size, max_size=size).filter(any))
    probs = np.empty(size, dtype=object)
    probs[:] = [Fraction(w, sum(weights)) for w in weights]
    if draw(st.booleans()):
        probs = probs.astype(np.float64)
    form = draw(st.sampled_from(["dense", "sparse", "point"]))
    if form == "point":
        return Dist.point(draw(st.integers(0, size - 1)), size)
    total = draw(st.sampled_from([1, 0.3, 7.0])) if probs.dtype == np.float64 else 1
    ids = np.flatnonzero(probs > 0) if form == "sparse" else np.arange(size)
    return Dist(probs[ids] * total, ids=ids if form == "sparse" else None, size=size, total=total)


pairs = st.integers(1, 6).flatmap(lambda size: st.tuples(dists(size), dists(size)))


@given(pairs)
def test_residual_equals_its_dense_twin(pair):
    p, q = pair
    rest = residual(p, q)  # first: `dense` divides weights by their total
    z = rule.reject_prob(p.dense(), q.dense())
    exact = p.probs.dtype == object and q.probs.dtype != np.float64
    if z <= (0 if exact else 1e-12):  # weights with a total are divided in another order: such a mass is rounding
        assert rest is None or not exact
        return
    assert rest is not None
    wanted = rule.residual(p.dense(), q.dense())
    assert np.allclose(rest.dense().astype(float), wanted.astype(float), atol=1e-15)
    if exact and p.token is None:
        assert (rest.dense() == wanted).all()


@given(pairs, st.fractions(0, 1))
def test_weighted_excess_equals_its_dense_twin(pair, weight):
    p, q = pair
    rest, mass = excess(p, q, weight)
    wanted = np.maximum(p.dense() * weight - q.dense(), 0)
    assert np.allclose(rest.dense().astype(float), wanted.astype(float), atol=1e-15)
    assert float(mass) == pytest.approx(float(wanted.sum()), abs=1e-14)


@given(st.integers(1, 6).flatmap(dists))
def test_prob_and_dense_agree_for_every_token(dist):
    probs = [dist.prob(x) for x in range(dist.size)]  # while weights may still have a total
    assert probs == list(dist.dense())
    assert [dist.prob(x) for x in range(dist.size)] == probs
    assert float(sum(probs)) == pytest.approx(1)


def _rows(size):
    """Weights as rows have them: most are nearly nothing, and now and then one is nearly everything."""
    source = np.random.default_rng(size)
    for peak in (0, 5, 600):
        weights = np.exp(source.normal(0, 4, size))
        weights[size // 2] *= np.exp(peak)
        weights[:: size // 7 + 1] = 0
        yield weights


@pytest.mark.parametrize("size", [2, BLOCK, BLOCK + 1, 3 * BLOCK, 5 * BLOCK - 1])
def test_the_residual_of_a_row_against_a_point_mass_equals_its_twin(size):
    for weights in _rows(size):
        p = Dist.over_sum(weights, ids=None, size=size)
        assert float(p.total) == pytest.approx(weights.sum())
        for token in (0, size // 2, size - 1):
            rest = residual(p, Dist.point(token, size))
            values, mass = _excess(p, Dist.point(token, size), 1)
            if mass == 0:
                assert rest is None
                continue
            assert (rest.weights == values).all()
            assert float(rest.total) == pytest.approx(float(mass), rel=1e-12)  # also where it is 1e-260 of p's
            assert rest.sums == pytest.approx(block_sums(values), rel=1e-12)
            assert rest.weights is not p.weights


@pytest.mark.parametrize("size", [4, BLOCK + 1, 5 * BLOCK - 1])
def test_the_residual_of_a_row_against_few_tokens_equals_its_twin(size):
    for weights in _rows(size):
        p = Dist.over_sum(weights, ids=None, size=size)
        for ids in ([0, size - 1], [1, size // 2, size - 2], list(range(0, size, max(1, size // 7)))):
            ids = np.array(sorted(set(ids)))
            for q in (
                Dist.over_sum(np.arange(1.0, len(ids) + 1), ids=ids, size=size),
                Dist.over_sum(weights[ids] + 1e-300, ids=ids, size=size),
            ):
                rest = residual(p, q)
                values, mass = _excess(p, q, 1)
                if mass == 0:
                    assert rest is None
                    continue
                assert (rest.weights == values).all()
                assert float(rest.total) == pytest.approx(float(mass), rel=1e-12)
                assert rest.sums == pytest.approx(block_sums(values), rel=1e-12)
                assert rest.weights is not p.weights


def test_sums_are_forgotten_when_weights_are_divided():
    p = Dist.over_sum(next(_rows(3 * BLOCK)), ids=None, size=3 * BLOCK)
    assert p.sums == block_sums(p.weights)
    assert p.probs.sum() == pytest.approx(1)
    assert p.sums is None


def test_top_orders_ties_by_smaller_id():
    assert [t for t, _ in Dist(np.array([0.2, 0.3, 0.2, 0.3])).top(4)] == [1, 3, 0, 2]


@pytest.mark.parametrize(
    ("probs", "what"),
    [
        ([0.5, 0.6], "sums to 1.1"),
        ([Fraction(1, 2), Fraction(1, 3)], "sums to 5/6"),
        ([1.5, -0.5], "negative"),
        ([float("nan"), 1.0], "NaN"),
        ([], "shape"),
    ],
)
def test_what_is_no_distribution_is_refused(probs, what):
    with pytest.raises(BadTable, match=what):
        Dist.checked(probs)


def test_a_point_outside_the_vocabulary_is_refused():
    with pytest.raises(InvalidValue):
        Dist.point(3, 3)
