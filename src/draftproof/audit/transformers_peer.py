"""`transformers.generate` as a peer: plain, with prompt lookup, or with an assistant model.

Guarantees: the arguments are those a user would give (do_sample, temperature 1, no cut; prompt_lookup_num_tokens or
assistant_model), on the very model object the reference scores with. The global torch generator, which `generate`
draws from, is put back afterwards. What it does not do: batches; assisted generation refuses them.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

from draftproof.errors import MissingExtra
from draftproof.models.store import resolve
from draftproof.models.tokenizer import FileTokenizer, eos_ids

try:
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig
except ImportError as error:
    raise MissingExtra(f"auditing transformers needs {error.name}", "pip install 'draftproof[transformers]'") from error

from draftproof.target.transformers import DTYPES, TransformersTarget


def load_reference(name: str, *, dtype: str = "float32") -> tuple[Any, TransformersTarget, FileTokenizer]:
    """(model, the same model as a target, tokenizer) of an alias, folder, GGUF file or Hub id."""
    found = resolve(name)
    model = AutoModelForCausalLM.from_pretrained(found.path, dtype=DTYPES[dtype], use_safetensors=True).eval()
    tokenizer = FileTokenizer(found.path)
    target = TransformersTarget(model, name=name, vocab_size=tokenizer.vocab_size, eos_ids=eos_ids(found.path))
    return model, target, tokenizer


class TransformersPeer:
    """One way of calling `model.generate`.

    lookup: prompt_lookup_num_tokens, 0 for none. assistant: an assistant model. eos_ids: what ends an answer. changes:
    generation settings that differ from plain sampling, for planting faults.
    """

    def __init__(
        self,
        model: Any,
        *,
        lookup: int = 0,
        assistant: Any = None,
        eos_ids: frozenset[int] = frozenset(),
        name: str = "",
        **changes: Any,
    ) -> None:
        kind = "assistant" if assistant is not None else f"prompt lookup {lookup}" if lookup else "plain"
        self.name = name or f"transformers generate, {kind}"
        self._model = model
        self._assistant = assistant
        self._settings: dict[str, Any] = {
            "do_sample": True,
            "temperature": 1.0,
            "top_k": 0,
            "top_p": 1.0,
            "eos_token_id": sorted(eos_ids) or None,
            "pad_token_id": min(eos_ids, default=0),
            "prompt_lookup_num_tokens": lookup or None,
            **changes,
        }

    @torch.inference_mode()
    def generate(self, prompt: Seq[int], seed: int, max_tokens: int) -> list[int]:
        ids = torch.tensor([list(prompt)], device=self._model.device)
        config = GenerationConfig(max_new_tokens=max_tokens, **self._settings)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            out = self._model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                generation_config=config,
                assistant_model=self._assistant,
            )
        answer: list[int] = out[0, len(prompt) :].tolist()
        return answer
