"""Peers: transformers' own sampling on a tiny random model, right and with settings that change its law."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from draftproof.audit.peers import audit_peers
from draftproof.audit.report import Verdict
from draftproof.audit.transformers_peer import TransformersPeer
from draftproof.errors import InvalidValue
from draftproof.target.transformers import TransformersTarget

SIZE = 64
PROMPTS = [[1, 2, 3], [7, 7, 7, 7]]


def _model(seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=SIZE,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=256,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(30)  # rows with a favourite, not nearly uniform ones
    return model


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # matrices of 32 columns gain nothing from more
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return _model(0)


@pytest.fixture(scope="module")
def target(model: LlamaForCausalLM) -> TransformersTarget:
    return TransformersTarget(model, name="tiny", eos_ids=frozenset([0]))


def test_plain_sampling_shows_nothing_and_a_cut_or_a_temperature_does(
    model: LlamaForCausalLM, target: TransformersTarget
) -> None:
    peers = [
        TransformersPeer(model, eos_ids=frozenset([0])),
        TransformersPeer(model, eos_ids=frozenset([0]), name="cut to ten", top_k=10),
        TransformersPeer(model, eos_ids=frozenset([0]), name="colder", temperature=0.7),
    ]
    report = audit_peers("transformers", peers, target, PROMPTS, tokens=400, answer=40, packages=["transformers"])
    verdicts = {f.check: f.verdict for f in report.findings if f.check.endswith("sampled text")}
    assert list(verdicts.values()) == [Verdict.NOTHING, Verdict.WRONG, Verdict.WRONG]
    assert report.statistics["cut to ten"].rejected
    assert not report.ok
    seeds = [f for f in report.findings if "seed" in f.check]
    assert {f.verdict for f in seeds} == {Verdict.HONOURED}


def test_a_peer_is_not_blamed_for_what_its_control_does_too(
    model: LlamaForCausalLM, target: TransformersTarget
) -> None:
    peers = [
        TransformersPeer(model, name="colder", temperature=0.7),
        TransformersPeer(model, name="colder, lookup", temperature=0.7, lookup=3),
    ]
    report = audit_peers("transformers", peers, target, PROMPTS, tokens=400, answer=40)
    verdicts = [f.verdict for f in report.findings if f.check.endswith("sampled text")]
    assert verdicts == [Verdict.WRONG, Verdict.UNKNOWN]


class Stuck:
    """Ignores its seed and goes on after the end-of-text token."""

    name = "stuck"

    def generate(self, prompt: Seq[int], seed: int, max_tokens: int) -> list[int]:
        return [5, 0, 9, 9]


class Restless:
    """Answers differently every time it is asked."""

    name = "restless"

    def __init__(self) -> None:
        self._calls = 0

    def generate(self, prompt: Seq[int], seed: int, max_tokens: int) -> list[int]:
        self._calls += 1
        return [self._calls % SIZE]


def test_seeds_that_do_nothing_and_tokens_after_the_end_are_found(target: TransformersTarget) -> None:
    report = audit_peers("peers", [Stuck(), Restless()], target, PROMPTS, tokens=8, answer=4)
    wrong = [f.check for f in report.findings if f.verdict is Verdict.WRONG]
    assert "stuck: other seeds, other answers" in wrong
    assert "stuck: answers end at EOS" in wrong
    assert "restless: a seed repeats its answer" in wrong
    with pytest.raises(InvalidValue):
        audit_peers("peers", [], target, PROMPTS)
