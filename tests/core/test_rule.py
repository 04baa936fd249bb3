"""The rule of one position, on every kind of array it promises to take."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch

from draftproof import rule
from draftproof.errors import InvalidValue

SOURCE_P = [Fraction(5, 10), Fraction(3, 10), Fraction(2, 10)]
SOURCE_Q = [Fraction(7, 10), Fraction(2, 10), Fraction(1, 10)]


def exact(values):
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def every_pair(size=3, total=4):
    """All pairs of distributions over `size` tokens with denominators `total`, zeros included."""
    laws = [w for w in product(range(total + 1), repeat=size) if sum(w) == total]
    for p, q in product(laws, laws):
        yield exact([Fraction(x, total) for x in p]), exact([Fraction(x, total) for x in q])


def test_output_equals_p_exactly_for_every_pair_of_small_distributions():
    for p, q in every_pair():
        assert (rule.output_distribution(p, q) == p).all()


def test_accept_path_is_min_and_reject_path_is_max():
    for p, q in every_pair():
        assert (q * rule.accept_prob(p, q) == np.minimum(p, q)).all()
        assert (rule.reject_prob(p, q) * rule.residual(p, q) * (p != q).any() == np.maximum(0, p - q)).all()


def test_reject_prob_is_total_variation_and_one_minus_overlap():
    for p, q in every_pair():
        z = rule.reject_prob(p, q)
        assert z == abs(p - q).sum() / 2 == 1 - np.minimum(p, q).sum()


def test_the_source_texts_example_has_residual_half_half():
    p, q = exact(SOURCE_P), exact(SOURCE_Q)
    assert list(rule.residual(p, q)) == [0, Fraction(1, 2), Fraction(1, 2)]
    assert list(rule.accept_prob(p, q)) == [Fraction(5, 7), 1, 1]
    assert rule.reject_prob(p, q) == Fraction(1, 5)


def test_a_token_of_target_probability_zero_is_never_accepted():
    p, q = np.array([0.0, 1.0, 0.0]), np.array([0.5, 0.5, 0.0])
    assert rule.accept_prob(p, q).tolist() == [0, 1, 0]


def test_residual_support_is_exact_when_p_is_a_point():
    p, q = np.array([1.0, 0, 0]), np.array([0.5, 0.5, 0])
    assert rule.residual(p, q).tolist() == [1, 0, 0]


def test_residual_of_equal_distributions_is_p():
    p = np.array([0.5, 0.5, 0.0])
    assert rule.residual(p, p).tolist() == p.tolist()


@pytest.mark.parametrize("make", [lambda a: a, torch.from_numpy], ids=["numpy", "torch"])
def test_float_batches_agree_with_one_row_at_a_time(make):
    source = np.random.default_rng(0)
    p, q = (source.dirichlet(np.ones(5), size=(2, 3)) for _ in range(2))
    for function in (rule.accept_prob, rule.residual, rule.output_distribution):
        whole = np.asarray(function(make(p), make(q)))
        assert whole.shape == p.shape
        for i, j in product(range(2), range(3)):
            assert np.allclose(whole[i, j], function(p[i, j], q[i, j]), atol=0, rtol=1e-15)
    assert np.asarray(rule.reject_prob(make(p), make(q))).shape == (2, 3)
    assert np.allclose(np.asarray(rule.output_distribution(make(p), make(q))), p, atol=1e-15)


def test_torch_results_are_tensors_of_the_same_dtype():
    p = torch.tensor([0.5, 0.3, 0.2])
    q = torch.tensor([0.7, 0.2, 0.1])
    for function in (rule.accept_prob, rule.residual, rule.reject_prob, rule.output_distribution):
        assert function(p, q).dtype == torch.float32


def test_batched_fractions_stay_exact():
    p = np.stack([exact(SOURCE_P), exact(SOURCE_Q)])
    q = np.stack([exact(SOURCE_Q), exact(SOURCE_P)])
    out = rule.output_distribution(p, q)
    assert (out == p).all()
    assert all(isinstance(v, Fraction) for v in out.ravel())


@pytest.mark.parametrize("q", [np.ones(2) / 2, np.array(1.0)])
def test_unequal_shapes_are_refused(q):
    with pytest.raises(InvalidValue, match="shape"):
        rule.accept_prob(np.ones(3) / 3, q)
