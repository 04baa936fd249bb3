"""DSpark checkpoints in the layout DeepSpec publishes (`deepseek-ai/dspark_qwen3_4b_block7` and the like).

A folder with `config.json` and safetensors. `_TENSORS` and `_LAYER` are the whole map from its names to ours.

Guarantees: what does not map is refused by name: another architecture, a gated head, an RNN head with biases, tensors
that are missing or left over. The layout names no target, so the frozen copies of the target's embedding table and LM
head that it carries are compared with the target's own. What it does not do: fetch a checkpoint, or calibrate one; the
draft vocabulary is the target's.

Layer numbers: DeepSpec's l is the output of layer l, which is l + 1 in `output_hidden_states`; its -1 is the embedding.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from draftproof.draft.dspark.checkpoint import Checkpoint, uncalibrated
from draftproof.draft.dspark.config import DSparkConfig, HeadKind
from draftproof.draft.dspark.hidden import TargetTables, read_tensors
from draftproof.errors import InvalidValue, ModelFileError

Array = npt.NDArray[Any]

CONFIG = "config.json"
ARCHITECTURE = "Qwen3DSparkModel"

_TENSORS = {
    "fc.weight": "context.proj",
    "hidden_norm.weight": "context.norm",
    "norm.weight": "norm",
    "markov_head.markov_w1.weight": "head.embed",  # (vocab, rank); ours has one row more, for ids outside
    "markov_head.markov_w2.weight": "head.out",
    "markov_head.joint_proj.weight": "head.gate, head.cell, head.read",  # one above the other
    "confidence_head.proj.weight": "confidence",  # (1, hidden + rank), or (1, hidden)
    "confidence_head.proj.bias": "confidence.bias",
}
_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "q",
    "self_attn.k_proj": "k",
    "self_attn.v_proj": "v",
    "self_attn.o_proj": "o",
    "self_attn.q_norm": "q_norm",
    "self_attn.k_norm": "k_norm",
    "post_attention_layernorm": "mlp_norm",
    "mlp.gate_proj": "gate",
    "mlp.up_proj": "up",
    "mlp.down_proj": "down",
}
_EMBEDDING, _HEAD, _RNN_BIAS = "embed_tokens.weight", "lm_head.weight", "markov_head.joint_proj.bias"
_HEADS: dict[str, HeadKind] = {"vanilla": "markov", "rnn": "rnn"}
_NEAR = 0.01  # of a table's largest value: frozen copies are bfloat16 roundings of what they were copied from
_REMEDY = "this checkpoint cannot be used; train a drafter with `draftproof train dspark`"


def is_deepspec(folder: Path) -> bool:
    """Whether a folder is in this layout and not in our own."""
    try:
        values = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(values, dict) and "target_layer_ids" in values and "block_size" in values


def feature_layers(folder: Path) -> tuple[int, ...]:
    """The layers whose hidden states the target must keep, in our counting."""
    return _layers(_values(folder))


def load(folder: Path, tables: TargetTables, vocab_size: int) -> Checkpoint:
    """The checkpoint for this target. vocab_size: of the target's rows; ids beyond it are left out.

    Raises ModelFileError for what does not map, is missing or belongs to another target.
    """
    values = _values(folder)
    try:
        config = _config(values, tables, min(vocab_size, tables.facts.vocab))
    except KeyError as error:
        raise ModelFileError(f"{folder / CONFIG} lacks {error}", _REMEDY) from error
    except (InvalidValue, TypeError, ValueError) as error:
        raise ModelFileError(f"{folder / CONFIG}: {error}", _REMEDY) from error
    found = read_tensors(folder)
    _check_names(config, found, bool(values["confidence_head_with_markov"]))
    _check_target(found, tables)
    tensors = _mapped(config, found, int(values["mask_token_id"]))
    record = {"imported": "DeepSpec", "name": folder.name}
    return Checkpoint(config, tensors, tuple(uncalibrated(config.block)), record)


def _values(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    if values.get("architectures") != [ARCHITECTURE]:
        raise ModelFileError(
            f"the drafter in {folder} is of architecture {values.get('architectures')}, not {ARCHITECTURE}", _REMEDY
        )
    return values


def _layers(values: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(int(layer) + 1 for layer in values["target_layer_ids"])


def _config(values: Mapping[str, Any], tables: TargetTables, vocab: int) -> DSparkConfig:
    rope = values.get("rope_parameters") or {"rope_theta": values.get("rope_theta"), "rope_type": "default"}
    expected = {
        "attention_bias": (values.get("attention_bias", False), False),
        "hidden_act": (values.get("hidden_act", "silu"), "silu"),
        "layer_types": (sorted(set(values.get("layer_types") or ["full_attention"])), ["full_attention"]),
        "rope_type": (rope.get("rope_type", "default"), "default"),
        "enable_confidence_head": (values["enable_confidence_head"], True),
        "vocab_size": (values["vocab_size"], tables.facts.vocab),
        "hidden_size": (values["hidden_size"], tables.facts.hidden),
        "num_target_layers": (values["num_target_layers"], tables.facts.layers),
    }
    for name, (got, wanted) in expected.items():
        if got != wanted:
            raise InvalidValue(f"{name}={got!r}", f"only {wanted!r} is understood here")
    rank = int(values["markov_rank"])
    kind = str(values["markov_head_type"]).lower() if rank else "none"
    if kind not in (*_HEADS, "none"):
        raise InvalidValue(f"markov_head_type={kind!r}", f"only {', '.join(_HEADS)} are understood here")
    return DSparkConfig(
        target_fingerprint=tables.facts.fingerprint,
        target_layers=int(values["num_target_layers"]),
        target_vocab=int(values["vocab_size"]),
        feature_layers=_layers(values),
        hidden=int(values["hidden_size"]),
        layers=int(values["num_hidden_layers"]),
        heads=int(values["num_attention_heads"]),
        kv_heads=int(values["num_key_value_heads"]),
        head_dim=int(values["head_dim"]),
        mlp=int(values["intermediate_size"]),
        block=int(values["block_size"]),
        draft_vocab=vocab,
        head=_HEADS.get(kind, "none"),
        rank=rank,
        rope_theta=float(rope["rope_theta"]),
        norm_eps=float(values["rms_norm_eps"]),
        qk_norm=True,
    )


def _names(config: DSparkConfig) -> dict[str, str]:
    """The names a checkpoint of this config holds, and ours."""
    heads = {"markov": ("markov_w1", "markov_w2"), "rnn": ("markov_w1", "markov_w2", "joint_proj"), "none": ()}
    wanted = {f"markov_head.{part}.weight" for part in heads[config.head]}
    names = {theirs: ours for theirs, ours in _TENSORS.items() if "markov_head" not in theirs or theirs in wanted}
    for i in range(config.layers):
        names |= {f"layers.{i}.{theirs}.weight": f"layers.{i}.{ours}" for theirs, ours in _LAYER.items()}
    return names


def _check_names(config: DSparkConfig, found: Mapping[str, Array], with_markov: bool) -> None:
    wanted = _names(config).keys() | {_EMBEDDING, _HEAD}
    optional = {_RNN_BIAS} if config.head == "rnn" else set[str]()
    missing, unknown = sorted(wanted - found.keys()), sorted(found.keys() - wanted - optional)
    if missing or unknown:
        what = f"lacks {', '.join(missing)}" if missing else f"holds tensors that do not map: {', '.join(unknown)}"
        raise ModelFileError(f"the DeepSpec checkpoint {what}", _REMEDY)
    if _RNN_BIAS in found and found[_RNN_BIAS].any():
        raise ModelFileError(f"the DeepSpec checkpoint's {_RNN_BIAS} is not 0, and our RNN head has no biases", _REMEDY)
    if with_markov and config.head == "none":
        raise ModelFileError("the DeepSpec checkpoint's confidence reads a Markov head that it does not have", _REMEDY)


def _check_target(found: Mapping[str, Array], tables: TargetTables) -> None:
    for name, own in ((_EMBEDDING, tables.embedding), (_HEAD, tables.head)):
        copy = found[name]
        if copy.shape != own.shape or not np.abs(copy - own).max() <= _NEAR * np.abs(own).max():
            raise ModelFileError(
                f"the DeepSpec checkpoint's {name} is not the target's: it was trained for another one",
                "load the target it names, in bfloat16 or better (a quantized one has another table)",
            )


def _mapped(config: DSparkConfig, found: Mapping[str, Array], mask: int) -> dict[str, Array]:
    ours = {name: found[theirs] for theirs, name in _names(config).items() if "," not in name}
    vocab = config.draft_vocab
    confidence = np.zeros(config.hidden + config.rank, np.float32)
    read = ours["confidence"].reshape(-1)
    if len(read) not in (config.hidden, len(confidence)):
        raise ModelFileError(f"the DeepSpec checkpoint's confidence head reads {len(read)} values", _REMEDY)
    confidence[: len(read)] = read
    if not 0 <= mask < len(found[_EMBEDDING]):
        raise ModelFileError(f"mask_token_id {mask} of the DeepSpec checkpoint is no row of its embedding", _REMEDY)
    ours |= {
        "confidence": confidence,
        "context.scale": np.ones(config.hidden * len(config.feature_layers), np.float32),
        "mask": found[_EMBEDDING][mask],
        "vocab": np.arange(vocab),
    }
    if config.head != "none":
        outside = np.zeros((1, config.rank), np.float32)
        ours |= {
            "head.embed": np.concatenate([ours["head.embed"][:vocab], outside]),
            "head.out": ours["head.out"][:vocab],
        }
    if config.head == "rnn":
        joint = found["markov_head.joint_proj.weight"]
        parts = np.split(joint, 3) if len(joint) == 3 * config.rank else [joint] * 3  # the wrong shape is named later
        ours |= dict(zip(("head.gate", "head.cell", "head.read"), parts, strict=True))
    return ours
