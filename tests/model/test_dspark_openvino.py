"""DSpark beside the OpenVINO target on the default model: the same hidden states as transformers', the same text as
plain decoding, and no torch.

The drafter's layers are random; its head knows which tokens follow each other, so that some of a block is accepted.
"""

from __future__ import annotations

import copy
import random
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from draftproof.draft.dspark import checkpoint as checkpoints
from draftproof.draft.dspark.checkpoint import Checkpoint, uncalibrated
from draftproof.draft.dspark.config import DSparkConfig
from draftproof.draft.dspark.drafter import DSparkDrafter
from draftproof.draft.dspark.hidden import TargetTables
from draftproof.draft.dspark.tap import FeatureTap
from draftproof.engine import Engine
from draftproof.models.cache import cache_root
from draftproof.models.store import resolve
from draftproof.proof.equality import compare_answers
from draftproof.registry import make_verifier
from draftproof.rounds import Settled
from draftproof.sampling.params import SamplingParams
from draftproof.schedule.base import RoundRecord
from draftproof.schedule.fixed import FixedSchedule
from draftproof.target.base import Feed, LogitRows
from draftproof.target.openvino import OpenVINOTarget
from draftproof.target.transformers import TransformersTarget
from draftproof.text import Tokenizer

pytestmark = pytest.mark.model

LAYERS = (3, 10, 17, 24, 30)
NEAR = 1e-4  # of a row's largest value (the first token's reach 20 000); rounding is 3e-5, one bfloat16 product 4e-3
BLOCK = 4
TOKENS = 24
TEXTS = (
    "The capital of France is Paris. The capital of Italy is",
    "Count from 1 to 20: 1, 2, 3, 4,",
    "Once upon a time",
)


@pytest.fixture(scope="module")
def tables() -> TargetTables:
    return TargetTables.load("smollm2")


@pytest.fixture(scope="module")
def target() -> OpenVINOTarget:
    return OpenVINOTarget.load("smollm2", hidden_layers=LAYERS)


@pytest.fixture(scope="module")
def prompts(smollm2: tuple[object, Tokenizer]) -> list[list[int]]:
    return [list(smollm2[1].encode(text)) for text in TEXTS]


@pytest.fixture(scope="module")
def checkpoint(tables: TargetTables, target: OpenVINOTarget, prompts: list[list[int]]) -> Checkpoint:
    """Random layers, and a Markov head that knows the pairs of tokens of the target's own greedy answers."""
    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    answers = Engine(target, schedule=FixedSchedule(0)).generate_all(prompts, params)
    texts = [[*prompt, *answer.token_ids] for prompt, answer in zip(prompts, answers, strict=True)]
    vocab = sorted({token for text in texts for token in text})
    facts, size = tables.facts, len(vocab)
    config = DSparkConfig(
        target_fingerprint=facts.fingerprint,
        target_layers=facts.layers,
        target_vocab=facts.vocab,
        feature_layers=LAYERS,
        hidden=facts.hidden,
        layers=2,
        heads=facts.heads,
        kv_heads=facts.kv_heads,
        head_dim=facts.head_dim,
        mlp=64,
        block=BLOCK,
        draft_vocab=size,
        rank=size,
        rope_theta=facts.rope_theta,
        norm_eps=facts.norm_eps,
    )
    source = np.random.default_rng(0)
    tensors = {
        name: np.ones(shape, np.float32)
        if name.endswith(("norm", "scale"))
        else source.normal(0, shape[-1] ** -0.5, shape).astype(np.float32)
        for name, shape in config.shapes().items()
    }
    follows = np.zeros((size, size), np.float32)
    for text in texts:
        for before, after in pairwise(text):
            follows[vocab.index(after), vocab.index(before)] = 40
    tensors |= {"vocab": np.array(vocab), "head.embed": np.eye(size + 1, size, dtype=np.float32), "head.out": follows}
    return Checkpoint(config, tensors, tuple(uncalibrated(BLOCK)))


def test_hidden_states_are_those_of_transformers_in_float32(target: OpenVINOTarget, prompts: list[list[int]]) -> None:
    reference = TransformersTarget.load("smollm2", hidden_layers=LAYERS)
    rng = random.Random(0)
    mine, theirs = [target.open() for _ in prompts], [reference.open() for _ in prompts]
    feeds = list(prompts)
    for _ in range(4):
        target.score([Feed(h, tokens, 1) for h, tokens in zip(mine, feeds, strict=True)])
        reference.score([Feed(h, tokens, 1) for h, tokens in zip(theirs, feeds, strict=True)])
        for a, b, tokens in zip(mine, theirs, feeds, strict=True):
            found, expected = target.hidden(a), reference.hidden(b)
            assert found.shape == expected.shape == (len(LAYERS), len(tokens), 576)
            scale = np.abs(expected).max(axis=-1, keepdims=True)
            assert (np.abs(found - expected) / scale).max() < NEAR
            keep = rng.randint(2, target.length(a))
            target.rollback(a, keep)
            reference.rollback(b, keep)
        feeds = [[rng.randrange(49152) for _ in range(rng.randint(1, 6))] for _ in prompts]
    for handle in mine:
        target.close(handle)


class _Watch:
    """After every round: the drafter's context is what a fresh reading of the text would give."""

    def __init__(self, engine: Engine, target: OpenVINOTarget) -> None:
        self.engine, self.target, self.rounds = engine, target, 0

    def round(self, record: RoundRecord, settled: list[Settled]) -> None:
        drafter = self.engine.drafter
        assert isinstance(drafter, DSparkDrafter)
        for s in self.engine.live.values():
            if s.finish_reason is not None:
                continue
            handle = self.target.open()
            self.target.score([Feed(handle, s.tokens[:-1], rows=1)])
            states = self.target.hidden(handle).transpose(1, 0, 2).reshape(len(s.tokens) - 1, -1)
            fresh = drafter._forward.new_cache()
            drafter._forward.extend(fresh, states)
            self.target.close(handle)
            held = copy.deepcopy(drafter._context[s.id])
            assert held.length == fresh.length == len(s.tokens) - 1
            for cache in (held, fresh):  # what waits is made into keys and values with the next block
                drafter._forward.blocks([cache], [s.tokens[-1]], [1])
            for i in range(drafter.config.layers):
                for got, expected in zip(held.layer(i), fresh.layer(i), strict=True):
                    assert got.shape == expected.shape == (drafter.config.kv_heads, fresh.length, 64)
                    assert np.abs(got - expected).max() < 0.05 * np.abs(expected).max()  # 8-bit products
            self.rounds += 1


@pytest.mark.parametrize(("temperature", "verifier"), [(0.0, "token"), (0.0, "block"), (1.0, "coupled")])
def test_text_is_that_of_plain_decoding(
    target: OpenVINOTarget,
    tables: TargetTables,
    checkpoint: Checkpoint,
    prompts: list[list[int]],
    temperature: float,
    verifier: str,
) -> None:
    params = SamplingParams(temperature=temperature, max_tokens=TOKENS, seed=3, ignore_eos=True)
    plain = Engine(target, verifier=make_verifier(verifier), schedule=FixedSchedule(0)).generate_all(prompts, params)
    tap = FeatureTap(target)
    drafter = DSparkDrafter(checkpoint, tap, tables)
    engine = Engine(tap, drafter=drafter, verifier=make_verifier(verifier), schedule=FixedSchedule(BLOCK))
    watch = _Watch(engine, target)
    if verifier == "token":
        engine.observers.append(watch)
    answers = engine.generate_all(prompts, params)
    found = compare_answers(target, prompts, plain, answers, params)
    assert found.faults == ()
    assert found.tokens == TOKENS * len(prompts)
    accepted = sum(r.speculation.accepted for r in answers)
    assert accepted > 0
    assert accepted < sum(r.speculation.drafted for r in answers)
    assert verifier != "token" or watch.rounds > 20


def test_tables_read_from_the_gguf_file_are_those_of_the_converted_folder(tables: TargetTables) -> None:
    folder = TargetTables.of(resolve("smollm2"))
    assert tables.facts == folder.facts
    assert tables.head is tables.embedding
    np.testing.assert_array_equal(tables.embedding, folder.embedding)


_WITHOUT_TORCH = """
import sys
for name in ("torch", "transformers", "optimum"):
    sys.modules[name] = None  # importing it is an error, and find_spec does not find it
from draftproof.engine import Engine
engine = Engine.load("smollm2", draft="dspark:" + sys.argv[1], schedule="fixed", draft_length=4)
result = engine.generate("Count: 1, 2,", __import__("draftproof.sampling.params", fromlist=["x"]).SamplingParams(
    max_tokens=12, temperature=0), chat=False)
assert result.speculation.drafted > 0, result.speculation
assert type(engine.target.inner).__name__ == "OpenVINOTarget"
print(list(result.token_ids))
"""


def test_the_default_backend_drafts_without_torch(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints.save(checkpoint, tmp_path / "drafter")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "openvino").symlink_to(cache_root() / "openvino")  # and no folder that torch has made
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "cache"))
    found = subprocess.run(
        [sys.executable, "-c", _WITHOUT_TORCH, str(tmp_path / "drafter")], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    assert len(found.stdout.strip("[]\n").split(",")) == 12


def test_a_target_loaded_for_no_drafter_keeps_its_rows(target: OpenVINOTarget, prompts: list[list[int]]) -> None:
    plain = OpenVINOTarget.load("smollm2")
    a, b = (t.score([Feed(t.open(), prompts[0], 3)])[0] for t in (target, plain))
    assert isinstance(a, LogitRows)
    assert isinstance(b, LogitRows)
    assert np.abs(a.values - b.values).max() < 1e-3
