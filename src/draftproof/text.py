"""The tokenizer protocol and the text side of an answer.

What it is for: everything between ids and characters that the engine needs. An implementation wraps a
`tokenizers.Tokenizer`; the toy models use `IdTokenizer`.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Protocol

Message = dict[str, str]
"""One chat message: {"role": "user", "content": "..."}."""


class Tokenizer(Protocol):
    """Text to ids and back."""

    def encode(self, text: str) -> list[int]:
        """Ids of plain text; no chat template, no special tokens added."""
        ...

    def prompt(self, text: str) -> list[int]:
        """Ids of a plain prompt as the model expects one: `encode`, with BOS where the model's files ask for it."""
        ...

    def decode(self, ids: Seq[int], *, skip_special: bool = True) -> str:
        """Text of ids. Incomplete UTF-8 at the end shows as U+FFFD."""
        ...

    def chat(self, messages: Seq[Message]) -> list[int]:
        """Ids of a conversation through the model's chat template, ready for the assistant's answer.

        Raises Unsupported if the model has no template.
        """
        ...

    @property
    def has_chat(self) -> bool:
        """Whether the model has a chat template."""
        ...

    def fingerprint(self) -> str:
        """A short hash of the vocabulary: equal for models that share one."""
        ...


class IdTokenizer:
    """Ids written as numbers separated by spaces: the tokenizer of the toy models."""

    has_chat = False

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def __deepcopy__(self, memo: dict[int, object]) -> IdTokenizer:
        return self  # immutable

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def prompt(self, text: str) -> list[int]:
        return self.encode(text)

    def decode(self, ids: Seq[int], *, skip_special: bool = True) -> str:
        return "".join(f"{i} " for i in ids)

    def chat(self, messages: Seq[Message]) -> list[int]:
        return self.encode(" ".join(m["content"] for m in messages))

    def fingerprint(self) -> str:
        return f"ids:{self.vocab_size}"


WINDOW = 16  # tokens decoded at a time at most; a longer window is cut back to
KEPT = 8  # this many, so that the cost of a token does not grow with the answer
UNSURE = 3  # bytes of a UTF-8 character that can be there without the last one: at most so many U+FFFD may still change


class TextStream:
    """Ids to text, token by token, never splitting a character.

    An unfinished UTF-8 sequence decodes to U+FFFD at the end of the text; that is held back until it is complete or
    the answer ends, and everything before it is given at once. The pieces add up to the decoding of all ids.

    context: the tokens before the first one pushed. Some tokenizers decode a token by the one before it (a leading
    space kept or dropped); the last few of the context are decoded along and not given out again.
    """

    __slots__ = ("_given", "_ids", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer, context: Seq[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._ids = list(context[-KEPT:])
        self._given = len(_sure(self._decode())) if self._ids else 0  # characters of the window that are out already

    def push(self, token: int) -> str:
        """The text that became certain with this token, possibly empty."""
        self._ids.append(token)
        full = self._decode()
        sure = _sure(full)
        piece = sure[self._given :]
        self._given += len(piece)
        if len(self._ids) >= WINDOW:
            pending = len(full) - self._given
            del self._ids[:-KEPT]
            self._given = max(0, len(self._decode()) - pending)
        return piece

    def flush(self) -> str:
        """What is still held back, U+FFFD and all: the answer is over."""
        piece = self._decode()[self._given :]
        self._given += len(piece)
        return piece

    def _decode(self) -> str:
        return self._tokenizer.decode(self._ids)


def _sure(text: str) -> str:
    """The text without the characters at its end that a further byte may still change."""
    end = len(text)
    while end > 0 and len(text) - end < UNSURE and text[end - 1] == "\ufffd":
        end -= 1
    return text[:end]
