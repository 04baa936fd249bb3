"""The OpenVINO target: rows after any feeds and rollbacks are those of a fresh prefill, alone or in company.

A one-layer model built by hand stands for all; the reference is the graph as it was exported (its own growing
state, every row through the head), so paging, the cut head and the bookkeeping are all under test. float32, so
1e-4 separates rounding from any fault.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("openvino")

from draftproof.errors import InvalidValue, ModelFileError, Unsupported
from draftproof.target import openvino as module
from draftproof.target.base import Feed, LogitRows, Target
from draftproof.target.openvino import OpenVINOTarget
from draftproof.target.openvino_compile import cap_threads, check_rows
from draftproof.target.openvino_runner import Runner
from draftproof.target.openvino_store import WeightFormat

from . import tiny_ir
from .tiny_ir import LIMIT, VOCAB, some, values

TINY = 1e-4


@pytest.fixture(params=[("float32", ()), ("float32", (1, 4)), ("int8", ()), ("int8", (7,)), ("int8", (5, 9))], ids=str)
def target(folder: Path, request: pytest.FixtureRequest) -> OpenVINOTarget:
    """With int8, passes are filled up; the tiny model's float weights stay in float products."""
    activations, narrow = request.param
    return OpenVINOTarget.load(folder, threads=1, activations=activations, narrow=narrow)


def test_it_is_a_target(target: OpenVINOTarget) -> None:
    assert isinstance(target, Target)
    assert (target.vocab_size, target.name) == (VOCAB, "tiny")


def worst_difference(
    target: OpenVINOTarget, fresh: Callable[[list[int]], np.ndarray], rng: random.Random, passes: int, vocab: int
) -> float:
    """Random opens, closes, ragged feeds and rollbacks; the largest difference of a row from a fresh prefill."""
    live: dict[int, list[int]] = {}
    worst = 0.0
    for _ in range(passes):
        if len(live) < 5 and (not live or rng.random() < 0.3):
            live[target.open()] = []
        if len(live) > 2 and rng.random() < 0.15:
            leaving = rng.choice(list(live))
            target.close(leaving)
            del live[leaving]
        fed = [h for h in live if rng.random() < 0.7] or list(live)[:1]
        feeds = []
        for handle in rng.sample(fed, len(fed)):
            # Prompts longer than a block of the cache (32 tokens), and drafts.
            n = rng.randint(20, 50) if rng.random() < 0.2 else rng.randint(1, 6)
            feeds.append(Feed(handle, some(rng, n, vocab), rng.randint(1, n), width=rng.choice([0, 0, 3, 9])))
        for feed, rows in zip(feeds, target.score(feeds), strict=True):
            live[feed.handle] += feed.tokens
            expected = fresh(live[feed.handle])[-feed.rows :]
            worst = max(worst, float(np.abs(values(rows) - expected).max()))
        for handle, tokens in live.items():
            keep = rng.choice([len(tokens), rng.randint(max(0, len(tokens) - 6), len(tokens)), 0, 40])
            keep = min(keep, len(tokens)) if len(tokens) < 150 else 10
            target.rollback(handle, keep)
            del tokens[keep:]
            assert target.length(handle) == keep
    for handle in live:
        target.close(handle)
    return worst


@pytest.mark.parametrize("seed", range(4))
def test_rows_after_ragged_feeds_and_rollbacks_are_those_of_a_fresh_prefill(
    target: OpenVINOTarget, fresh: Callable[[list[int]], np.ndarray], seed: int
) -> None:
    assert worst_difference(target, fresh, random.Random(seed), 60, VOCAB) < TINY


def test_a_batch_gives_each_sequence_the_rows_it_gets_alone(target: OpenVINOTarget) -> None:
    rng = random.Random(1)
    prompts = [some(rng, n) for n in (1, 33, 7, 64, 100, 2, 31, 32)]
    together = target.score([Feed(target.open(), p, 1) for p in prompts])
    alone = [target.score([Feed(target.open(), p, 1)])[0] for p in prompts]
    for a, b in zip(together, alone, strict=True):
        assert np.abs(values(a) - values(b)).max() < TINY


def test_five_rows_of_one_pass_are_the_rows_of_five_passes(target: OpenVINOTarget) -> None:
    tokens = some(random.Random(2), 45)
    once, by_one = target.open(), target.open()
    target.score([Feed(once, tokens[:40], 1), Feed(by_one, tokens[:40], 1)])
    rows = values(target.score([Feed(once, tokens[40:], 5)])[0])
    for i, token in enumerate(tokens[40:]):
        assert np.abs(values(target.score([Feed(by_one, [token], 1)])[0])[0] - rows[i]).max() < TINY


def test_only_the_wanted_rows_go_through_the_head(target: OpenVINOTarget) -> None:
    target.score([Feed(target.open(), some(random.Random(3), 90), 2), Feed(target.open(), [1, 2, 3], 1)])
    assert list(target._pages._runners[-1].request.get_output_tensor(0).shape) == [1, 3, VOCAB]


def test_rows_stay_what_they_were_after_later_passes(target: OpenVINOTarget) -> None:
    handle = target.open()
    rows = values(target.score([Feed(handle, [1, 2, 3], 3)])[0])
    copy = rows.copy()
    target.score([Feed(handle, [4, 5, 6], 3)])
    assert np.array_equal(rows, copy)


def test_a_long_feed_in_pieces_gives_the_rows_of_one_piece(
    target: OpenVINOTarget, fresh: Callable[[list[int]], np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK", 16)
    tokens = some(random.Random(4), 70)
    expected = fresh(tokens)
    for rows in (1, 6, 7, 40, 70):
        scored, other = target.score([Feed(target.open(), tokens, rows), Feed(target.open(), [5], 1)])
        assert values(scored).shape == (rows, VOCAB)
        assert np.abs(values(scored) - expected[-rows:]).max() < TINY
        assert values(other).shape == (1, VOCAB)


def test_closed_and_rolled_back_sequences_give_their_memory_to_others(target: OpenVINOTarget) -> None:
    tokens = some(random.Random(5), 100)
    for _ in range(20):
        handle = target.open()
        target.score([Feed(handle, tokens, 1)])
        target.rollback(handle, 3)
        target.score([Feed(target.open(), tokens[:20], 1)])
        target.close(handle)
    assert target._pages.capacity < 1.5 * (20 + 1) * 4 * 32  # four blocks for each that is open, and room to grow


def test_a_pass_that_raises_leaves_every_length_as_it_was(
    target: OpenVINOTarget, fresh: Callable[[list[int]], np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, tokens = target.open(), target.open(), some(random.Random(6), 40)
    target.score([Feed(a, tokens[:5], 1)])
    monkeypatch.setattr(module, "CHUNK", 8)
    real, calls = Runner.infer, 0

    def failing(*args: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise RuntimeError("out of memory")
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(Runner, "infer", failing)
    with pytest.raises(RuntimeError, match="out of memory"):
        target.score([Feed(a, tokens[5:], 1), Feed(b, [1], 1)])
    assert (target.length(a), target.length(b)) == (5, 0)
    rows = values(target.score([Feed(a, tokens[5:], 1)])[0])
    assert np.abs(rows - fresh(tokens)[-1:]).max() < TINY


def test_what_a_caller_gets_wrong_is_refused_by_name(target: OpenVINOTarget) -> None:
    handle = target.open()
    with pytest.raises(InvalidValue, match=f"token id {VOCAB} "):
        target.score([Feed(handle, [1, VOCAB], 1)])
    with pytest.raises(InvalidValue, match="token id -1 "):
        target.score([Feed(handle, [-1], 1)])
    with pytest.raises(InvalidValue, match="sequence 99"):
        target.score([Feed(99, [1], 1)])
    with pytest.raises(InvalidValue, match="fed twice"):
        target.score([Feed(handle, [1], 1), Feed(handle, [2], 1)])
    with pytest.raises(InvalidValue, match="rollback to 1 of a sequence of 0"):
        target.rollback(handle, 1)
    target.close(handle)
    with pytest.raises(InvalidValue, match=f"sequence {handle}"):
        target.close(handle)
    assert target.score([]) == []


def test_the_context_limit_is_kept(folder: Path, tmp_path: Path) -> None:
    limited = tiny_ir.save(tiny_ir.tiny(), tmp_path / "limited")
    (limited / "config.json").write_text(f'{{"max_position_embeddings": {LIMIT}, "eos_token_id": [3, 4]}}')
    target = OpenVINOTarget.load(limited, threads=1)
    assert (target.context_limit, target.eos_ids) == (LIMIT, {3, 4})
    handle = target.open()
    target.score([Feed(handle, [1] * LIMIT, 1)])
    with pytest.raises(InvalidValue, match=f"{LIMIT + 1} tokens"):
        target.score([Feed(handle, [1], 1)])


def test_a_soft_cap_above_the_head_is_kept(tmp_path: Path) -> None:
    plain = OpenVINOTarget.load(tiny_ir.save(tiny_ir.tiny(), tmp_path / "plain"), threads=1)
    capped = OpenVINOTarget.load(tiny_ir.save(tiny_ir.tiny(head="capped"), tmp_path / "capped"), threads=1)
    a, b = (values(t.score([Feed(t.open(), [1, 2, 3, 4], 2)])[0]) for t in (plain, capped))
    assert np.abs(3 * np.tanh(a / 3) - b).max() < TINY


@pytest.mark.parametrize(
    ("inputs", "missing"),
    [
        ((), ["attention_mask", "position_ids", "beam_idx", "a state"]),
        (("attention_mask", "position_ids"), ["beam_idx", "a state"]),
        (("attention_mask", "position_ids", "beam_idx"), ["a state"]),
    ],
)
def test_an_ir_without_what_is_needed_is_refused_naming_all_of_it(
    tmp_path: Path, inputs: tuple[str, ...], missing: list[str]
) -> None:
    folder = tiny_ir.save(tiny_ir.stateless(*inputs), tmp_path / "poor")
    with pytest.raises(Unsupported) as refusal:
        OpenVINOTarget.load(folder, threads=1)
    assert all(part in str(refusal.value) for part in missing)
    assert not any(f"{name!r}" in str(refusal.value) for name in inputs)


def test_an_ir_that_asks_for_more_is_refused(tmp_path: Path) -> None:
    asking = ("attention_mask", "position_ids", "beam_idx", "token_type_ids")
    folder = tiny_ir.save(tiny_ir.stateless(*asking), tmp_path / "more")
    with pytest.raises(Unsupported, match="token_type_ids"):
        OpenVINOTarget.load(folder, threads=1)


def test_a_head_that_is_no_matrix_product_is_refused(tmp_path: Path) -> None:
    folder = tiny_ir.save(tiny_ir.tiny(head="softmax"), tmp_path / "softmax")
    with pytest.raises(Unsupported, match="no MatMul feeds 'logits'"):
        OpenVINOTarget.load(folder, threads=1)


def test_a_recurrent_state_is_refused(tmp_path: Path) -> None:
    folder = tiny_ir.save(tiny_ir.tiny(recurrent=True), tmp_path / "recurrent")
    with pytest.raises(Unsupported, match="not keys and values"):
        OpenVINOTarget.load(folder, threads=1)


@pytest.mark.parametrize("file", ["openvino_model.xml", "openvino_model.bin"])
def test_a_truncated_ir_is_refused(tmp_path: Path, file: str) -> None:
    folder = tiny_ir.save(tiny_ir.tiny(), tmp_path / "cut")
    data = (folder / file).read_bytes()
    (folder / file).write_bytes(data[: len(data) // 2])
    with pytest.raises(ModelFileError, match="incomplete or damaged"):
        OpenVINOTarget.load(folder, threads=1)


def test_activations_of_another_kind_are_refused(folder: Path) -> None:
    with pytest.raises(InvalidValue, match="activations='int4'"):
        OpenVINOTarget.load(folder, threads=1, activations="int4", narrow=(5,))  # type: ignore[arg-type]


def test_rows_that_depend_on_the_width_of_their_pass_are_refused(folder: Path) -> None:
    target = OpenVINOTarget.load(folder, threads=1)
    check_rows(target)

    class Wavering(OpenVINOTarget):
        def score(self, feeds):  # type: ignore[no-untyped-def]
            off = np.float32(0.1 * (len(feeds[0].tokens) == 1))
            return [LogitRows(rows.values + off) for rows in super().score(feeds)]

    target.__class__ = Wavering
    with pytest.raises(Unsupported, match=r"8-bit activations for tiny.*by 0\.1 in the logits"):
        check_rows(target)


@pytest.mark.model
@pytest.mark.parametrize("weights", ["int8", "file"])
def test_smollm2_rows_of_8_bit_activations_are_the_same_bits_in_any_pass(weights: WeightFormat) -> None:
    target = OpenVINOTarget.load("smollm2", weights=weights, activations="int8")
    rng = random.Random(3)
    tokens = some(rng, 120, target.vocab_size)

    def rows(width: int) -> np.ndarray:
        handle = target.open()
        parts = [tokens[i : i + width] for i in range(0, len(tokens), width)]
        found = [values(target.score([Feed(handle, part, len(part))])[0]) for part in parts]
        target.close(handle)
        return np.concatenate(found)

    whole = rows(120)
    for width in (1, 2, 3, 7, 16, 64):
        assert np.array_equal(rows(width), whole), width
    # In company, and one row of several: the same.
    handles = [target.open() for _ in range(3)]
    target.score([Feed(handle, tokens[:60], 1) for handle in handles])
    for i in range(60, 80):
        n = rng.randint(1, 4)
        width = rng.choice([0, 2, 6])
        feeds = [Feed(handle, tokens[i : i + n], rng.randint(1, n), width=width) for handle in handles]
        for feed, found in zip(feeds, target.score(feeds), strict=True):
            assert np.array_equal(values(found), whole[i + n - feed.rows : i + n])
        for handle in handles:
            target.rollback(handle, i + 1)


def test_more_threads_than_cpus_are_capped_with_a_warning() -> None:
    have = cap_threads(None)
    with pytest.warns(UserWarning, match=re.escape(f"threads={have + 5} is more than the {have} CPUs")):
        assert cap_threads(have + 5) == have
    assert cap_threads(1) == 1
    with pytest.raises(InvalidValue, match="threads=0"):
        cap_threads(0)


@pytest.mark.model
def test_smollm2_rows_are_those_of_transformers_in_float32_up_to_rounding(smollm2: tuple[Target, object]) -> None:
    """The GGUF's own weights, not the reader's rounded ones (those are off by several logits)."""
    reference, tokenizer = smollm2
    target = OpenVINOTarget.load("smollm2", threads=2)
    tokens = tokenizer.encode("The capital of France is Paris. The capital of Italy is Rome.")
    expected = values(reference.score([Feed(reference.open(), tokens, len(tokens))])[0])
    found = values(target.score([Feed(target.open(), tokens, len(tokens))])[0])
    assert np.abs(found - expected).max() < 1e-3
    assert target.eos_ids == reference.eos_ids


@pytest.mark.model
def test_smollm2_rows_do_not_depend_on_company_or_history() -> None:
    target = OpenVINOTarget.load("smollm2", threads=2)

    def fresh(tokens: list[int]) -> np.ndarray:
        handle = target.open()
        rows = values(target.score([Feed(handle, tokens, min(len(tokens), 50))])[0])
        target.close(handle)
        return rows

    assert worst_difference(target, fresh, random.Random(0), 15, 49152) < 1e-3
