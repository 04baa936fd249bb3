"""Checkpoints in DeepSpec's layout: every tensor lands where its formula reads it, and what does not map is refused.

The folder is synthetic; names and shapes are those of DeepSpec's own model (docs/dspark.md says what was checked).
`_deepspec_rows` is the obvious twin: DeepSpec's formulas written down anew, one block, no cache.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dspark_kit import FEATURE_LAYERS, HIDDEN, LAYERS, VOCAB, tiny_module, tiny_tables, tiny_target
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import rms_norm, silu
from transformers import LlamaForCausalLM

from draftproof.draft.dspark import checkpoint as checkpoints
from draftproof.draft.dspark import deepspec, factory
from draftproof.draft.dspark.config import DSparkConfig
from draftproof.draft.dspark.drafter import DSparkDrafter
from draftproof.draft.dspark.forward import NumpyForward
from draftproof.draft.dspark.heads import SequentialHead
from draftproof.draft.dspark.module import module_of
from draftproof.draft.dspark.openvino_forward import OpenVINOForward
from draftproof.draft.dspark.tap import FeatureTap
from draftproof.engine import Engine
from draftproof.errors import ModelFileError
from draftproof.registry import DraftContext
from draftproof.sampling.params import SamplingParams
from draftproof.schedule.fixed import FixedSchedule

BLOCK, RANK, HEADS, KV, SIZE, MLP, DEPTH, MASK, EPS, THETA = 3, 8, 4, 2, 16, 40, 2, 23, 1e-6, 5e5


def _values(**changes: object) -> dict[str, object]:
    values: dict[str, object] = {
        "architectures": ["Qwen3DSparkModel"],
        "model_type": "qwen3",
        "attention_bias": False,
        "hidden_act": "silu",
        "block_size": BLOCK,
        "confidence_head_with_markov": True,
        "enable_confidence_head": True,
        "markov_head_type": "vanilla",
        "markov_rank": RANK,
        "mask_token_id": MASK,
        "num_anchors": 512,
        "num_target_layers": LAYERS,
        "target_layer_ids": [layer - 1 for layer in FEATURE_LAYERS],
        "hidden_size": HIDDEN,
        "num_hidden_layers": DEPTH,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV,
        "head_dim": SIZE,
        "intermediate_size": MLP,
        "vocab_size": VOCAB,
        "rms_norm_eps": EPS,
        "rope_parameters": {"rope_theta": THETA, "rope_type": "default"},
        "layer_types": ["full_attention"] * DEPTH,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }
    return {k: v for k, v in (values | changes).items() if v is not None}


def _tensors(model: LlamaForCausalLM, kind: str = "vanilla") -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(3)

    def some(*shape: int, mean: float = 0.0) -> Tensor:
        return torch.randn(shape, generator=g) * 0.3 + mean

    q, kv = HEADS * SIZE, KV * SIZE
    tensors = {
        "embed_tokens.weight": model.get_input_embeddings().weight.detach().clone(),
        "lm_head.weight": model.lm_head.weight.detach().clone(),
        "fc.weight": some(HIDDEN, len(FEATURE_LAYERS) * HIDDEN),
        "hidden_norm.weight": some(HIDDEN, mean=1),
        "norm.weight": some(HIDDEN, mean=1),
        "markov_head.markov_w1.weight": some(VOCAB, RANK),
        "markov_head.markov_w2.weight": some(VOCAB, RANK),
        "confidence_head.proj.weight": some(1, HIDDEN + RANK),
        "confidence_head.proj.bias": some(1),
    }
    if kind == "rnn":
        tensors["markov_head.joint_proj.weight"] = some(3 * RANK, 2 * RANK + HIDDEN)
        tensors["markov_head.joint_proj.bias"] = torch.zeros(3 * RANK)
    for i in range(DEPTH):
        shapes = {
            "input_layernorm": (HIDDEN,),
            "self_attn.q_proj": (q, HIDDEN),
            "self_attn.k_proj": (kv, HIDDEN),
            "self_attn.v_proj": (kv, HIDDEN),
            "self_attn.o_proj": (HIDDEN, q),
            "self_attn.q_norm": (SIZE,),
            "self_attn.k_norm": (SIZE,),
            "post_attention_layernorm": (HIDDEN,),
            "mlp.gate_proj": (MLP, HIDDEN),
            "mlp.up_proj": (MLP, HIDDEN),
            "mlp.down_proj": (HIDDEN, MLP),
        }
        for name, shape in shapes.items():
            tensors[f"layers.{i}.{name}.weight"] = some(*shape, mean=float(len(shape) == 1))
    return tensors


def _write(folder: Path, tensors: dict[str, Tensor], **changes: object) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(_values(**changes)))
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / "model.safetensors")
    return folder


@pytest.fixture
def folder(model: LlamaForCausalLM, tmp_path: Path) -> Path:
    return _write(tmp_path / "deepspec", _tensors(model))


def _deepspec_rows(t: dict[str, Tensor], features: Tensor, tokens: list[int], kind: str) -> tuple[Tensor, Tensor]:
    """Draft logits (block, vocab) and confidences (block,) for one block whose anchor is tokens[0]; tokens[k] is the
    token before draft row k."""
    n = len(features)

    def norm(x: Tensor, name: str) -> Tensor:
        return rms_norm(x, (x.shape[-1],), t[f"{name}.weight"], EPS)

    def turned(x: Tensor, at: Tensor) -> Tensor:  # (tokens, heads, size), halves rotated
        angle = at[:, None].double() * THETA ** -(torch.arange(0, SIZE, 2).double() / SIZE)
        both = torch.cat([angle, angle], -1).float()[:, None]
        a, b = x.chunk(2, -1)
        return x * both.cos() + torch.cat([-b, a], -1) * both.sin()

    context = norm(features @ t["fc.weight"].T, "hidden_norm")
    x = t["embed_tokens.weight"][[tokens[0], *([MASK] * (BLOCK - 1))]]
    for i in range(DEPTH):
        p = f"layers.{i}"
        y = norm(x, f"{p}.input_layernorm")
        both = torch.cat([context, y])
        q = norm((y @ t[f"{p}.self_attn.q_proj.weight"].T).view(BLOCK, HEADS, SIZE), f"{p}.self_attn.q_norm")
        k = norm((both @ t[f"{p}.self_attn.k_proj.weight"].T).view(n + BLOCK, KV, SIZE), f"{p}.self_attn.k_norm")
        v = (both @ t[f"{p}.self_attn.v_proj.weight"].T).view(n + BLOCK, KV, SIZE)
        q, k = turned(q, torch.arange(n, n + BLOCK)), turned(k, torch.arange(n + BLOCK))
        k, v = k.repeat_interleave(HEADS // KV, 1), v.repeat_interleave(HEADS // KV, 1)
        weights = (torch.einsum("ahd,bhd->hab", q, k) / math.sqrt(SIZE)).softmax(-1)  # no mask: both directions
        x = x + torch.einsum("hab,bhd->ahd", weights, v).reshape(BLOCK, -1) @ t[f"{p}.self_attn.o_proj.weight"].T
        y = norm(x, f"{p}.post_attention_layernorm")
        gated = silu(y @ t[f"{p}.mlp.gate_proj.weight"].T) * (y @ t[f"{p}.mlp.up_proj.weight"].T)
        x = x + gated @ t[f"{p}.mlp.down_proj.weight"].T
    h = norm(x, "norm")
    seen = t["markov_head.markov_w1.weight"][tokens]
    read = seen
    if kind == "rnn":
        state, outputs = torch.zeros(RANK), []
        for k in range(BLOCK):
            z = torch.cat([state, seen[k], h[k]]) @ t["markov_head.joint_proj.weight"].T
            gate, candidate, output = z.chunk(3)
            state = gate.sigmoid() * state + (1 - gate.sigmoid()) * candidate.tanh()
            outputs.append(output.tanh())
        read = torch.stack(outputs)
    logits = h @ t["lm_head.weight"].T + read @ t["markov_head.markov_w2.weight"].T
    confidence = torch.cat([h, seen], -1) @ t["confidence_head.proj.weight"][0] + t["confidence_head.proj.bias"]
    return logits, confidence.sigmoid()


@pytest.mark.parametrize("runtime", ["numpy", "openvino"])
@pytest.mark.parametrize("kind", ["vanilla", "rnn"])
def test_an_imported_drafter_computes_what_deepspec_does(
    model: LlamaForCausalLM, tmp_path: Path, kind: str, runtime: str
) -> None:
    folder = _write(tmp_path / "d", _tensors(model, kind), markov_head_type=kind)
    tables = tiny_tables(model)
    checkpoint = deepspec.load(folder, tables, VOCAB)
    features = torch.randn(7, len(FEATURE_LAYERS) * HIDDEN, generator=torch.Generator().manual_seed(1))
    tokens = [5, 9, 0]
    expected, confidences = _deepspec_rows(load_file(folder / "model.safetensors"), features, tokens, kind)
    if runtime == "openvino":
        pytest.importorskip("openvino")
        forward = OpenVINOForward(checkpoint, tables.embedding, tables.head, exact=True)
    else:
        forward = NumpyForward(checkpoint, tables.embedding, tables.head)
    cache = forward.new_cache()
    forward.extend(cache, features[:4].numpy())
    forward.extend(cache, features[4:].numpy())
    (block,) = forward.blocks([cache], [tokens[0]], [BLOCK])
    walk = SequentialHead(checkpoint).start()
    for k in range(BLOCK):
        confidence = walk.confidence(block.hidden[k], tokens[k])
        bias = walk.next(block.hidden[k], tokens[k])
        assert bias is not None
        np.testing.assert_allclose(block.logits[k] + bias, expected[k].numpy(), rtol=1e-4, atol=1e-4)
        assert confidence == pytest.approx(confidences[k].item(), abs=1e-4)


def test_the_torch_module_normalises_queries_and_keys_too(model: LlamaForCausalLM, folder: Path) -> None:
    tables = tiny_tables(model)
    checkpoint = deepspec.load(folder, tables, VOCAB)
    module = module_of(checkpoint)
    features = torch.randn(7, len(FEATURE_LAYERS) * HIDDEN, generator=torch.Generator().manual_seed(1))
    tokens = torch.tensor([[[5, 9, 0]]])
    with torch.no_grad():
        anchor = torch.from_numpy(tables.embedding)[tokens[:, :, 0]]
        hidden = module.blocks(module.context(features[None]), torch.tensor([[7]]), anchor)
        bias = module.bias(hidden, module.previous(tokens))
        assert bias is not None
        logits = (hidden @ torch.from_numpy(tables.head).T + bias)[0, 0]
    expected, _ = _deepspec_rows(load_file(folder / "model.safetensors"), features, [5, 9, 0], "vanilla")
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


def test_bfloat16_files_are_read_and_ids_past_the_targets_rows_left_out(
    model: LlamaForCausalLM, tmp_path: Path
) -> None:
    tensors = {name: value.bfloat16() for name, value in _tensors(model).items()}
    checkpoint = deepspec.load(_write(tmp_path / "d", tensors), tiny_tables(model), VOCAB - 4)
    assert checkpoint.config.draft_vocab == VOCAB - 4
    assert checkpoint.tensors["vocab"].tolist() == list(range(VOCAB - 4))
    assert checkpoint.tensors["head.embed"].shape == (VOCAB - 3, RANK)
    np.testing.assert_array_equal(checkpoint.tensors["head.embed"][-1], 0)
    np.testing.assert_array_equal(
        checkpoint.tensors["head.out"], tensors["markov_head.markov_w2.weight"].float().numpy()[: VOCAB - 4]
    )


def test_it_drafts_by_its_folder_and_the_text_is_the_targets(model: LlamaForCausalLM, folder: Path) -> None:
    assert factory.feature_layers(str(folder), "tiny") == FEATURE_LAYERS
    target = tiny_target(model)
    tap = FeatureTap(target)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(factory.TargetTables, "load", classmethod(lambda cls, name: tiny_tables(model)))
        drafter = factory.make_dspark(DraftContext(str(folder), tap, None, lambda name: pytest.fail("no model")))
    assert isinstance(drafter, DSparkDrafter)
    params = SamplingParams(max_tokens=20, temperature=0)
    result = Engine(tap, drafter=drafter, schedule=FixedSchedule(BLOCK)).generate([1, 2, 3], params)
    assert result.token_ids == Engine(tiny_target(model)).generate([1, 2, 3], params).token_ids
    assert result.speculation.drafted > 10


Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("values", "change", "match"),
    [
        ({"architectures": ["Gemma4DSparkModel"]}, None, "Gemma4DSparkModel"),
        ({"markov_head_type": "gated"}, None, "markov_head_type='gated'"),
        ({"attention_bias": True}, None, "attention_bias=True"),
        ({"hidden_act": "gelu"}, None, "hidden_act='gelu'"),
        ({"layer_types": ["sliding_attention"] * DEPTH}, None, "layer_types"),
        ({"rope_parameters": {"rope_theta": 1e4, "rope_type": "yarn"}}, None, "rope_type='yarn'"),
        ({"enable_confidence_head": False}, None, "enable_confidence_head=False"),
        ({"hidden_size": HIDDEN + 2}, None, "hidden_size=34"),
        ({"num_target_layers": LAYERS + 1}, None, "num_target_layers=4"),
        ({"vocab_size": VOCAB + 1}, None, "vocab_size=25"),
        ({"target_layer_ids": [0, 7]}, None, "feature_layers"),
        ({"block_size": 0}, None, "block=0"),
        ({"head_dim": None}, None, "lacks 'head_dim'"),
        ({"mask_token_id": VOCAB}, None, f"mask_token_id {VOCAB}"),
        ({"markov_rank": 0}, None, "do not map: markov_head.markov_w1.weight, markov_head.markov_w2.weight"),
        ({}, lambda t: t.pop("layers.1.self_attn.q_norm.weight"), r"lacks layers\.1\.self_attn\.q_norm\.weight"),
        (
            {},
            lambda t: t.update({"markov_head.gate_proj.weight": torch.ones(2)}),
            r"do not map: markov_head\.gate_proj",
        ),
        ({}, lambda t: t.update({"fc.weight": torch.ones(3, 3)}), r"context\.proj has shape \(3, 3\)"),
        ({}, lambda t: t["norm.weight"].fill_(torch.nan), "norm holds NaN"),
        ({}, lambda t: t["embed_tokens.weight"][3].add_(1), r"embed_tokens\.weight is not the target's"),
        ({}, lambda t: t["lm_head.weight"].mul_(1.1), r"lm_head\.weight is not the target's"),
        ({}, lambda t: t.update({"confidence_head.proj.weight": torch.ones(1, 5)}), "confidence head reads 5 values"),
    ],
)
def test_what_does_not_map_is_refused_by_name(
    model: LlamaForCausalLM, tmp_path: Path, values: dict[str, object], change: Change | None, match: str
) -> None:
    tensors = _tensors(model)
    if change is not None:
        change(tensors)
    with pytest.raises(ModelFileError, match=match):
        deepspec.load(_write(tmp_path / "d", tensors, **values), tiny_tables(model), VOCAB)


def test_an_rnn_head_with_biases_is_refused(model: LlamaForCausalLM, tmp_path: Path) -> None:
    tensors = _tensors(model, "rnn")
    tensors["markov_head.joint_proj.bias"][2] = 0.1
    with pytest.raises(ModelFileError, match=r"joint_proj\.bias is not 0"):
        deepspec.load(_write(tmp_path / "d", tensors, markov_head_type="rnn"), tiny_tables(model), VOCAB)


def test_a_confidence_head_that_reads_hidden_states_alone_is_understood(
    model: LlamaForCausalLM, tmp_path: Path
) -> None:
    tensors = _tensors(model)
    tensors["confidence_head.proj.weight"] = torch.ones(1, HIDDEN)
    folder = _write(tmp_path / "d", tensors, confidence_head_with_markov=False)
    confidence = deepspec.load(folder, tiny_tables(model), VOCAB).tensors["confidence"]
    assert confidence.tolist() == [1.0] * HIDDEN + [0.0] * RANK


def test_our_own_folders_are_not_taken_for_theirs(model: LlamaForCausalLM, folder: Path, tmp_path: Path) -> None:
    checkpoint = deepspec.load(folder, tiny_tables(model), VOCAB)
    checkpoints.save(checkpoint, tmp_path / "own")
    assert deepspec.is_deepspec(folder)
    assert not deepspec.is_deepspec(tmp_path / "own")
    assert not deepspec.is_deepspec(tmp_path / "nowhere")
    again = checkpoints.load(tmp_path / "own")
    assert again.config == checkpoint.config
    assert again.config.qk_norm


def test_files_from_before_normalised_queries_stay_as_they_were() -> None:
    config = tiny_module().config
    assert "qk_norm" not in config.as_dict()
    assert DSparkConfig.from_dict(config.as_dict()) == config
