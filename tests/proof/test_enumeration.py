"""Walking every branch of a program."""

from fractions import Fraction

import numpy as np
import pytest

from draftproof.chance import Address, Purpose
from draftproof.dist import Dist, residual
from draftproof.errors import BadTable, DraftproofError, InvalidValue, StreamReuse
from draftproof.proof.enumeration import exact_distribution

P = [Fraction(5, 10), Fraction(3, 10), Fraction(2, 10)]
Q = [Fraction(7, 10), Fraction(2, 10), Fraction(1, 10)]


def users_verifier(p, q, chance):
    """A verifier as a user would write it: no engine, no addresses."""
    x = chance.draw(q)
    if chance.flip(min(1, p[x] / q[x])):
        return x
    return chance.draw(residual(Dist.checked(p), Dist.checked(q)))


def test_a_users_own_verifier_is_proved_in_one_line():
    assert exact_distribution(lambda chance: users_verifier(P, Q, chance)) == dict(enumerate(P))


def test_probabilities_stay_fractions_when_the_programs_are():
    law = exact_distribution(lambda chance: (chance.flip(Fraction(1, 3)), chance.draw(P)))
    assert law[True, 2] == Fraction(1, 15)
    assert all(isinstance(v, Fraction) for v in law.values())


@pytest.mark.parametrize("kind", [list, np.array, tuple])
def test_floats_and_any_sequence_are_taken(kind):
    law = exact_distribution(lambda chance: chance.draw(kind([0.5, 0.25, 0.25])))
    assert law == {0: 0.5, 1: 0.25, 2: 0.25}
    assert all(isinstance(v, float) for v in law.values())


def test_torch_tensors_are_taken():
    import torch

    law = exact_distribution(lambda chance: chance.draw(torch.tensor([0.5, 0.5])))
    assert law == {0: 0.5, 1: 0.5}


def test_branches_of_probability_zero_are_not_visited():
    def program(chance):
        visited.append(1)
        return chance.draw([Fraction(0), Fraction(1), Fraction(0)]), chance.flip(0), chance.flip(1.0)

    visited = []
    assert exact_distribution(program) == {(1, False, True): 1}
    assert len(visited) == 1


def test_a_loop_that_ends_with_probability_one_within_bounds_is_walked_whole():
    def program(chance):
        count = 0
        while count < 5 and chance.flip(Fraction(1, 2)):
            count += 1
        return count

    assert exact_distribution(program) == {k: Fraction(1, 2 ** (k + 1)) for k in range(5)} | {5: Fraction(1, 32)}


def test_one_address_drawn_from_twice_is_reported():
    def program(chance):
        stream = chance.at(Address(Purpose.ACCEPT, 3, 1))
        return stream.flip(Fraction(1, 2)), chance.at(Address(Purpose.ACCEPT, 3, 1)).flip(Fraction(1, 2))

    with pytest.raises(StreamReuse, match="ACCEPT"):
        exact_distribution(program)


def test_certain_events_may_share_an_address():
    def program(chance):
        stream = chance.at(Address(Purpose.ACCEPT, 3, 1))
        return stream.flip(1), stream.flip(Fraction(1, 2)), stream.flip(0)

    assert sum(exact_distribution(program).values()) == 1


def test_bad_probabilities_are_refused():
    with pytest.raises(InvalidValue):
        exact_distribution(lambda chance: chance.flip(Fraction(3, 2)))
    with pytest.raises(BadTable):
        exact_distribution(lambda chance: chance.draw([Fraction(1, 2), Fraction(1, 3)]))


def test_a_race_over_many_tokens_is_refused_and_not_left_running():
    with pytest.raises(DraftproofError, match="at most"):
        exact_distribution(lambda chance: chance.race([1 / 16] * 16))
