"""What an answer comes back as: text, ids, why it ended, and what speculation did.

Guarantees: the names here are the names in the command line's JSON. Rates pool numerators and denominators; the
bonus token is never counted as accepted; everything ends at the same token.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

from draftproof.logprobs import TokenLogprob
from draftproof.verify.base import Origin


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts. completion_tokens includes an EOS or stop id that ended the answer."""

    prompt_tokens: int
    completion_tokens: int

    @property
    def total_tokens(self) -> int:
        """prompt_tokens + completion_tokens."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Speculation:
    """What speculation did for one answer.

    drafted: tokens verified; accepted: of those, emitted; emitted: all tokens of the answer. acceptance_by_position
    [k] is accepted/drafted at position k of the block. surprises: numeric fall-backs (see `verify.base.Verdict`).
    """

    drafter: str
    verifier: str
    schedule: str
    rounds: int
    drafted: int
    accepted: int
    emitted: int
    drafted_at: Seq[int] = ()
    accepted_at: Seq[int] = ()
    surprises: int = 0
    off_reason: str | None = None

    @property
    def tokens_per_round(self) -> float:
        """emitted / rounds; 0 before the first round."""
        return self.emitted / self.rounds if self.rounds else 0.0

    @property
    def acceptance_rate(self) -> float:
        """accepted / drafted; 0 when nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def acceptance_by_position(self) -> list[float]:
        """accepted / drafted at each position of the block."""
        return [a / d if d else 0.0 for a, d in zip(self.accepted_at, self.drafted_at, strict=True)]


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. total = target + draft + other, over the rounds this answer took part in; load comes before."""

    total: float
    target: float
    draft: float
    other: float
    load: float = 0.0


@dataclass(frozen=True, slots=True)
class Result:
    """One answer, and with n > 1 the others to the same prompt.

    text: without the stop string, unless include_stop. token_ids: of the answer, up to and with the token that ended
    it (an EOS or stop id, or the token in which a stop string became complete).
    finish_reason: "stop", "length" (max_tokens), "context" (no max_tokens, context full), "cancelled",
    "grammar_dead_end" (no token is allowed after this text). stop_reason: the id or string that stopped it.
    offsets: for each token, where in `text` its first character is (for one that ends a character begun by earlier
    tokens, where that character is). logprobs, prompt_logprobs: one entry per token if asked for, else None.
    origins: which path each token came from. alternatives: with n > 1 the answers 1..n-1; this one is answer 0.
    """

    text: str
    token_ids: Seq[int]
    finish_reason: str
    usage: Usage
    speculation: Speculation
    timing: Timing
    seed: int
    origins: Seq[Origin] = field(default=(), repr=False)
    stop_reason: int | str | None = None
    offsets: Seq[int] = field(default=(), repr=False)
    logprobs: Seq[TokenLogprob] | None = field(default=None, repr=False)
    prompt_logprobs: Seq[TokenLogprob | None] | None = field(default=None, repr=False)
    alternatives: tuple[Result, ...] = ()

    @property
    def choices(self) -> tuple[Result, ...]:
        """All n answers, this one first."""
        return (self, *self.alternatives)

    def to_json(self) -> dict[str, Any]:
        """Plain lists, numbers and strings, ready for `json.dumps`; lists that were not asked for are None."""
        speculation = dataclasses.asdict(self.speculation)
        for name in ("tokens_per_round", "acceptance_rate", "acceptance_by_position"):
            speculation[name] = getattr(self.speculation, name)
        return {
            "text": self.text,
            "token_ids": list(self.token_ids),
            "finish_reason": self.finish_reason,
            "stop_reason": self.stop_reason,
            "usage": dataclasses.asdict(self.usage) | {"total_tokens": self.usage.total_tokens},
            "speculation": speculation,
            "timing": dataclasses.asdict(self.timing),
            "seed": self.seed,
            "origins": [str(origin) for origin in self.origins],
            "offsets": list(self.offsets),
            "logprobs": _plain(self.logprobs),
            "prompt_logprobs": _plain(self.prompt_logprobs),
            "alternatives": [answer.to_json() for answer in self.alternatives],
        }


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One committed token. text: what became printable with it, possibly empty. index: 0 for the first.

    sample: which of the n answers. logprob: if it was asked for.
    """

    request: int
    index: int
    token: int
    text: str
    origin: Origin
    sample: int = 0
    logprob: TokenLogprob | None = None


@dataclass(frozen=True, slots=True)
class FinishEvent:
    """One answer has ended. text: the tail that was still held back; result: everything; sample: which of the n."""

    request: int
    text: str
    result: Result
    sample: int = 0


Event = TokenEvent | FinishEvent


def _plain(entries: Seq[TokenLogprob | None] | None) -> list[dict[str, Any] | None] | None:
    if entries is None:
        return None
    return [None if e is None else _entry(e) for e in entries]


def _entry(e: TokenLogprob) -> dict[str, Any]:
    # A prompt may hold a token of probability zero; JSON has no -inf.
    logprob = e.logprob if math.isfinite(e.logprob) else None
    return {"token": e.token, "logprob": logprob, "top": [list(pair) for pair in e.top]}
