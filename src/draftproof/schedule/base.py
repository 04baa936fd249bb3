"""The schedule protocol: how many tokens to draft, and how many of those to verify.

Guarantees asked of an implementation: it is non-anticipating. Whether position k is verified depends on nothing
computed from the token at k or a later one (algorithms.md, section 7); stopping after a token because of what it
is is allowed, dropping it because of what it is is not. What a schedule does not do: touch tokens.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from draftproof.draft.base import Proposal


@dataclass(frozen=True, slots=True)
class Slot:
    """What a schedule may know of a request before anything is drafted.

    id: the sequence. length: tokens committed. room: the most tokens that may be drafted (budget and context
    allow no more). drafter: name of its drafter.
    """

    id: int
    length: int
    room: int
    drafter: str


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """What happened in a round, told to the schedule when it is over.

    Per request, in the order of the slots: what was proposed, how many tokens were admitted, how many of those were
    accepted and emitted, and all emitted tokens. rows: of the target pass, prompts included, filling (`Steady`) not.
    Seconds: wall time.
    """

    slots: Seq[Slot]
    proposals: Seq[Proposal]
    admitted: Seq[int]
    accepted: Seq[int]
    emitted: Seq[Seq[int]]
    rows: int
    target_seconds: float
    draft_seconds: float
    other_seconds: float

    @property
    def read_prompt(self) -> bool:
        """Whether the pass had more rows than those of the round's own tokens and of what was verified."""
        return self.rows > len(self.slots) + sum(self.admitted)


@runtime_checkable
class Schedule(Protocol):
    """A policy for draft lengths."""

    @property
    def name(self) -> str:
        """As written on the command line."""
        ...

    def lengths(self, slots: Seq[Slot]) -> list[int]:
        """How many tokens to draft for each request, each between 0 and its room."""
        ...

    def admit(self, slots: Seq[Slot], proposals: Seq[Proposal]) -> list[int]:
        """How many tokens of each proposal to verify, each between 0 and its length."""
        ...

    def observe(self, record: RoundRecord) -> None:
        """The round is over."""
        ...

    def off_reason(self, id: int) -> str | None:
        """Why speculation is off for this request now, in one line with the figures; None while it is on."""
        ...

    def forget(self, id: int) -> None:
        """The request has ended."""
        ...


@runtime_checkable
class Steady(Protocol):
    """A schedule that keeps passes at one width, for runtimes to which a change is dear (`width`). Optional."""

    @property
    def width(self) -> int:
        """Tokens that each request's part of the coming pass may be filled up to; 0 or 1: none."""
        ...


@runtime_checkable
class Stopping(Protocol):
    """A schedule that says when a block is not worth going on with (`thresholds`). Optional."""

    def thresholds(self, slots: Seq[Slot]) -> Seq[float]:
        """By position of the block, the least survival for which a token is worth drafting (`DraftRequest`)."""
        ...


def thresholds_of(schedule: Schedule, slots: Seq[Slot]) -> Seq[float]:
    """A schedule's thresholds, none where it has no say in it."""
    asked = getattr(schedule, "thresholds", None)  # asking for the protocol would take longer than the answer
    return () if asked is None else asked(slots)


def worth_drafting(survivals: Seq[float], thresholds: Seq[float]) -> int:
    """How many of these survivals stand before the first one below its threshold."""
    pairs = zip(survivals, thresholds, strict=False)  # where no threshold stands there is none
    return next((k for k, (survival, least) in enumerate(pairs) if survival < least), len(survivals))
