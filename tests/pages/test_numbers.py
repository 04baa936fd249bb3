"""The numbers in the browser are the numbers of the package: vectors written by Python, compared in JavaScript."""

from fractions import Fraction

import numpy as np
import pytest

from draftproof import rule
from draftproof.explain.page import planted_faults
from draftproof.proof.faults import faults

pytestmark = pytest.mark.browser

FUNCTIONS = {
    "acceptProb": rule.accept_prob,
    "residual": rule.residual,
    "rejectProb": rule.reject_prob,
    "outputDistribution": rule.output_distribution,
}


def random_pairs(count, seed):
    """Pairs over 3-8 tokens; a third of them with zeros in p and q."""
    rng = np.random.default_rng(seed)
    for k in range(count):
        size = int(rng.integers(3, 9))
        p, q = rng.random(size), rng.random(size)
        if k % 3 == 0:
            p[rng.integers(size)] = 0
            q[rng.integers(size)] = 0
        yield p / p.sum(), q / q.sum()


def dyadic_pairs():
    """Pairs whose every result is a float exactly: denominators that are powers of two, Z too."""
    eighths = [([4, 2, 1, 1], [2, 4, 1, 1]), ([8, 0, 0], [4, 4, 0]), ([4, 4, 0], [4, 4, 0]), ([0, 8], [8, 0])]
    for p, q in eighths:
        yield [Fraction(x, 8) for x in p], [Fraction(x, 8) for x in q]


def call(page, name, *arguments):
    return page.evaluate("([name, args]) => draftproof.numbers[name](...args)", [name, list(arguments)])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_javascript_rule_equals_the_packages_rule_to_1e9(explain, name):
    pairs = [(p.tolist(), q.tolist()) for p, q in random_pairs(200, seed=1)]
    got = explain.evaluate("([name, pairs]) => pairs.map(([p, q]) => draftproof.numbers[name](p, q))", [name, pairs])
    for (p, q), value in zip(pairs, got, strict=True):
        assert np.asarray(value) == pytest.approx(FUNCTIONS[name](np.array(p), np.array(q)), abs=1e-9)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_javascript_rule_is_exact_where_floats_are(explain, name):
    for p, q in dyadic_pairs():
        exact = np.empty((2, len(p)), dtype=object)
        exact[:] = [p, q]
        want = FUNCTIONS[name](exact[0], exact[1])
        got = call(explain, name, [float(x) for x in p], [float(x) for x in q])
        assert np.array_equal(np.asarray(got, dtype=float), np.asarray(want, dtype=float))


def test_every_fault_of_the_file_has_its_law_on_the_page_and_no_other(explain):
    names = explain.evaluate("() => Object.keys(draftproof.laws.faults)")
    assert sorted(names) == sorted(fault["name"] for fault in planted_faults())


@pytest.mark.parametrize("fault", faults()[: len(planted_faults())], ids=lambda fault: fault.name)
def test_a_faults_law_equals_the_enumerated_engine_with_that_fault(explain, fault):
    case = next(case for case in planted_faults() if case["name"] == fault.name)
    got = explain.evaluate("([name, p, q]) => draftproof.laws.faults[name](p, q)", [case["name"], case["p"], case["q"]])
    caught = fault.run()
    assert got == pytest.approx([float(x) for x in caught.first_token], abs=1e-9)
    assert caught.caught


def test_repairing_a_fault_gives_p_for_every_pair_the_bars_can_have(explain):
    pairs = [(p.tolist(), q.tolist()) for p, q in random_pairs(100, seed=2)]
    for p, output in zip(
        [p for p, _ in pairs],
        explain.evaluate("(pairs) => pairs.map(([p, q]) => draftproof.numbers.outputDistribution(p, q))", pairs),
        strict=True,
    ):
        assert output == pytest.approx(p, abs=1e-12)


def test_every_faults_law_is_a_distribution_for_every_pair_the_bars_can_have(explain):
    pairs = [(p.tolist(), q.tolist()) for p, q in random_pairs(100, seed=3)]
    pairs += [([1, 0, 0], [1, 0, 0]), ([1, 0, 0], [0, 0, 1]), ([0.5, 0.5, 0], [0.5, 0.5, 0])]
    laws = explain.evaluate(
        "(pairs) => Object.values(draftproof.laws.faults).flatMap((f) => pairs.map(([p, q]) => f(p, q)))", pairs
    )
    for law in laws:
        assert sum(law) == pytest.approx(1, abs=1e-9)
        assert min(law) >= 0


def test_tokens_per_round_and_speed_up_are_leviathans_formulas(explain):
    for a in (0, 0.25, 0.6, 0.95, 1):
        for g in (0, 1, 4, 16):
            series = sum(a**k for k in range(g + 1))  # the geometric sum that the closed form stands for
            assert call(explain, "tokensPerRound", a, g) == pytest.approx(series, abs=1e-9)
            for c in (0, 0.05, 0.5):
                assert call(explain, "speedUp", a, g, c) == pytest.approx(series / (1 + c * g), abs=1e-9)


def test_renormalising_keeps_the_sum_and_the_neighbours_proportions(explain):
    for p, _ in random_pairs(50, seed=4):
        moved = call(explain, "renormalised", p.tolist(), 0, 0.25)
        assert moved[0] == 0.25
        assert sum(moved) == pytest.approx(1, abs=1e-12)
        assert np.array(moved[1:]) * p[1:].sum() == pytest.approx(p[1:] * 0.75, abs=1e-12)
    assert call(explain, "renormalised", [1, 0, 0], 0, 0.5) == [0.5, 0.25, 0.25]
    assert call(explain, "renormalised", [0.5, 0.5], 0, 7) == [1, 0]


def test_the_dice_are_sfc32_seeded_and_repeatable(explain):
    got = explain.evaluate(
        "() => { const d = draftproof.dice.dice(12345); return Array.from({ length: 50 }, () => d.word()) }"
    )
    assert got == sfc32(12345, 50)


def sfc32(seed, count):
    """The same generator in Python: state (0, 0, seed, 1), the first twelve words thrown away."""
    a, b, c, counter = 0, 0, seed, 1
    words = []
    for _ in range(12 + count):
        out = (a + b + counter) % 2**32
        counter += 1
        a = b ^ (b >> 9)
        b = (c + (c << 3)) % 2**32
        c = (((c << 21) | (c >> 11)) % 2**32 + out) % 2**32
        words.append(out)
    return words[12:]
