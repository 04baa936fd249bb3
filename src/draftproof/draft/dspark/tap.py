"""A target that remembers the hidden states of everything it scored, for a drafter that reads them.

What it is for: an engine gets `FeatureTap(target)` as its target, the drafter asks the same tap for the features of
the tokens that were committed. States are addressed by content: what the target computes at a token is a function of
the tokens up to it, so whichever open sequence holds exactly these tokens has the right ones.

Guarantees: it changes nothing about scoring; states are kept from when they are computed until they were taken or
rolled back. What it does not do: compute anything.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import numpy as np

from draftproof.draft.dspark.hidden import HiddenTarget, needs_hidden
from draftproof.target.base import Array, Feed, Rows, Target


@dataclass(slots=True)
class _Held:
    """An open sequence: its tokens, and states of those from `start` to the last, in pieces (tokens, width)."""

    tokens: list[int] = field(default_factory=list)
    start: int = 0
    pieces: list[Array] = field(default_factory=list)


class FeatureTap:
    """A `Target` around a target with hidden states; raises Unsupported for one without."""

    def __init__(self, target: Target) -> None:
        self.inner: HiddenTarget = needs_hidden(target)
        self._held: dict[int, _Held] = {}

    @property
    def name(self) -> str:
        """The target's own."""
        return self.inner.name

    @property
    def vocab_size(self) -> int:
        """The target's own."""
        return self.inner.vocab_size

    @property
    def context_limit(self) -> int | None:
        """The target's own."""
        return self.inner.context_limit

    @property
    def eos_ids(self) -> frozenset[int]:
        """The target's own."""
        return self.inner.eos_ids

    @property
    def narrow(self) -> int | None:
        """The target's own, where it says (`target.base.narrow_tokens`)."""
        return getattr(self.inner, "narrow", None)

    def open(self) -> int:
        """A new empty sequence."""
        handle = self.inner.open()
        self._held[handle] = _Held()
        return handle

    def close(self, handle: int) -> None:
        """Free the sequence."""
        self.inner.close(handle)
        del self._held[handle]

    def length(self, handle: int) -> int:
        """Tokens in the target's cache."""
        return self.inner.length(handle)

    def score(self, feeds: Seq[Feed]) -> list[Rows]:
        """The target's own pass; its hidden states are kept."""
        rows = self.inner.score(feeds)
        for feed in feeds:
            held = self._held[feed.handle]
            states = self.inner.hidden(feed.handle).transpose(1, 0, 2)  # (tokens, layers, hidden)
            held.pieces.append(states.reshape(len(states), -1))  # a view, where the target keeps them by token
            held.tokens.extend(feed.tokens)
        return rows

    def rollback(self, handle: int, length: int) -> None:
        """Forget every token from `length` on, with its states."""
        self.inner.rollback(handle, length)
        held = self._held[handle]
        if length < held.start:  # states that were taken are gone; those of tokens to come start where they will
            held.start, held.pieces = length, []
        end = len(held.tokens)
        while held.pieces and end > length:
            piece = held.pieces.pop()
            begin = end - len(piece)
            if begin < length:
                held.pieces.append(piece[: length - begin])
            end = begin
        del held.tokens[length:]

    def take(self, tokens: Seq[int], have: int) -> Array | None:
        """States (n, width) of tokens[have:], from a sequence that has scored exactly `tokens`; they are then dropped.

        None if no open sequence has scored them, or their states were taken before.
        """
        wanted = list(tokens)
        for held in self._held.values():
            if held.start <= have <= len(held.tokens) and held.tokens == wanted:
                states = np.concatenate(held.pieces) if held.pieces else np.zeros((0, 0), np.float32)
                part: Array = states[have - held.start :]
                held.start, held.pieces = len(held.tokens), []
                return part
        return None
