"""Every bet is fair under p, for every shape of p and q, and loses its fairness where it should."""

from __future__ import annotations

import numpy as np
import pytest
from audit_tables import softmax
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.dist import Dist
from draftproof.errors import BadTable, InvalidValue
from draftproof.proof.bets import NAMES, SETS, Bets
from draftproof.proof.pit import BINS, LearnedPit, intervals, shares_of
from draftproof.proof.spectrum import LEVEL_SETS, TAIL, TEMPERS

WATCHED = [np.arange(1), *[np.arange(0)] * 3]  # one token, at a position of the first kind


def _rows(seed: int, size: int, kind: str) -> tuple[Dist, Dist | None]:
    random = np.random.default_rng(seed)
    p = softmax(3 * random.standard_normal(size))
    q = softmax(3 * random.standard_normal(size))
    if kind == "ties":
        p = random.integers(1, 4, size).astype(float)
        p /= p.sum()
        q = p.copy()
        q[:2] = q[:2][::-1]
    if kind == "equal":
        q = p
    if kind == "tail":  # most tokens less probable than what tempered bets tell apart
        p[1:] *= 1e-5
        p /= p.sum()
    if kind == "zeros" and size > 2:
        p[random.integers(size)] = 0
        p /= p.sum()
        q[random.integers(size)] = 0
        q /= q.sum()
    if kind == "point":
        return Dist(p), Dist.point(int(random.integers(size)), size)
    if kind == "none":
        return Dist(p), None
    if kind == "sparse":
        ids = np.sort(random.choice(size, max(1, size // 2), replace=False))
        return Dist(p[ids] / p[ids].sum(), ids=ids, size=size), Dist(q)
    if kind == "sparse q":
        ids = np.sort(random.choice(size, max(2, size // 2), replace=False))
        return Dist(p), Dist(q[ids] / q[ids].sum(), ids=ids, size=size)
    return Dist(p), Dist(q)


KINDS = ("dense", "ties", "equal", "tail", "zeros", "point", "none", "sparse", "sparse q")


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([2, 3, 7, 60, 300]), st.sampled_from(KINDS))
def test_the_expected_payoff_of_every_bet_is_one_under_p(seed: int, size: int, kind: str) -> None:
    p, q = _rows(seed, size, kind)
    bets = Bets.place(p, q=q, history=[0, 1, size - 1, 1], eos_ids=frozenset([size - 1]))
    dense = p.dense()
    payoffs = {x: bets.pay(x) for x in np.flatnonzero(dense)}
    means = sum(dense[x] * payoff.ratios for x, payoff in payoffs.items())
    below = [NAMES[i] for i in np.flatnonzero(means < 1 - 1e-9)]
    assert means.max() <= 1 + 1e-9, NAMES[int(means.argmax())]
    assert set(below) <= {"every draft accepted"}  # where q proposes what p forbids, some wealth is given away
    assert min(payoff.ratios.min() for payoff in payoffs.values()) >= 0
    drift = sum(dense[x] * payoff.hits for x, payoff in payoffs.items())
    assert np.abs(drift).max() < 1e-12, SETS[int(np.abs(drift).argmax())]


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([2, 7, 60]), st.sampled_from(KINDS), st.sampled_from([0.01, 0.3]))
def test_no_p_within_the_noise_gains_more_than_is_divided_away(seed: int, size: int, kind: str, noise: float) -> None:
    p, q = _rows(seed, size, kind)
    bets = Bets.place(p, q=q, history=[0, 1])
    dense = p.dense()
    possible = np.flatnonzero(dense)
    payoffs = np.array([bets.pay(x).ratios for x in possible])
    hits = np.array([bets.pay(x).hits for x in possible])
    random = np.random.default_rng(seed)
    # The worst p' for a bet puts e^noise on what it pays most for; random signs besides.
    for order in [*payoffs.T, *hits.T, *(-hits.T), *random.standard_normal((5, len(possible)))]:
        other = _tilted(dense[possible], order, noise)
        assert (other @ payoffs <= 1 + np.expm1(noise) * bets.deviation + 1e-9).all()
        assert (np.abs(other @ hits) <= np.expm1(noise) * bets.slack + 1e-9).all()


def _tilted(p: np.ndarray, order: np.ndarray, noise: float) -> np.ndarray:
    """The distribution within e^+-noise of p that puts most mass on high values of `order`."""
    best = np.argsort(-order)
    tilted = p * np.exp(-noise)
    spare = 1 - tilted.sum()
    for x in best:
        more = min(spare, p[x] * np.exp(noise) - tilted[x])
        tilted[x] += more
        spare -= more
    return tilted


@pytest.mark.parametrize("kind", KINDS)
def test_the_learned_histogram_is_fair_whatever_it_has_learned(kind: str) -> None:
    p, q = _rows(5, 40, kind)
    bets = Bets.place(p, q=q)
    dense = p.dense()
    for learned_on in ([], [int(dense.argmax())] * 30, [int(np.where(dense > 0, dense, 2).argmin())] * 5):
        total = np.zeros(2)
        for x in np.flatnonzero(dense):
            learned = LearnedPit()
            for y in learned_on:
                learned.settle(shares_of(intervals(bets, y))[None], WATCHED, np.zeros(1))
            before = learned.logs[0].copy()
            learned.settle(shares_of(intervals(bets, int(x)))[None], WATCHED, np.zeros(1))
            total += dense[x] * np.exp(learned.logs[0] - before)
        np.testing.assert_allclose(total, 1, atol=1e-9)
    assert BINS == 8


@pytest.mark.parametrize("kind", KINDS)
def test_the_masses_beside_a_token_are_sums_over_the_row(kind: str) -> None:
    p, q = _rows(6, 300, kind)
    bets = Bets.place(p, q=q)
    dense = p.dense()
    for x in np.flatnonzero(dense):
        np.testing.assert_allclose(
            bets.above(int(x)), [dense[dense > dense[x]].sum(), dense[dense >= dense[x]].sum()], atol=1e-14
        )
        np.testing.assert_allclose(bets.below(int(x)), [dense[:x].sum(), dense[: x + 1].sum()], atol=1e-14)


def test_a_drafts_support_changes_nothing_but_the_time() -> None:
    p, q = _rows(8, 300, "sparse q")
    assert q is not None
    few, all_ids = Bets.place(p, q=q), Bets.place(p, q=Dist(q.dense()))
    for x in range(300):
        np.testing.assert_allclose(few.pay(x).ratios, all_ids.pay(x).ratios, rtol=1e-11, atol=1e-13)
        np.testing.assert_allclose(few.pay(x).hits, all_ids.pay(x).hits, atol=1e-13)
    np.testing.assert_allclose(few.deviation, all_ids.deviation, rtol=1e-11)


@pytest.mark.parametrize("kind", ["ties", "tail"])
def test_a_tempered_bet_pays_the_power_of_p_with_the_tail_as_one(kind: str) -> None:
    p, _ = _rows(3, 300, kind)
    assert ((p.probs < TAIL).sum() > 100) == (kind == "tail")
    bets = Bets.place(p)
    for i, a in enumerate(TEMPERS):
        payoff = np.maximum(p.probs, TAIL) ** (a - 1)
        payoff /= p.probs @ payoff
        np.testing.assert_allclose([bets.pay(x).ratios[i] for x in range(300)], payoff, rtol=1e-12)


def test_a_level_set_holds_exactly_the_tokens_it_names() -> None:
    p = np.array([0.42, 0.04, 0.3, 0.04, 0.2])
    bets = Bets.place(p)
    members = {
        name: [x for x in range(5) if bets.pay(x).hits[i] > 0] for i, name in enumerate(SETS) if name in LEVEL_SETS
    }
    assert members["the argmax"] == [0]
    assert members["the top 2"] == [0, 2]
    assert members["the nucleus 0.9"] == [0, 2, 4]
    assert members["the min-p 0.1 set"] == [0, 2, 4]  # those above 0.042
    assert bets.mass[SETS.index("the nucleus 0.95")] == 1  # both tokens of 0.04, since they tie
    assert bets.mass[SETS.index("the top 2")] == pytest.approx(0.72)


def test_a_likelihood_ratio_bet_pays_what_its_wrong_engine_would_earn() -> None:
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.7, 0.2, 0.1])
    bets = Bets.place(p, q=q)
    # The replacement drawn from p: first-token law (0.6, 0.26, 0.14), a figure of planted_faults.jsonl.
    i = NAMES.index("replacement drawn from p")
    wrong = [p[x] * bets.pay(x).ratios[i] for x in range(3)]
    np.testing.assert_allclose(wrong, [0.6, 0.26, 0.14])
    i = NAMES.index("kept on a match, else drawn again")
    match = p @ q
    np.testing.assert_allclose([p[x] * bets.pay(x).ratios[i] for x in range(3)], q * p + (1 - match) * p)
    p, q = np.array([0.5, 0.5]), np.array([0.6, 0.4])
    bets = Bets.place(p, q=q)
    i = NAMES.index("argmax draft scored with a soft q")
    np.testing.assert_allclose([p[x] * bets.pay(x).ratios[i] for x in range(2)], [5 / 6, 1 / 6])


@pytest.mark.parametrize(
    ("p", "error"),
    [([0.5, 0.6], BadTable), ([1.5, -0.5], BadTable), ([float("nan"), 1.0], BadTable), ([], BadTable)],
)
def test_what_is_no_distribution_is_refused(p: list[float], error: type[Exception]) -> None:
    with pytest.raises(error):
        Bets.place(p)


def test_a_token_or_q_of_another_vocabulary_is_refused() -> None:
    with pytest.raises(InvalidValue):
        Bets.place([0.5, 0.5], q=[0.2, 0.3, 0.5])
    with pytest.raises(InvalidValue):
        Bets.place([0.5, 0.5]).pay(2)
