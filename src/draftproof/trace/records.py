"""What a trace holds: a header, the requests, the rounds with their tokens, and the results.

Guarantees: refuses records that contradict themselves; `plain` and `from_plain` are inverse to each other on
JSON values. What it does not do: files (`jsonl`) or pictures (`page`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from draftproof.errors import InvalidValue
from draftproof.verify.base import Origin

VERSION = 1
FORMAT = "draftproof-trace"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Header:
    """Who decoded: names as on the command line, and the version of the package that wrote it."""

    target: str
    drafter: str
    verifier: str
    schedule: str
    package: str


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request. prompt: its text as decoded, special tokens included. controls: those in force, as JSON."""

    request: int
    sample: int
    seed: int
    prompt_tokens: int
    prompt: str
    controls: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Choice:
    """A token and its probability in some distribution. piece: the token decoded on its own."""

    id: int
    piece: str
    prob: float


@dataclass(frozen=True, slots=True)
class DraftedToken:
    """The drafted token that was judged where a token was emitted.

    p, q: its probabilities; alpha = min(1, p/q). limit: what the uniform u was compared with (alpha in token
    verification, h of the block in block verification); limit and u are None where no coin was tossed.
    """

    id: int
    piece: str
    p: float
    q: float
    alpha: float
    limit: float | None = None
    u: float | None = None

    def __post_init__(self) -> None:
        for name in ("p", "q", "alpha"):
            _probability(name, getattr(self, name))


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """One emitted token.

    text: what became certain of the text with it; piece: the token decoded on its own. p: its probability under the
    target's row. drafted: what was judged there, None for bonus and plain tokens. law: "residual" or "p", what a
    token that is not an accepted draft was drawn from, with its most probable tokens in `top`.
    """

    id: int
    text: str
    piece: str
    origin: Origin
    p: float
    drafted: DraftedToken | None = None
    law: str | None = None
    top: Seq[Choice] = ()

    def __post_init__(self) -> None:
        _probability("p", self.p)
        if self.law not in (None, "residual", "p"):
            raise InvalidValue(f"law {self.law!r}", "residual, p, or null")


@dataclass(frozen=True, slots=True)
class Part:
    """One request's part of a round. start: absolute position of its first token.

    drafted: the proposed tokens, decoded one by one; admitted of them were verified; accepted of those were emitted.
    """

    request: int
    start: int
    drafter: str
    drafted: Seq[str]
    admitted: int
    accepted: int
    surprises: int
    tokens: Seq[TokenRecord]

    def __post_init__(self) -> None:
        if not 0 <= self.accepted <= self.admitted <= len(self.drafted):
            raise InvalidValue(
                f"{len(self.drafted)} drafted, {self.admitted} admitted, {self.accepted} accepted",
                "accepted <= admitted <= drafted",
            )
        if sum(token.origin is Origin.ACCEPTED for token in self.tokens) != self.accepted:
            raise InvalidValue(f"{self.accepted} accepted", "as many tokens have the origin 'accepted'")


@dataclass(frozen=True, slots=True)
class Round:
    """One target pass. rows: tokens fed to it, prompts included. Seconds are those of the whole round."""

    index: int
    rows: int
    target_seconds: float
    draft_seconds: float
    other_seconds: float
    parts: Seq[Part]


@dataclass(frozen=True, slots=True)
class Trace:
    """A whole run. results: `Result.to_json()` of each request, in order of joining, as far as known."""

    header: Header
    requests: Seq[RequestRecord]
    rounds: Seq[Round]
    results: Seq[Mapping[str, Any]] = ()


def plain(record: Any) -> dict[str, Any]:
    """A record as JSON values."""
    return dataclasses.asdict(record)


def request_from_plain(values: Mapping[str, Any]) -> RequestRecord:
    """The inverse of `plain` for a request. InvalidValue where a field is missing or unknown."""
    return _build(RequestRecord, values)


def header_from_plain(values: Mapping[str, Any]) -> Header:
    """The inverse of `plain` for a header."""
    return _build(Header, values)


def round_from_plain(values: Mapping[str, Any]) -> Round:
    """The inverse of `plain` for a round, its parts and tokens included."""
    return _build(Round, values, parts=lambda parts: tuple(_part(part) for part in parts))


def _part(values: Mapping[str, Any]) -> Part:
    return _build(Part, values, drafted=tuple, tokens=lambda tokens: tuple(_token(token) for token in tokens))


def _token(values: Mapping[str, Any]) -> TokenRecord:
    return _build(
        TokenRecord,
        values,
        origin=Origin,
        drafted=lambda drafted: None if drafted is None else _build(DraftedToken, drafted),
        top=lambda top: tuple(_build(Choice, choice) for choice in top),
    )


def _build(kind: type[T], values: Any, **inner: Any) -> T:
    if not isinstance(values, Mapping):
        raise InvalidValue(f"{kind.__name__} is {values!r}", "a JSON object")
    names = {field.name for field in dataclasses.fields(cast(Any, kind))}
    if values.keys() != names:
        different = sorted(values.keys() ^ names)
        raise InvalidValue(f"{kind.__name__} with fields missing or unknown: {', '.join(different)}", "write it again")
    return kind(**{name: inner[name](value) if name in inner else value for name, value in values.items()})


def _probability(name: str, value: float) -> None:
    # Sums of rounded numbers may pass 1 by their rounding; anything more is no probability.
    if not 0 <= value <= 1 + 1e-9:
        raise InvalidValue(f"{name}={value}", "a probability is in [0, 1]")
