"""The default model, on both runtimes in float32 and on one with 8-bit activations: speculation changes no token.

A subset of evidence/equality.py, whose recorded results cover 20 prompts of 128 tokens and draft lengths 1 to 8.
"""

import pytest

from draftproof.draft.datastore import load
from draftproof.draft.lookup import LookupDrafter
from draftproof.draft.model import ModelDrafter
from draftproof.draft.retrieval import RetrievalDrafter
from draftproof.draft.shipped import folder_of
from draftproof.draft.suffix import SuffixDrafter
from draftproof.engine import Engine
from draftproof.load import LoadOptions, load_target
from draftproof.proof.equality import compare_answers
from draftproof.registry import make_verifier
from draftproof.sampling.params import SamplingParams
from draftproof.schedule.fixed import FixedSchedule

pytestmark = pytest.mark.model

TEXTS = (
    "Repeat this sentence three times: The quick brown fox jumps over the lazy dog.",
    "Count from 1 to 30 separated by commas.",
    "Write a limerick about a cat who likes to read.",
)
TOKENS = 48


OPENVINO = {
    "openvino": LoadOptions(backend="openvino"),
    "openvino, 8-bit": LoadOptions(backend="openvino", weights="int8", activations="int8"),
}


@pytest.fixture(scope="module", params=["transformers", *OPENVINO])
def loaded(request, smollm2):
    """(target, tokenizer) of the default model on each runtime."""
    return smollm2 if request.param == "transformers" else load_target("smollm2", OPENVINO[request.param])


@pytest.fixture(scope="module")
def prompts(loaded):
    _, tokenizer = loaded
    return [tokenizer.chat([{"role": "user", "content": text}]) for text in TEXTS]


@pytest.fixture(scope="module")
def plain(loaded, prompts):
    target, _ = loaded
    return {
        t: Engine(target, verifier=make_verifier(v), schedule=FixedSchedule(0)).generate_all(
            prompts, SamplingParams(temperature=t, max_tokens=TOKENS, seed=11)
        )
        for t, v in ((0.0, "token"), (1.0, "coupled"))
    }


@pytest.mark.parametrize("length", [1, 4, 8])
@pytest.mark.parametrize("draft", ["lookup", "suffix", "retrieval", "model"])
@pytest.mark.parametrize(("temperature", "verifier"), [(0.0, "token"), (0.0, "block"), (1.0, "coupled")])
def test_speculation_changes_no_token(loaded, prompts, plain, temperature, verifier, draft, length):
    target, _ = loaded
    drafter = {
        "lookup": LookupDrafter,
        "suffix": SuffixDrafter,
        "retrieval": lambda: RetrievalDrafter(load(folder_of("retrieval", "", "smollm2"))),
        "model": lambda: ModelDrafter(target),
    }[draft]()
    params = SamplingParams(temperature=temperature, max_tokens=TOKENS, seed=11)
    engine = Engine(target, drafter=drafter, verifier=make_verifier(verifier), schedule=FixedSchedule(length))
    answers = engine.generate_all(prompts, params)
    found = compare_answers(target, prompts, plain[temperature], answers, params)
    assert found.faults == ()
    assert found.tokens >= len(TEXTS) * 10
    if draft == "model":  # the target drafting for itself must be accepted: a check that drafting really happened
        assert sum(r.speculation.acceptance_rate for r in answers) / len(answers) > 0.9


def test_two_requests_in_one_batch_give_the_tokens_each_gives_alone(loaded, prompts):
    target, _ = loaded
    params = [SamplingParams(temperature=1.0, max_tokens=TOKENS, seed=seed) for seed in (5, 6)]

    def engine():
        return Engine(target, drafter=LookupDrafter(), verifier=make_verifier("coupled"), schedule=FixedSchedule(4))

    together = engine().generate_all(prompts[:2], params)
    for prompt, each, result in zip(prompts, params, together, strict=False):
        alone = engine().generate(prompt, each)
        assert compare_answers(target, [prompt], [alone], [result], each).faults == ()


@pytest.mark.parametrize("verifier", ["token", "block", "match", "coupled"])
def test_the_same_seed_repeats_whatever_ran_before_and_different_seeds_differ(loaded, prompts, verifier):
    target, _ = loaded
    engine = Engine(target, drafter=LookupDrafter(), verifier=make_verifier(verifier), schedule=FixedSchedule(4))
    answers = [
        engine.generate(prompts[2], SamplingParams(temperature=1.0, max_tokens=24, seed=seed)).token_ids
        for seed in (1, 2, 1)
    ]
    assert answers[0] == answers[2]
    assert answers[0] != answers[1]
