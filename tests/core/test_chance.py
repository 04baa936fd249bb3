"""The seeded source: addresses, draws, and the exactness of the fast draw.

Statistical tests here reject a right program with probability below 1e-6 each (fixed seeds: they never flicker).
"""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.chance import (
    Address,
    Purpose,
    RecordedChance,
    SeededChance,
    SeededSource,
    Streams,
    pick,
    pick_slowly,
)
from draftproof.dist import BLOCK, Dist, block_sums
from draftproof.errors import InvalidValue

ADDRESSES = [
    Address(purpose, position, epoch, sample)
    for purpose, position, epoch, sample in product(Purpose, (0, 1, 7), (0, 1), (0, 1))
]


def test_no_two_addresses_share_a_random_number():
    seen = {}
    for seed in (0, 1):
        for address in ADDRESSES:
            for value in SeededChance(seed, address)._stream().random(8):
                assert value not in seen, (address, seen[value])
                seen[value] = (seed, address)


def test_an_address_repeats_whatever_was_drawn_before():
    first = SeededChance(5).at(ADDRESSES[3]).draw([0.2, 0.3, 0.5])
    busy = SeededChance(5)
    for address in ADDRESSES[4:]:
        busy.at(address).draw([0.5, 0.5])
    again = busy.at(ADDRESSES[3])
    assert again.draw([0.2, 0.3, 0.5]) == first
    assert [SeededChance(5).at(a).flip(0.5) for a in ADDRESSES] == [busy.at(a).flip(0.5) for a in ADDRESSES]


def test_different_seeds_give_different_streams():
    seeds = [*range(8), 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 2, 2**64 - 1]
    answers = [[SeededChance(seed).at(a).flip(0.5) for a in ADDRESSES] for seed in seeds]
    assert len({tuple(a) for a in answers}) == len(seeds)


def test_the_first_uniform_of_an_address_is_its_streams_own_and_asking_again_goes_on() -> None:
    """One generator serves all first uniforms; its obvious twin is a generator for each address."""
    for seed in (0, 7, 2**64 - 1):
        chance = SeededChance(seed)
        for address in ADDRESSES:
            key = np.array([seed, 0], dtype=np.uint64)
            counter = [0, address.position, address.epoch, (address.sample << 8) | address.purpose]
            own = np.random.Generator(np.random.Philox(key=key, counter=counter)).random(3)
            bound = chance.at(address)
            assert chance.at(address).peek() == own[0]
            assert [bound._uniform() for _ in range(3)] == own.tolist()


def test_a_certain_event_uses_no_randomness():
    chance = SeededChance(1)
    for certain in (0, 1, 0.0, 1.0, Fraction(0), Fraction(1)):
        assert chance.flip(certain) == (certain == 1)
    chance.draw(Dist.point(2, 5))
    chance.race(Dist.point(2, 5))
    assert not chance._asked
    chance.flip(0.5)
    assert chance._asked


@pytest.mark.parametrize("bad", [-0.1, 1.1, float("nan")])
def test_a_flip_outside_zero_to_one_is_refused(bad):
    with pytest.raises(InvalidValue):
        SeededChance(0).flip(bad)


def test_streams_that_depend_on_rounds_change_with_the_epoch_and_the_others_do_not():
    for purpose in Purpose:
        draws = [Streams(SeededChance(3), epoch).at(purpose, 9)._stream().random() for epoch in (4, 5)]
        round_free = purpose in (Purpose.COUPLING, Purpose.MATCH)
        assert (draws[0] == draws[1]) == round_free


def test_requests_with_one_seed_draw_alike_and_the_source_forgets_them():
    source = SeededSource()
    a, b = source.of(1, 42), source.of(2, 42)
    address = Address(Purpose.PROPOSAL, 3, 3)
    assert a.at(address).draw([0.5] * 2) == b.at(address).draw([0.5] * 2)
    source.forget(1)
    assert source.of(1, 42) is not a


weights = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0]), min_size=1, max_size=4 * BLOCK + 3).filter(any)


@given(weights, st.one_of(st.integers(0, 2**20 - 1), st.integers(0, 7).map(lambda n: n * 2**17)))
def test_the_two_level_draw_equals_one_running_sum(values, k):
    # Weights and u are dyadic, so that both ways of summing are exact and must agree exactly.
    array, u = np.array(values), k / 2**20
    assert pick(array, u) == pick_slowly(array, u)
    assert pick(array, u, block_sums(array)) == pick_slowly(array, u)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=3 * BLOCK).filter(any), st.floats(0, 1, exclude_max=True))
def test_a_draw_never_returns_weight_zero(values, u):
    array = np.array(values)
    assert array[pick(array, u)] > 0


@pytest.mark.parametrize("u", [0.0, np.nextafter(1.0, 0.0)])
def test_the_ends_of_the_unit_interval_stay_inside_the_support(u):
    for size in (1, 3, BLOCK, 2 * BLOCK + 1, 1000):
        array = np.zeros(size)
        for weight in (0.1, 5e-324):  # u times the smallest float is that float: rounding carries the goal to the end
            array[size // 2] = weight
            assert pick(array, u) == size // 2


@pytest.mark.parametrize("size", [3, 1000])
@pytest.mark.parametrize("how", ["draw", "race"])
def test_draws_and_races_follow_their_law(how, size):
    source = np.random.default_rng(0)
    p = source.dirichlet(np.full(size, 0.5))
    grouped = np.add.reduceat(p, np.linspace(0, size, 4)[:3].astype(int))
    counts = np.zeros(3)
    draws = 20_000
    for i in range(draws):
        chance = SeededChance(7).at(Address(Purpose.COUPLING, i))
        counts[np.searchsorted(np.linspace(0, size, 4)[1:3].astype(int), getattr(chance, how)(p), side="right")] += 1
    chi2 = ((counts - draws * grouped) ** 2 / (draws * grouped)).sum()
    assert chi2 < 27.6  # chi-square, 2 degrees of freedom: exceeded with probability 1e-6


def test_a_race_shares_its_noise_and_a_second_size_does_not_disturb_it():
    chance = SeededChance(11)
    at = [chance.at(Address(Purpose.COUPLING, i)) for i in range(200)]
    p, q = [0.5, 0.3, 0.2], [0.4, 0.4, 0.2]
    first = [a.race(p) for a in at]
    agree = np.mean([x == a.race(q) for x, a in zip(first, at, strict=True)])
    assert first == [SeededChance(11).at(Address(Purpose.COUPLING, i)).race(p) for i in range(200)]
    assert agree > 0.6  # (1-TV)/(1+TV) = 0.82 expected at least; independent draws agree in 0.36


def test_a_race_on_a_sparse_law_equals_the_race_on_its_dense_form():
    dense = np.array([0.0, 0.5, 0.0, 0.25, 0.25])
    sparse = Dist(dense[[1, 3, 4]], ids=np.array([1, 3, 4]), size=5)
    for i in range(100):
        chance = SeededChance(2).at(Address(Purpose.COUPLING, i))
        assert chance.race(sparse) == chance.race(Dist(dense))


def test_a_recorded_source_notes_address_kind_and_outcome():
    recorded = RecordedChance(SeededChance(1))
    address = Address(Purpose.ACCEPT, 4, 2)
    outcome = recorded.at(address).flip(0.5)
    drawn = recorded.draw([0.5, 0.5])
    assert recorded.records == [(address, "flip", int(outcome)), (Address(), "draw", drawn)]
