"""What is kept of promises, by position: learnt, faded, and never so little that it could not be seen again."""

from __future__ import annotations

import random

import pytest

from draftproof.schedule.trust import BELIEF, LEAST, NEXT, Trust


def test_before_anything_was_seen_promises_are_believed_exactly() -> None:
    assert Trust(3).kept == [1, 1, 1]
    assert all(isinstance(kept, int) for kept in Trust(3).kept)  # so that exact survivals stay exact


def test_each_position_keeps_a_share_of_its_own() -> None:
    trust = Trust(3)
    for i in range(3000):
        trust.observe([0.8, 0.4, 0.2], [1.0 * (i % 5 < 2), 1.0 * (i % 5 < 2), 0.0])
    first, second, third = trust.kept
    assert first == pytest.approx(0.5, rel=0.05)
    assert second == pytest.approx(1, rel=0.1)
    assert 0 < third < 0.15


def test_a_position_that_was_seldom_seen_leans_on_the_one_before_it() -> None:
    trust = Trust(3)
    for _ in range(2000):
        trust.observe([0.5], [0.25])
    assert trust.kept == pytest.approx([0.5, 0.5, 0.5], rel=0.05)
    trust.observe([0.5, 0.2, 0.1], [0.25, 0.0, 0.0])
    assert trust.kept[1:] == pytest.approx([0.5, 0.5], rel=0.05)  # NEXT tokens weigh more than the one seen


def test_bad_luck_does_not_end_blocks_for_ever() -> None:
    """The second position keeps what it promises, was unlucky, and is not verified while less than 0.9 is believed."""
    trust, rng, tried = Trust(2), random.Random(3), 0
    for _ in range(60):
        trust.observe([0.5, 0.25], [1.0 * (rng.random() < 0.5), 0.0])
    assert trust.kept[1] < 0.7
    for _ in range(8000):
        deep = trust.kept[1] >= 0.9 * trust.kept[0]
        tried += deep
        promised = [0.5, 0.25] if deep else [0.5]
        trust.observe(promised, [1.0 * (rng.random() < a) for a in promised])
    assert tried > 4000


def test_luck_is_not_believed_beyond_what_was_seen() -> None:
    trust = Trust(2)
    for _ in range(50):
        trust.observe([0.5, 0.2], [0.5, 0.4])
    share = 1 + 0.2 * 50 / (NEXT + 0.2 * 50)
    assert trust.kept[1] == pytest.approx(share, rel=0.05)


def test_age_does_not_move_the_share_of_the_first_position_and_the_others_fall_back_on_it() -> None:
    """Rounds that draft nothing make what was seen worth less beside what comes, and the first share no better."""
    trust = Trust(2)
    for _ in range(500):
        trust.observe([1.0, 1.0], [0.0, 0.5])
    first, second = trust.kept
    trust.observe([], [], rounds=10_000)
    assert trust.kept[0] == pytest.approx(first)
    assert trust.promised[0] == pytest.approx(LEAST)
    assert first < trust.kept[1] < 0.2 < second
    for _ in range(300):
        trust.doubt()  # seen, and not verified
    assert trust.kept == pytest.approx([1, 1], abs=1e-3)
    assert trust.promised[0] == pytest.approx(BELIEF, rel=1e-3)


def test_rounds_that_nobody_asked_about_count_as_those_that_somebody_did() -> None:
    """Worked in all at once or one by one: the same, but for the age of the last few."""
    asked, unasked, rng = Trust(3), Trust(3), random.Random(5)
    for i in range(400):
        promised = [0.6, 0.3, 0.1][: i % 4]
        accepted = [1.0 * (rng.random() < a) for a in promised]
        for trust in (asked, unasked):
            trust.observe(promised, accepted, 1 + i % 3)
        assert len(asked.kept) == 3
        if i % 8 == 7:
            assert unasked.kept == pytest.approx(asked.kept, rel=0.02)
            assert unasked.promised == pytest.approx(asked.promised, rel=0.02)
    unasked.observe([0.5], [1.0])
    asked.observe([0.5], [1.0])
    asked.doubt()
    unasked.doubt()  # of all that was seen before it
    assert unasked.promised == pytest.approx(asked.promised, rel=0.02)
