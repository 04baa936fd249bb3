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

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, ids: Seq[int], *, skip_special: bool = True) -> str:
        return "".join(f"{i} " for i in ids)

    def chat(self, messages: Seq[Message]) -> list[int]:
        return self.encode(" ".join(m["content"] for m in messages))

    def fingerprint(self) -> str:
        return f"ids:{self.vocab_size}"


class TextStream:
    """Ids to text, token by token, never splitting a character.

    Text whose last character is still incomplete (an unfinished UTF-8 sequence decodes to U+FFFD) is held back
    until it is complete or the answer ends. The pieces add up to the decoding of all ids.
    """

    __slots__ = ("_ids", "_read", "_start", "_tokenizer", "text")

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        # The window decoded each time starts one emitted piece back, for tokenizers whose decoding of a token
        # depends on the one before it (a leading space kept or dropped).
        self._start = 0
        self._read = 0
        self.text = ""

    def push(self, token: int) -> str:
        """The text that became certain with this token, possibly empty."""
        self._ids.append(token)
        known, full = self._window()
        if full.endswith("\ufffd") or len(full) <= len(known):
            return ""
        return self._emit(full[len(known) :])

    def flush(self) -> str:
        """What is still held back, U+FFFD and all: the answer is over."""
        known, full = self._window()
        return self._emit(full[len(known) :])

    def _window(self) -> tuple[str, str]:
        known = self._tokenizer.decode(self._ids[self._start : self._read])
        return known, self._tokenizer.decode(self._ids[self._start :])

    def _emit(self, piece: str) -> str:
        self._start, self._read = self._read, len(self._ids)
        self.text += piece
        return piece
