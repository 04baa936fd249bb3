"""What `transformers` can be asked for and a lossless drop-in cannot honour, refused by name before the first token.

Guarantees: every argument that would change the answer or what comes back is either honoured or named here. What it
does not do: arguments that only steer how `transformers` computes (compilation, assistant lengths without an
assistant), which have nothing to steer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel
from transformers.generation.logits_process import (
    SynthIDTextWatermarkLogitsProcessor,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)

from draftproof.errors import Unsupported

NEUTRAL: dict[str, tuple[object, ...]] = {
    "num_beams": (None, 1),
    "num_beam_groups": (None, 1),
    "constraints": (None,),
    "force_words_ids": (None,),
    "dola_layers": (None,),
    "prompt_lookup_num_tokens": (None,),
    "assistant_early_exit": (None,),
    "use_mtp": (None, False),
    "is_assistant": (None, False),
    "guidance_scale": (None, 1, 1.0),
    "encoder_repetition_penalty": (None, 1, 1.0),
    "encoder_no_repeat_ngram_size": (None, 0),
    "output_attentions": (None, False),
    "output_hidden_states": (None, False),
    "output_scores": (None, False),
    "output_logits": (None, False),
    "use_cache": (None, True),
    "cache_implementation": (None, "dynamic"),
    "low_memory": (None, False),
}
"""Generation settings that are not honoured, with the values that switch them off."""

STATEFUL = (SynthIDTextWatermarkLogitsProcessor, UnbatchedClassifierFreeGuidanceLogitsProcessor)
"""Processors whose answer depends on how often they were called, not on their arguments alone."""

HANDLED = {"attention_mask", "position_ids", "use_cache", "logits_to_keep", "cache", "past_key_values"}
"""Model arguments that `generate` always prepares; they are checked one by one."""

REMEDY = "leave it out, or call generate without custom_generate"


def refuse(
    model: PreTrainedModel,
    config: GenerationConfig,
    processors: LogitsProcessorList,
    lost: Mapping[str, Any],
    model_arguments: Mapping[str, Any],
) -> None:
    """Raise Unsupported for the first thing that cannot be honoured.

    lost: arguments of the `generate` call that it does not hand on. model_arguments: those for the model's forward.
    """
    if model.training:
        raise Unsupported("model.training=True: dropout makes every pass another model", "call model.eval()")
    for name in ("assistant_model", "synced_gpus", "negative_prompt_ids", "negative_prompt_attention_mask"):
        if lost.get(name) not in (None, False):
            raise Unsupported(name, REMEDY)
    for name, neutral in NEUTRAL.items():
        value = getattr(config, name, None)
        if value not in neutral:
            raise Unsupported(f"{name}={value!r}", REMEDY)
    if config.penalty_alpha and not config.do_sample and config.top_k and config.top_k > 1:
        raise Unsupported(f"penalty_alpha={config.penalty_alpha!r} (contrastive search)", REMEDY)
    for processor in processors:
        if isinstance(processor, STATEFUL):
            raise Unsupported(f"{type(processor).__name__}, which remembers its calls", REMEDY)
    for name, value in model_arguments.items():
        if name not in HANDLED and value is not None:
            raise Unsupported(f"the model argument {name}", REMEDY)
    for name in ("cache", "past_key_values"):
        cache = model_arguments.get(name)
        if cache is not None and (getattr(cache, "_is_user_defined", False) or cache.get_seq_length()):
            raise Unsupported(f"a {name} that is already filled or wanted back", REMEDY)


def refuse_padding(mask: torch.Tensor | None, positions: torch.Tensor | None, length: int) -> None:
    """Raise Unsupported unless padding is on the left and positions count the tokens without it.

    mask: (batch, length) or None for no padding; positions: (batch or 1, length) or None.
    """
    if mask is not None and bool((mask.long().diff(dim=1) < 0).any()):
        raise Unsupported("padding that is not on the left", "set tokenizer.padding_side='left'")
    if mask is not None and bool((mask.sum(dim=1) == 0).any()):
        raise Unsupported("a prompt of padding only", "give every prompt at least one token")
    if positions is None:
        return
    counted = torch.arange(length)[None] if mask is None else (mask.long().cumsum(-1) - 1).clamp(min=0).cpu()
    if not bool((positions.cpu() == counted).all()):
        raise Unsupported("position_ids of one's own", "leave them out; they are counted from the attention mask")
