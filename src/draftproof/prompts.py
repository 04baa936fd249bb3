"""What a request starts with: its token ids, checked, and the room its answer has.

Guarantees: whatever is wrong with a prompt is said before anything is computed. What it does not do: templates and
tokenization themselves; see `text.Tokenizer`.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from draftproof.errors import InvalidValue
from draftproof.sampling.params import SamplingParams
from draftproof.text import Message, Tokenizer

Prompt = str | Seq[int] | Seq[Message]
"""Text, token ids, or the messages of a chat."""


def encode(prompt: Prompt, tokenizer: Tokenizer | None, vocab_size: int, *, chat: bool | None = None) -> list[int]:
    """Token ids of a prompt. Text goes through the chat template if the model has one, unless chat=False.

    Raises InvalidValue for an empty prompt, text without a tokenizer, or an id outside the vocabulary.
    """
    if isinstance(prompt, str):
        known = _known(tokenizer)
        if not prompt:
            ids = []
        elif known.has_chat if chat is None else chat:
            ids = known.chat([{"role": "user", "content": prompt}])
        else:
            ids = known.prompt(prompt)
    elif len(prompt) and isinstance(prompt[0], dict):
        ids = _known(tokenizer).chat(prompt)  # type: ignore[arg-type]
    else:
        ids = [int(i) for i in prompt]  # type: ignore[arg-type]
    if not ids:
        raise InvalidValue("the prompt is empty", "give at least one token; a model continues something")
    check_ids(ids, vocab_size, "prompt token")
    return ids


def check_ids(ids: Seq[int], vocab_size: int, what: str) -> None:
    """Raise InvalidValue for the first id outside 0..vocab_size-1."""
    for i in ids:
        if not 0 <= i < vocab_size:
            raise InvalidValue(f"{what} {i}", f"ids are 0..{vocab_size - 1}")


def room(prompt: int, answered: int, params: SamplingParams, context: int | None) -> tuple[int, str]:
    """The most tokens an answer may still get, and the finish reason when it gets them.

    prompt, answered: how many tokens there are of each; max_tokens and min_tokens are about the answer as a whole.
    "length": max_tokens; "context": there was no max_tokens and the context is full. Raises InvalidValue for what
    does not fit.
    """
    if params.max_tokens is not None and answered >= params.max_tokens:
        raise InvalidValue(f"max_tokens={params.max_tokens} after {answered} tokens of the answer", "ask for more")
    if context is None:
        if params.max_tokens is None:
            raise InvalidValue("max_tokens=None on a target without context limit", "give a number")
        return params.max_tokens - answered, "length"
    most = context - prompt
    if most <= answered:
        raise InvalidValue(
            f"the prompt has {prompt + answered} tokens", f"the context holds {context}, answer included"
        )
    for name in ("max_tokens", "min_tokens"):
        asked = getattr(params, name)
        if asked is not None and asked > most:
            raise InvalidValue(
                f"{name}={asked} after a prompt of {prompt} tokens", f"the context of {context} leaves at most {most}"
            )
    if params.max_tokens is None:
        return most - answered, "context"
    return params.max_tokens - answered, "length"


def _known(tokenizer: Tokenizer | None) -> Tokenizer:
    if tokenizer is None:
        raise InvalidValue("a text prompt without a tokenizer", "pass token ids, or build the engine with one")
    return tokenizer
