"""The target protocol: a language model that scores several sequences at once and can roll back.

What it is for: everything that produces rows (the target itself, a draft model, a toy table) looks
like this to the engine. A target holds one cache per open sequence; nothing else is remembered.

Guarantees asked of an implementation: `score` returns one row per requested position, computed from
exactly the tokens cached so far plus the new ones up to that position; after `rollback(seq, n)` every
later row equals that of a fresh prefill of the first n tokens (up to rounding). What it does not do:
sampling, stopping, randomness.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from draftproof.errors import BadLogits, InvalidValue

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class LogitRows:
    """Unnormalised log-probabilities, shape (rows, vocab), float32 or float64, finite or -inf.

    ids: where the columns stand for some ids only, which ones, ascending; all others are impossible, and size is the
    vocabulary's. For drafters with a vocabulary of their own: a row costs as many numbers as it has.
    """

    values: Array
    ids: npt.NDArray[np.int64] | None = None
    size: int | None = None

    def __post_init__(self) -> None:
        if (self.ids is None) != (self.size is None) or (
            self.ids is not None and self.ids.shape != self.values.shape[1:]
        ):
            raise InvalidValue("rows over some ids", "one id for each column, and the vocabulary's size")

    @property
    def vocab_size(self) -> int:
        """How many ids there are."""
        return int(self.values.shape[-1]) if self.size is None else self.size


@dataclass(frozen=True, slots=True)
class ProbRows:
    """Probabilities, shape (rows, vocab): float64, or an object array of `fractions.Fraction`.

    A type of its own so that probabilities can never be mistaken for logits.
    """

    values: Array

    @property
    def vocab_size(self) -> int:
        """How many ids there are."""
        return int(self.values.shape[-1])


Rows = LogitRows | ProbRows


@dataclass(frozen=True, slots=True)
class Feed:
    """New tokens for one open sequence, and how many of the last rows are wanted.

    `tokens` are appended to the sequence's cache; row j of the answer is the next-token row after
    `tokens[len(tokens) - rows + j]`. A prompt of 500 tokens is fed with rows=1: only its last row is
    computed by the output head.

    width: for runtimes to which a pass of another shape than the last one is dear: the part may be filled up to so
    many tokens, which nobody sees. A hint about time; it changes no row.
    """

    handle: int
    tokens: Seq[int]
    rows: int
    width: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.rows <= len(self.tokens):
            raise InvalidValue(f"rows={self.rows} for {len(self.tokens)} new tokens", "1 <= rows <= len(tokens)")


@runtime_checkable
class Target(Protocol):
    """A causal language model behind per-sequence caches."""

    @property
    def name(self) -> str:
        """What to call it in reports."""
        ...

    @property
    def vocab_size(self) -> int:
        """Number of ids a row covers; every id in a feed is below it."""
        ...

    @property
    def context_limit(self) -> int | None:
        """The most tokens one sequence may hold, or None when there is no limit."""
        ...

    @property
    def eos_ids(self) -> frozenset[int]:
        """Ids that end an answer by default."""
        ...

    def open(self) -> int:
        """A new empty sequence; the handle names it until `close`."""
        ...

    def close(self, handle: int) -> None:
        """Free the sequence. Closing twice is an error of the caller."""
        ...

    def length(self, handle: int) -> int:
        """How many tokens the cache of this sequence holds now."""
        ...

    def score(self, feeds: Seq[Feed]) -> list[Rows]:
        """One forward pass over all feeds (ragged); one `Rows` per feed, in order, shape (feed.rows, vocab)."""
        ...

    def rollback(self, handle: int, length: int) -> None:
        """Forget every token from `length` on; 0 <= length <= self.length(handle)."""
        ...


def narrow_tokens(target: Target, otherwise: int) -> int:
    """Tokens of the longest pass that is cheap for its size, where the target says so (its `narrow`), else `otherwise`.

    A schedule that chooses how much is drafted has no reason to choose more.
    """
    narrow: int | None = getattr(target, "narrow", None)
    return otherwise if narrow is None else narrow


def check_logits(values: Array, *, position: int, row: int, who: str) -> int:
    """Where the largest logit of a row lies, the first of equals; BadLogits if it contains NaN or +inf, or nothing
    finite.

    `values` has shape (vocab,). One pass over the row: the maximum is NaN, +inf or -inf exactly in the
    three bad cases, and a NaN is the maximum.
    """
    peak = int(values.argmax())
    top = float(values[peak])
    if -math.inf < top < math.inf:
        return peak
    what = "NaN" if math.isnan(top) else "+inf" if top > 0 else "no finite entry"
    raise BadLogits(
        f"{who}: logits with {what} at position {position}, row {row} of the pass",
        "the model or its dtype is broken; try float32, or another checkpoint",
    )
