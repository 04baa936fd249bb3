"""How much of a block is verified: the short way for one request is the long way; nothing is read before its time."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from fractions import Fraction
from itertools import accumulate
from operator import mul

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from draftproof.schedule import admission
from draftproof.schedule.admission import climb

CONFIDENCE = st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.8, 0.9, 1.0])
SECONDS = [
    lambda rows: 1.0 + 0.2 * (rows - 1),
    lambda rows: 1.0 if rows < 4 else 2.0 + 0.05 * rows,
    lambda rows: 1.0,
    lambda rows: Fraction(1) + Fraction(rows, 2),
]


@settings(max_examples=500, deadline=None)
@given(confidence=st.lists(CONFIDENCE, max_size=8), seconds=st.sampled_from(SECONDS))
@example(confidence=[0.5, 1.0], seconds=lambda rows: Fraction(1) + Fraction(rows - 1, 2))  # no rise: the first ends it
def test_one_request_alone_is_admitted_what_the_heap_would_admit(confidence: list[float], seconds: object) -> None:
    survivals = [Fraction(a) for a in accumulate(confidence, mul)]
    alone = admission._climb_alone(iter(survivals), seconds)  # type: ignore[arg-type]
    assert [alone] == admission._climb_together([iter(survivals)], seconds)  # type: ignore[arg-type]
    assert climb([iter(survivals)], seconds) == [alone]  # type: ignore[arg-type]


@pytest.mark.parametrize("requests", [1, 2])
def test_a_survival_is_read_once_everything_before_it_was_admitted_and_not_earlier(requests: int) -> None:
    read = [0] * requests

    def revealed(request: int, survivals: Seq[float]) -> Iterator[float]:
        for survival in survivals:
            read[request] += 1
            yield survival

    blocks = [[0.9, 0.8, 0.01, 0.9], [0.7, 0.02, 0.9, 0.9]][:requests]
    admitted = climb([revealed(i, block) for i, block in enumerate(blocks)], lambda rows: 1 + 0.1 * rows)
    assert admitted == [2, 1][:requests]
    assert read == [n + 1 for n in admitted]
