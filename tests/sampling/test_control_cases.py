"""Each control and each interacting pair, on the production engine, enumerated exactly.

`draftproof prove` runs every draft length; here the longest, which has every position of a block and the bonus.
"""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction

import pytest

from draftproof.proof.control_cases import CONTROLS, PAIRS, TOLERANCE, ControlCase, control_cases

IRRATIONAL = {"temperature", "repetition_penalty", "frequency_penalty", "presence_penalty", "logit_bias", "processors"}
CASES: dict[str, list[ControlCase]] = defaultdict(list)
for case in control_cases():
    if case.length == 3:
        CASES[case.controls].append(case)


@pytest.mark.parametrize("controls", CASES)
def test_the_law_of_the_engines_answer_is_that_of_plain_decoding(controls: str) -> None:
    asked = (CONTROLS | PAIRS)[controls]
    rational = IRRATIONAL.isdisjoint(name for name, value in asked.items() if (name, value) != ("temperature", 0))
    for case in CASES[controls]:
        outcome = case.run()
        assert outcome.error <= TOLERANCE, (outcome.name, outcome.difference)
        if rational:
            assert isinstance(outcome.error, Fraction)
            assert outcome.error == 0


def test_every_control_of_a_request_is_among_the_cases() -> None:
    proved = {name for asked in (*CONTROLS.values(), *PAIRS.values()) for name in asked}
    assert proved == IRRATIONAL | {
        "min_p", "top_k", "top_p", "banned_ids", "banned_words", "allowed_ids",
        "min_tokens", "ignore_eos", "stop_ids", "grammar",
    }  # fmt: skip
