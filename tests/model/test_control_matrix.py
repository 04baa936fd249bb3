"""Every control on the default model in float32: speculation gives what plain decoding gives, part for part.

A subset of evidence/control_matrix.py (five drafters, three draft lengths and ten prompts for each control): here every
control meets one drafter and one draft length, in turn, so that all fifteen pairs occur.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from draftproof.draft.none import NoDrafter
from evidence import control_matrix as matrix

pytestmark = pytest.mark.model

TEXTS = (
    "Repeat this three times: red fish, blue fish, red fish, blue",
    "The three largest cities of the world are",
    "Dear Sir, I am writing to",
)
NAMES = list(matrix.controls(type("Stub", (), {"encode": lambda self, text: [7]})()))
PAIRS = list(product(("lookup", "model", "suffix", "lookup+model", "none"), (4, 1, 8)))


@pytest.mark.parametrize(("name", "pair"), [(name, PAIRS[i % len(PAIRS)]) for i, name in enumerate(NAMES)], ids=NAMES)
def test_a_control_gives_the_same_answer_with_speculation_as_without(smollm2, name, pair):
    target, tokenizer = smollm2
    drafter, length = pair
    params = replace(matrix.controls(tokenizer)[name], max_tokens=14)
    prompts = [tokenizer.prompt(text) for text in TEXTS]
    plain = matrix.run(target, tokenizer, NoDrafter(), 0, prompts, params)
    other = matrix.run(target, tokenizer, matrix.drafters(target)[drafter](), length, prompts, params)
    found = matrix.compare(target, prompts, plain, other, params)
    assert found.faults == ()
    if "model" in drafter:  # the target drafts for itself: a check that drafting really happened
        assert found.accepted > 0
