"""What DSpark needs from a target beyond rows: hidden states of committed tokens, and its two frozen tables.

Guarantees: a target that cannot give hidden states is refused by name before anything is drafted; tables are read from
the model's own files, so they are the same whichever runtime runs the target. What it does not do: run a model.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from draftproof.draft.dspark.gguf_tables import gguf_tables
from draftproof.errors import ModelFileError, Unsupported
from draftproof.models.store import ResolvedModel, aliases, resolve
from draftproof.target.base import Target

Array = npt.NDArray[Any]

_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"


@runtime_checkable
class HiddenTarget(Target, Protocol):
    """A target that keeps the hidden states of what it scores."""

    def hidden(self, handle: int) -> Array:
        """Hidden states of the tokens of the last feed: float32, (layers asked for, tokens, hidden size).

        Layers are counted as in `output_hidden_states`: 0 is the embedding, the last comes after the final norm.
        """
        ...


def needs_hidden(target: Target) -> HiddenTarget:
    """The target itself; Unsupported if it keeps no hidden states."""
    if not isinstance(target, HiddenTarget):
        raise Unsupported(
            f"the target {target.name} gives no hidden states, which DSpark reads",
            "load it so that it keeps them, or use another drafter, such as lookup or suffix",
        )
    return target


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """Sizes of a target that a drafter of it shares."""

    fingerprint: str
    layers: int
    vocab: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    rope_theta: float
    norm_eps: float


@dataclass(frozen=True, slots=True)
class TargetTables:
    """The embedding table and LM head, (vocab, hidden) float32; the same array where they are tied."""

    facts: TargetFacts
    embedding: Array
    head: Array

    @classmethod
    def load(cls, model: str) -> TargetTables:
        """The tables of a model by alias, folder, GGUF file or Hub id; torch is needed for bfloat16 files alone.

        Raises what `models.store.resolve` does, and ModelFileError if the files lack a table or a size.
        """
        if model in aliases() or Path(model).suffix == ".gguf":
            found = resolve(model, kind="gguf")
            return cls(*gguf_tables(found.path, found.fingerprint))
        return cls.of(resolve(model))

    @classmethod
    def of(cls, found: ResolvedModel) -> TargetTables:
        """The tables of a resolved model in Hugging Face layout."""
        facts = _facts(found)
        tables = read_tensors(found.path, (_EMBEDDING, _HEAD))
        if _EMBEDDING not in tables:
            raise ModelFileError(f"{found.path} holds no {_EMBEDDING}", "DSpark needs a model with that layout")
        embedding = tables[_EMBEDDING]
        head = tables.get(_HEAD, embedding)
        for name, table in ((_EMBEDDING, embedding), (_HEAD, head)):
            if table.shape != (facts.vocab, facts.hidden):
                raise ModelFileError(
                    f"{name} has shape {table.shape}", f"its config says ({facts.vocab}, {facts.hidden})"
                )
        return cls(facts, embedding, head)


def _facts(found: ResolvedModel) -> TargetFacts:
    config = json.loads((found.path / "config.json").read_text(encoding="utf-8"))
    config = config.get("text_config", config)
    try:
        heads = config["num_attention_heads"]
        rope = config.get("rope_parameters") or {}
        return TargetFacts(
            fingerprint=found.fingerprint,
            layers=config["num_hidden_layers"],
            vocab=config["vocab_size"],
            hidden=config["hidden_size"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            mlp=config["intermediate_size"],
            rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0),
            norm_eps=float(config.get("rms_norm_eps", 1e-5)),
        )
    except KeyError as error:
        raise ModelFileError(f"{found.path}/config.json lacks {error}", "DSpark needs a llama-like config") from error


def read_tensors(folder: Path, wanted: tuple[str, ...] | None = None) -> dict[str, Array]:
    """The wanted tensors (None: all) that the folder's safetensors hold, as float32. bfloat16 needs torch."""
    from safetensors import safe_open

    found: dict[str, Array] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="numpy") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a mapping
                if wanted is None or name in wanted:
                    try:
                        found[name] = tensors.get_tensor(name).astype(np.float32, copy=False)
                    except TypeError:  # numpy has no bfloat16
                        found[name] = _by_torch(file, name)
    return found


def _by_torch(file: Path, name: str) -> Array:
    from safetensors import safe_open

    with safe_open(file, framework="pt") as tensors:
        values: Array = tensors.get_tensor(name).float().numpy()
        return values
