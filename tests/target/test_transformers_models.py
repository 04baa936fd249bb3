"""The Hugging Face target on the real models: rollback leaves no trace, greedy decoding is generate's."""

from __future__ import annotations

import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from draftproof.target.base import Feed, LogitRows  # noqa: E402
from draftproof.target.transformers import TransformersTarget  # noqa: E402


@pytest.fixture(scope="module")
def smollm2() -> TransformersTarget:
    return TransformersTarget.load("smollm2")


@pytest.fixture(scope="module")
def gemma() -> TransformersTarget:
    return TransformersTarget.load("gemma3-270m")


def real_tokens(count: int, seed: int) -> list[int]:
    dice = random.Random(seed)
    return [dice.randrange(10, 40000) for _ in range(count)]


@pytest.mark.model
@pytest.mark.parametrize("which", ["smollm2", "gemma"])
def test_real_rows_after_rollback_equal_a_fresh_prefill(which: str, request: pytest.FixtureRequest) -> None:
    """Unequal acceptance in a batch; for Gemma 3 one sequence crosses its window of 512 and back."""
    target: TransformersTarget = request.getfixturevalue(which)
    texts = [real_tokens(n, n) for n in (20, 508, 530)]
    handles = [target.open() for _ in texts]
    target.score([Feed(h, t, 1) for h, t in zip(handles, texts, strict=True)])
    for kept in ((0, 4, 8), (8, 0, 4), (3, 8, 0)):
        drafts = [real_tokens(8, len(t)) for t in texts]
        target.score([Feed(h, d, 8) for h, d in zip(handles, drafts, strict=True)])
        for h, t, d, k in zip(handles, texts, drafts, kept, strict=True):
            t += d[:k]
            target.rollback(h, len(t))
    rows = target.score([Feed(h, [100], 1) for h in handles])
    for h, t, row in zip(handles, texts, rows, strict=True):
        assert isinstance(row, LogitRows)
        with torch.inference_mode():
            fresh = target._model(input_ids=torch.tensor([[*t, 100]]), use_cache=False, logits_to_keep=1).logits
        assert np.abs(row.values[0] - fresh[0, 0, : target.vocab_size].numpy()).max() < 1e-3
        target.close(h)
    assert target.one_pass


@pytest.mark.model
def test_plain_greedy_decoding_agrees_with_generate(smollm2: TransformersTarget) -> None:
    from draftproof.models.store import resolve
    from draftproof.models.tokenizer import FileTokenizer

    ids = FileTokenizer(resolve("smollm2").path).chat([{"role": "user", "content": "Why is the sky blue?"}])
    tokens = torch.tensor([ids])
    expected = smollm2._model.generate(
        input_ids=tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=32, do_sample=False
    )[0, len(ids) :].tolist()
    handle, new, got = smollm2.open(), ids, []
    for _ in range(32):
        (rows,) = smollm2.score([Feed(handle, new, 1)])
        new = [int(rows.values[0].argmax())]
        got += new
        if new[0] in smollm2.eos_ids:
            break
    smollm2.close(handle)
    assert got == expected
