"""The forward pass looks at what it may look at and at nothing else; numpy and torch agree."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from dspark_kit import BLOCK, VOCAB, checkpoint_of, tiny_maker, tiny_module, tiny_store, tiny_tables, tiny_texts
from transformers import LlamaForCausalLM

from draftproof.draft.dspark.forward import BlockRows, Forward, NumpyForward
from draftproof.draft.dspark.heads import SequentialHead
from draftproof.draft.dspark.module import DSparkModule
from draftproof.draft.dspark.openvino_forward import PATIENT, OpenVINOForward
from draftproof.train.batches import collate, every_anchor
from draftproof.train.rows import DraftRows
from draftproof.train.store import FeatureStore

HEADS = ["markov", "rnn", "none"]


@pytest.fixture
def store(model: LlamaForCausalLM, tmp_path: Path) -> FeatureStore:
    return tiny_store(tmp_path, model, tiny_texts(model, 3, 14, temperature=1.0))


def _rows(module: DSparkModule, model: LlamaForCausalLM, store: FeatureStore, **changes: torch.Tensor) -> DraftRows:
    batch = collate(store, store.entries, [every_anchor(e) for e in store.entries], BLOCK)
    for name, value in changes.items():
        object.__setattr__(batch, name, value)
    with torch.no_grad():
        return tiny_maker(module, model).rows(batch)


@pytest.mark.parametrize("head", HEADS)
def test_a_block_sees_no_features_at_or_after_its_anchor(
    head: str, model: LlamaForCausalLM, store: FeatureStore
) -> None:
    module = tiny_module(head, spread=0.2)
    entry = store.entries[0]
    batch = collate(store, [entry], [np.array([8])], BLOCK)
    before = tiny_maker(module, model).rows(batch)
    batch.features[0, 8:] += 1.0
    after = tiny_maker(module, model).rows(batch)
    assert torch.equal(before.logits, after.logits)
    assert torch.equal(before.confidence, after.confidence)
    batch.features[0, 7] += 1.0
    assert not torch.equal(before.logits, tiny_maker(module, model).rows(batch).logits)


@pytest.mark.parametrize("head", ["markov", "rnn"])
def test_a_drawn_token_changes_later_rows_and_no_earlier_one(
    head: str, model: LlamaForCausalLM, store: FeatureStore
) -> None:
    module = tiny_module(head, spread=0.2)
    batch = collate(store, [store.entries[0]], [np.array([6])], BLOCK)
    before = tiny_maker(module, model).rows(batch)
    batch.previous[0, 0, 1] = (batch.previous[0, 0, 1] + 1) % VOCAB
    after = tiny_maker(module, model).rows(batch)
    assert torch.equal(before.logits[0], after.logits[0])
    assert torch.equal(before.confidence[0], after.confidence[0])
    assert not torch.equal(before.logits[1], after.logits[1])
    assert not torch.equal(before.confidence[1], after.confidence[1])
    assert torch.equal(before.logits[2], after.logits[2]) == (head == "markov")  # only the RNN remembers further


def test_without_a_head_rows_depend_on_no_drawn_token(model: LlamaForCausalLM, store: FeatureStore) -> None:
    module = tiny_module("none", spread=0.2)
    batch = collate(store, [store.entries[0]], [np.array([6])], BLOCK)
    before = tiny_maker(module, model).rows(batch)
    batch.previous[0, 0, 1:] = 0
    assert torch.equal(before.logits, tiny_maker(module, model).rows(batch).logits)


@pytest.mark.parametrize("head", HEADS)
def test_blocks_of_one_batch_do_not_see_each_other(head: str, model: LlamaForCausalLM, store: FeatureStore) -> None:
    module = tiny_module(head, spread=0.2)
    maker = tiny_maker(module, model)
    together = _rows(module, model, store)
    alone = [
        maker.rows(collate(store, [entry], [np.array([a])], BLOCK)).logits
        for entry in store.entries
        for a in every_anchor(entry)
    ]
    torch.testing.assert_close(together.logits, torch.cat(alone), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("runtime", ["numpy", "openvino exact", "openvino"])
def test_the_drafting_forward_equals_torch_whatever_way_the_context_grew(
    head: str, runtime: str, model: LlamaForCausalLM, store: FeatureStore
) -> None:
    module = tiny_module(head, spread=0.2)
    module.tensor("context.scale").copy_(torch.linspace(0.5, 1.5, len(module.tensor("context.scale"))))
    checkpoint, tables = checkpoint_of(module), tiny_tables(model)
    forward: Forward = NumpyForward(checkpoint, tables.embedding, tables.head)
    if runtime != "numpy":
        pytest.importorskip("openvino")
        exact = runtime == "openvino exact"
        forward = OpenVINOForward(checkpoint, tables.embedding, tables.head, exact=exact)
    # By default OpenVINO multiplies in bfloat16 where the processor can: three digits.
    near, close = (0.05, 0.5) if runtime == "openvino" else (1e-4, 1e-4)
    walker = SequentialHead(checkpoint, forward.biases)
    anchors = [5, 9, 12]
    batch = collate(store, store.entries, [np.array([a]) for a in anchors], BLOCK)
    expected = tiny_maker(module, model).rows(batch)
    caches = []
    for entry, anchor, step in zip(store.entries, anchors, (1, 4, 12), strict=True):
        features = np.array(store.read(entry)[1], dtype=np.float32)
        cache = forward.new_cache()
        for start in range(0, anchor, step):
            forward.extend(cache, features[start : min(start + step, anchor)])
        forward.extend(cache, features[anchor : anchor + 1])  # one too many, and back
        cache.cut(anchor)
        caches.append(cache)
    blocks = forward.blocks(caches, [int(t) for t in batch.previous[:, 0, 0]], [BLOCK] * 3)
    for i, block in enumerate(blocks):
        walk = walker.start()
        for k in range(BLOCK):
            previous = int(batch.previous[i, 0, k])
            confidence = walk.confidence(block.hidden[k], previous)
            bias = walk.next(block.hidden[k], previous)
            logits = block.logits[k] if bias is None else block.logits[k] + bias
            row = i * BLOCK + k
            np.testing.assert_allclose(logits, expected.logits[row].detach().numpy(), rtol=near, atol=close)
            assert confidence == pytest.approx(torch.sigmoid(expected.confidence[row]).item(), abs=near)


def _kept(blocks: list[BlockRows]) -> list[BlockRows]:
    """In arrays of their own: the next block may be written where these are."""
    return [BlockRows(block.hidden.copy(), block.logits.copy()) for block in blocks]


def test_one_graph_gives_what_numpy_gives_alone_and_together_as_contexts_grow_and_are_cut(
    model: LlamaForCausalLM,
) -> None:
    """Features that wait, stores that grow past their first room, contexts of different sizes in one block."""
    pytest.importorskip("openvino")
    checkpoint, tables = checkpoint_of(tiny_module(spread=0.2)), tiny_tables(model)
    plain = NumpyForward(checkpoint, tables.embedding, tables.head)
    graph = OpenVINOForward(checkpoint, tables.embedding, tables.head, exact=True)
    forwards: tuple[Forward, Forward] = (plain, graph)
    caches = [[forward.new_cache() for forward in forwards] for _ in range(3)]
    rng = np.random.default_rng(0)
    width = len(checkpoint.config.feature_layers) * checkpoint.config.hidden
    for add in (1, 300, BLOCK, 2, BLOCK + 2, 1):
        for number, pair in enumerate(caches):
            features = rng.standard_normal((add + number, width)).astype(np.float32)
            length = pair[0].length + add + number
            for forward, cache in zip(forwards, pair, strict=True):
                forward.extend(cache, features)
                assert cache.length == length
                cache.cut(length - number)  # into what waits, or into the store
                assert cache.length == length - number
        together = [
            _kept(f.blocks([pair[i] for pair in caches], [3, 5, 7], [BLOCK, 1, 2])) for i, f in enumerate(forwards)
        ]
        alone = [[_kept(f.blocks([pair[i]], [9], [1]))[0] for pair in caches] for i, f in enumerate(forwards)]
        for ours, theirs in ((together[1], together[0]), (alone[1], alone[0])):
            for one, other in zip(ours, theirs, strict=True):
                np.testing.assert_allclose(one.hidden, other.hidden, rtol=1e-4, atol=1e-4)
                np.testing.assert_allclose(one.logits, other.logits, rtol=1e-4, atol=1e-4)
    assert caches[0][1].room > 256


def test_sequences_may_come_go_and_change_places_between_blocks(model: LlamaForCausalLM) -> None:
    """What is kept of them from block to block is copied as they grow, are cut and grow differently again."""
    pytest.importorskip("openvino")
    checkpoint, tables = checkpoint_of(tiny_module(spread=0.2)), tiny_tables(model)
    plain = NumpyForward(checkpoint, tables.embedding, tables.head)
    graph = OpenVINOForward(checkpoint, tables.embedding, tables.head, exact=True)
    pairs = [(plain.new_cache(), graph.new_cache()) for _ in range(4)]
    rng = np.random.default_rng(3)
    width = len(checkpoint.config.feature_layers) * checkpoint.config.hidden

    def grow(number: int, cut: int, add: int) -> None:
        features = rng.standard_normal((add, width)).astype(np.float32)
        for forward, cache in zip((plain, graph), pairs[number], strict=True):
            cache.cut(cache.length - cut)
            forward.extend(cache, features)

    for number in range(4):
        grow(number, 0, 20 + 3 * number)
    among = ("012", "012", "102", "21", "3", "21", "23", "21", "0123", "0123", "3120")
    for step, which in enumerate([int(i) for i in places] for places in among):
        theirs, ours = (
            _kept(forward.blocks([pairs[i][side] for i in which], [3, 5, 7, 9][: len(which)], [BLOCK] * len(which)))
            for side, forward in enumerate((plain, graph))
        )
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(one.hidden, other.hidden, rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(one.logits, other.logits, rtol=1e-4, atol=1e-4)
        for number in range(4):
            grow(number, (2 * step + number) % 7, 3 + (step * number) % 3)


def test_what_was_copied_of_a_sequence_for_the_last_block_is_not_copied_again(model: LlamaForCausalLM) -> None:
    pytest.importorskip("openvino")
    checkpoint, tables = checkpoint_of(tiny_module(spread=0.2)), tiny_tables(model)
    graph = OpenVINOForward(checkpoint, tables.embedding, tables.head, exact=True)
    caches = [graph.new_cache() for _ in range(2)]
    rng = np.random.default_rng(3)
    width = len(checkpoint.config.feature_layers) * checkpoint.config.hidden
    for cache in caches:
        graph.extend(cache, rng.standard_normal((40, width)).astype(np.float32))
    first, second = (_kept(graph.blocks(caches, [3, 5], [BLOCK] * 2)) for _ in range(2))
    for cache in caches:
        cache.store[:, :, :, :20] = 7.0
    third = _kept(graph.blocks(caches, [3, 5], [BLOCK] * 2))
    for one, two, three in zip(first, second, third, strict=True):
        assert np.array_equal(one.logits, two.logits)
        assert np.array_equal(two.logits, three.logits)


def test_while_nothing_is_drafted_keys_and_values_are_computed_many_tokens_at_a_time(model: LlamaForCausalLM) -> None:
    """100 rounds of plain decoding, then a block: the same as in numpy, after three calls and one for the block."""
    pytest.importorskip("openvino")
    checkpoint, tables = checkpoint_of(tiny_module(spread=0.2)), tiny_tables(model)
    plain = NumpyForward(checkpoint, tables.embedding, tables.head)
    graph = OpenVINOForward(checkpoint, tables.embedding, tables.head, exact=True)
    calls: list[int] = []
    inner = graph._context
    graph._context = lambda arrays: (calls.append(arrays[0].shape[1]), inner(arrays))[1]  # type: ignore[assignment]
    ours, theirs = graph.new_cache(), plain.new_cache()
    features = np.random.default_rng(2).standard_normal(
        (100, len(checkpoint.config.feature_layers) * checkpoint.config.hidden)
    )
    for row in features.astype(np.float32):
        graph.extend(ours, row[None])
        plain.extend(theirs, row[None])
    assert calls == [PATIENT + 1] * 3
    one, other = graph.blocks([ours], [3], [BLOCK])[0], plain.blocks([theirs], [3], [BLOCK])[0]
    assert len(calls) == 3  # one token was waiting
    np.testing.assert_allclose(one.logits, other.logits, rtol=1e-4, atol=1e-4)
    for row in features[:20].astype(np.float32):
        graph.extend(ours, row[None])
        plain.extend(theirs, row[None])
    one, other = graph.blocks([ours], [3], [BLOCK])[0], plain.blocks([theirs], [3], [BLOCK])[0]
    assert calls[3:] == [20]  # more than a block's graph takes
    np.testing.assert_allclose(one.logits, other.logits, rtol=1e-4, atol=1e-4)


def test_p_is_the_targets_own_over_its_whole_vocabulary(model: LlamaForCausalLM, store: FeatureStore) -> None:
    from draftproof.train.loss import outside, target_probs

    module = tiny_module()
    rows = _rows(module, model, store)
    p = target_probs(rows.target, rows.log_total)
    entry = store.entries[0]
    tokens = torch.from_numpy(np.array(store.read(entry)[0], dtype=np.int64))
    with torch.no_grad():
        true = model(tokens[None]).logits[0].softmax(-1)
    vocab = module.tensor("vocab")
    for k in range(BLOCK):  # the first anchor's rows: p after tokens up to anchor + k
        at = entry.prompt_length - 1 + k
        torch.testing.assert_close(p[k], true[at][vocab], rtol=5e-3, atol=5e-4)  # features are float16
        assert outside(p)[k].item() == pytest.approx(1 - true[at][vocab].sum().item(), abs=3e-3)
