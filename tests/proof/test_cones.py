"""The exact law of races on shared exponentials."""

from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pytest

from draftproof.dist import Dist
from draftproof.proof.cones import everywhere, race_outcomes, volume
from draftproof.proof.enumeration import exact_distribution

P = [Fraction(5, 10), Fraction(3, 10), Fraction(2, 10)]
Q = [Fraction(7, 10), Fraction(2, 10), Fraction(1, 10)]
R = [Fraction(1, 10), Fraction(0), Fraction(9, 10)]


def joint(*laws):
    """{(winner of each race in order): probability}."""
    known = {(): everywhere(len(laws[0]))}
    for law in laws:
        dist = Dist.checked(law)
        known = {
            (*winners, token): region
            for winners, before in known.items()
            for token, region, _ in race_outcomes(before, dist)
        }
    return {winners: volume(region) for winners, region in known.items()}


def off_diagonal(p, q, i, j):
    """P(Y=i, X=j), i != j: algorithms.md section 9, integrated piece by piece.

    Between consecutive r_k = q_k/p_k the integrand is p_i q_j / (A u + B)^2, whose integral is rational.
    """
    ratios = [b / a for a, b in zip(p, q, strict=True)]
    low, high = ratios[i], ratios[j]
    if low >= high:
        return Fraction(0)
    total, cuts = Fraction(0), sorted({low, high, *(r for r in ratios if low < r < high)})
    for a, b in pairwise(cuts):
        middle = (a + b) / 2
        slope = sum((x for x, r in zip(p, ratios, strict=True) if middle > r), Fraction(0))
        level = sum((x for x, r in zip(q, ratios, strict=True) if middle <= r), Fraction(0))
        first, last = slope * a + level, slope * b + level
        total += p[i] * q[j] * (b - a) / (first * last)
    return total


def test_two_races_have_the_law_of_the_integral_formula():
    law = joint(P, Q)
    for i, j in product(range(3), repeat=2):
        if i == j:
            wanted = 1 / sum(max(y / P[i], z / Q[i]) for y, z in zip(P, Q, strict=True))
        else:
            wanted = off_diagonal(P, Q, i, j)
        assert law.get((i, j), 0) == wanted, (i, j)


@pytest.mark.parametrize("laws", [(P, Q), (Q, P), (P, R), (P, Q, R), (R, Q, P, Q)])
def test_every_race_has_its_own_law_as_marginal(laws):
    law = joint(*laws)
    assert sum(law.values()) == 1
    for place, wanted in enumerate(laws):
        for token, prob in enumerate(wanted):
            assert sum((v for k, v in law.items() if k[place] == token), Fraction(0)) == prob


def test_a_repeated_race_has_the_same_winner():
    assert all(a == b for a, b in joint(P, P))


def test_three_races_agree_with_simulation():
    """One chi-square over the joint law of three races; a right program fails with probability below 1e-6."""
    law = joint(P, Q, R)
    cells = sorted(law)
    source = np.random.default_rng(1)
    noise = source.standard_exponential((200_000, 3))
    with np.errstate(divide="ignore"):
        winners = [np.argmin(noise / np.array(w, dtype=float), axis=1) for w in (P, Q, R)]
    counts = dict.fromkeys(cells, 0)
    for key, count in zip(*np.unique(np.stack(winners, 1), axis=0, return_counts=True), strict=True):
        counts[tuple(int(k) for k in key)] = int(count)
    expected = np.array([float(law[c]) for c in cells]) * len(noise)
    chi2 = ((np.array([counts[c] for c in cells]) - expected) ** 2 / expected).sum()
    assert len(cells) <= 12
    assert chi2 < 55  # at most 11 degrees of freedom: exceeded with probability below 1e-6


def test_the_match_probability_is_between_its_bounds():
    tv = sum((abs(a - b) for a, b in zip(P, Q, strict=True)), Fraction(0)) / 2
    match = sum((v for (i, j), v in joint(P, Q).items() if i == j), Fraction(0))
    assert (1 - tv) / (1 + tv) <= match <= 1 - tv


def test_exact_distribution_couples_races_at_one_address():
    def program(chance):
        return chance.race(Q), chance.race(P)

    assert exact_distribution(program) == {(j, i): v for (i, j), v in joint(P, Q).items()}


def test_races_on_floats_end_and_have_their_own_laws_as_marginals():
    """Irrational weights arrive as floats; cutting them in rounded geometry used to leave slivers without end."""
    source = np.random.default_rng(3)
    laws = [list(source.dirichlet(np.ones(3))) for _ in range(3)]
    law = joint(*laws)
    assert sum(law.values()) == 1
    for place, wanted in enumerate(laws):
        for token, prob in enumerate(wanted):
            assert float(sum(v for k, v in law.items() if k[place] == token)) == pytest.approx(prob, abs=1e-15)
