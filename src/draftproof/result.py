"""What an answer comes back as: text, ids, why it ended, and what speculation did.

Guarantees: the names here are the names in the command line's JSON. Rates pool numerators and denominators; the
bonus token is never counted as accepted; everything ends at the same token.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

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
    """One answer."""

    text: str
    token_ids: Seq[int]
    finish_reason: str
    usage: Usage
    speculation: Speculation
    timing: Timing
    seed: int
    origins: Seq[Origin] = field(default=(), repr=False)

    def to_json(self) -> dict[str, Any]:
        """Plain lists, numbers and strings, ready for `json.dumps`."""
        plain = dataclasses.asdict(self)
        plain["usage"]["total_tokens"] = self.usage.total_tokens
        for name in ("tokens_per_round", "acceptance_rate", "acceptance_by_position"):
            plain["speculation"][name] = getattr(self.speculation, name)
        plain["token_ids"] = list(self.token_ids)
        plain["origins"] = [str(origin) for origin in self.origins]
        return plain


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One committed token. text: what became printable with it, possibly empty. index: 0 for the first."""

    request: int
    index: int
    token: int
    text: str
    origin: Origin


@dataclass(frozen=True, slots=True)
class FinishEvent:
    """The answer has ended. text: the tail that was still held back; result: everything."""

    request: int
    text: str
    result: Result


Event = TokenEvent | FinishEvent
