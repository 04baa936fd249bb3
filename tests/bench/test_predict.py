"""The closed form against its own series and a simulation's worth of exact enumeration."""

from fractions import Fraction

import pytest

from draftproof.bench.calls import Round
from draftproof.bench.predict import expected_tokens, from_curve, leviathan, mean_acceptance
from draftproof.schedule.costs import CostCurve


def block(drafted: int, accepted: int, draft_seconds: float = 0.0) -> Round:
    return Round(drafted + 1, 10, drafted, accepted, accepted + 1, draft_seconds)


@pytest.mark.parametrize("alpha", [0.0, 0.25, 0.8])
@pytest.mark.parametrize("length", [0, 1, 4, 8])
def test_expected_tokens_is_the_closed_form(alpha, length):
    assert expected_tokens(alpha, length) == pytest.approx((1 - alpha ** (length + 1)) / (1 - alpha))


def test_expected_tokens_counts_every_way_a_block_can_end():
    alpha, length = Fraction(2, 3), 4
    ends = sum((k + 1) * alpha**k * (1 - alpha) for k in range(length)) + (length + 1) * alpha**length
    assert expected_tokens(alpha, length) == ends


def test_certain_acceptance_gives_every_token_and_the_bonus():
    assert leviathan([block(4, 4)] * 3, draft_cost=0.0) == 5.0


def test_drafting_is_paid_in_plain_passes():
    assert leviathan([block(4, 4)], draft_cost=0.25) == 5.0 / 2.0


def test_what_follows_a_rejection_was_not_judged():
    # Blocks of 4: all accepted; rejected at once; rejected third. Judged: 4 + 1 + 3, accepted 4 + 0 + 2.
    assert mean_acceptance([block(4, 4), block(4, 0), block(4, 2)]) == 6 / 8


def test_the_closed_form_averages_over_the_lengths_that_were_used():
    rounds = [block(1, 1), block(3, 0)]  # alpha = 1/2
    assert leviathan(rounds, 0.0) == ((1 + 0.5) + (1 + 0.5 + 0.25 + 0.125)) / 2


def test_nothing_drafted_predicts_nothing():
    assert leviathan([block(0, 0)], 0.0) is None


def test_the_curve_weighs_the_tokens_that_came_against_the_rows_they_took():
    curve = CostCurve({1: 10.0, 5: 14.0}, refine=False)
    # 5 + 1 tokens would be 60 s plain; the two rounds cost 14 + 10 s and a second of drafting each.
    assert from_curve([block(4, 4, 1.0), block(0, 0, 1.0)], curve) == 60 / 26
