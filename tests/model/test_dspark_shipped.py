"""The drafter that comes with the default model: found by name alone, worth having, and it changes no token."""

from __future__ import annotations

import pytest

from draftproof.draft.dspark import checkpoint as checkpoints
from draftproof.draft.shipped import folder_of, shipped
from draftproof.engine import Engine
from draftproof.load import load_engine
from draftproof.proof.equality import compare_answers
from draftproof.sampling.params import SamplingParams

pytestmark = pytest.mark.model

LEAST = 1.5  # tokens a round; greedy, on these prompts it has about 2, a drafter that is out of step has 1.0
TEXTS = (
    "Tom has 12 apples and gives 5 to Mia. How many are left? Explain step by step.",
    "Write a Python function that returns the sum of a list.",
    "List three reasons to drink water.",
)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return load_engine("smollm2", draft="dspark", schedule="fixed", draft_length=5)


@pytest.mark.parametrize(("temperature", "verifier"), [(0.0, "token"), (1.0, "coupled")])
def test_the_shipped_drafter_changes_no_token(engine: Engine, temperature: float, verifier: str) -> None:
    params = SamplingParams(max_tokens=48, temperature=temperature, seed=5)
    drafting = load_engine("smollm2", draft="dspark", verifier=verifier, schedule="fixed", draft_length=5)
    plain = load_engine("smollm2", draft="none", verifier=verifier, schedule="fixed", draft_length=0)
    prompts = [engine.encode(text) for text in TEXTS]
    expected, found = plain.generate_all(prompts, params), drafting.generate_all(prompts, params)
    assert compare_answers(plain.target, prompts, expected, found, params).faults == ()
    assert sum(r.speculation.accepted for r in found) > 10


def test_the_shipped_drafter_is_worth_having(engine: Engine) -> None:
    results = engine.generate_all(list(TEXTS), SamplingParams(max_tokens=64, temperature=0))
    rounds, tokens = (sum(r.speculation.rounds for r in results), sum(len(r.token_ids) for r in results))
    assert tokens / rounds > LEAST


def test_the_shipped_checkpoint_is_small_calibrated_and_says_how_it_was_made() -> None:
    assert shipped("dspark") == ("smollm2",)
    folder = folder_of("dspark", "", "smollm2")
    assert sum(file.stat().st_size for file in folder.iterdir()) < 25e6
    checkpoint = checkpoints.load(folder)
    assert {"sequences", "tokens", "steps", "plan", "cpu_seconds", "evaluation", "ece"} <= set(checkpoint.record)
    assert max(checkpoint.record["ece"]["after"]) < 0.03
