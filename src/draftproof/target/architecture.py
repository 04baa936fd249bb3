"""What a Hugging Face causal language model is made of, as far as a rollback-able target must know.

Guarantees: a model whose state cannot be rolled back by forgetting positions (recurrent, convolutional
or linear-attention layers, encoder-decoders, attention that looks ahead) is refused by name, from its
config alone and therefore before its weights are read. What it does not do: run the model.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from transformers import PretrainedConfig, PreTrainedModel
from transformers.cache_utils import DummyLayer, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from draftproof.errors import Unsupported

_KEEPS_POSITIONS = (DynamicLayer, DynamicSlidingWindowLayer, DummyLayer)
_MASKED = {"full_attention", "sliding_attention"}


def refuse_config(config: PretrainedConfig, name: str) -> list[bool]:
    """For each layer, whether it has no keys and values of its own.

    Raises Unsupported, naming what cannot roll back.
    """
    remedy = "use a model with causal attention in every layer"
    if config.is_encoder_decoder:
        raise Unsupported(f"{name} is an encoder-decoder ({config.model_type}): not a causal language model", remedy)
    text = config.get_text_config(decoder=True)
    if getattr(text, "is_causal", True) is False or getattr(text, "use_bidirectional_attention", False):
        raise Unsupported(f"{name} ({config.model_type}) attends to later tokens", remedy)
    try:
        layers = DynamicCache(config=config).layers
    except (AttributeError, KeyError, NotImplementedError, TypeError, ValueError) as error:
        raise Unsupported(
            f"{name} ({config.model_type}) has layers without a key/value cache: {error}", remedy
        ) from error
    kinds = getattr(text, "layer_types", None) or [type(layer).__name__ for layer in layers]
    for i, layer in enumerate(layers):
        if type(layer) not in _KEEPS_POSITIONS:
            raise Unsupported(
                f"{name} ({config.model_type}) cannot roll back: layer {i} is {kinds[i]}, which keeps a running state",
                remedy,
            )
    return [isinstance(layer, DummyLayer) for layer in layers]


@dataclass(frozen=True, slots=True)
class Architecture:
    """The facts about one model that the target uses.

    shared: per layer, True if it has no keys and values of its own. masks: the window (None: full
    attention) of every mask that a padded batch has to bring, by layer type, "" if the model takes one
    mask for all layers; None if the target cannot make its masks. additive: masks are added to the
    scores (eager attention) instead of being boolean. ragged_head: the output head can be applied to
    different rows of each sequence of a batch.
    """

    shared: list[bool]
    masks: dict[str, int | None] | None
    additive: bool
    context_limit: int | None
    cache_argument: str
    head_argument: bool
    ragged_head: bool
    positions: bool

    @classmethod
    def of(cls, model: PreTrainedModel, name: str) -> Architecture:
        """Look at a loaded model. Raises Unsupported if it cannot roll back."""
        config: PretrainedConfig = model.config
        if getattr(model, "_is_stateful", False):
            raise Unsupported(
                f"{name} ({config.model_type}) cannot roll back: it keeps a recurrent state",
                "use a model with causal attention in every layer",
            )
        shared = refuse_config(config, name)
        text = config.get_text_config(decoder=True)
        arguments = inspect.signature(model.forward).parameters
        return cls(
            shared=shared,
            masks=_masks(text),
            additive=text._attn_implementation == "eager",
            context_limit=_context_limit(text),
            cache_argument="cache" if "cache" in arguments else "past_key_values",
            head_argument="logits_to_keep" in arguments,
            # The library's own models slice all alike; a checkpoint's own code may not know masks of rows.
            ragged_head="logits_to_keep" in arguments and type(model).__module__.startswith("transformers."),
            positions="position_ids" in arguments,
        )


def _masks(text: Any) -> dict[str, int | None] | None:
    if text._attn_implementation not in ("sdpa", "eager") or getattr(text, "attention_chunk_size", None):
        return None
    window = getattr(text, "sliding_window", None)
    kinds = getattr(text, "layer_types", None)
    if kinds is None:
        return {"": window}
    if not set(kinds) <= _MASKED:
        return None
    return {kind: window if kind == "sliding_attention" else None for kind in sorted(set(kinds))}


def _context_limit(text: Any) -> int | None:
    limit: int | None = getattr(text, "max_position_embeddings", None)
    rope = getattr(text, "rope_parameters", None) or {}
    for parameters in (rope, *rope.values()):
        # Beyond the original length these change the angles of every position at once, those in the
        # cache included: rows would depend on how the tokens arrived and on the rest of the batch.
        if isinstance(parameters, dict) and parameters.get("rope_type") == "longrope":
            original = parameters.get("original_max_position_embeddings")
            limit = min(x for x in (limit, original) if x is not None)
    return limit
