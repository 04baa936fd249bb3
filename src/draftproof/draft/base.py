"""The drafter protocol: propose a few tokens for each sequence, and say what law they came from.

Guarantees asked of an implementation: the q given for a token is the distribution it was really drawn from, given
the tokens before it; a deterministic drafter gives None (a point mass), never a softmax. It reads history and
never writes it. What it gets: randomness and sampling controls only through its request, so that it can neither
share a stream with the verifier nor forget a control.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from draftproof.dist import Dist
from draftproof.errors import BadProposal
from draftproof.sampling.legal import Number
from draftproof.target.base import Rows


class Sampler(Protocol):
    """The request's sampling controls and its proposal stream, for drafters that sample."""

    @property
    def temperature(self) -> Number:
        """The request's."""
        ...

    @property
    def draws(self) -> bool:
        """Whether a token drawn from a q like p is accepted more often than the most likely one: above temperature 0,
        by a verifier that accepts by p/q, and where no grammar or list of allowed ids leaves p on few tokens.
        """
        ...

    def distribution(self, rows: Rows, row: int, drafted: Seq[int], temperature: float | None = None) -> Dist:
        """q from row number `row` of the draft model's rows, after the request's controls.

        `drafted` are the tokens drafted before it: history for penalties and grammar. `temperature` replaces
        the request's own if the drafter was given one.
        """
        ...

    def draw(self, q: Dist, index: int) -> int:
        """The drafted token number `index` (0-based), drawn from q on this round's proposal stream."""
        ...


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """One sequence that wants a proposal.

    id: names the sequence until `close`. tokens: all committed tokens, prompt first; read only, and valid only
    during the call. prompt_length: how many of them are the prompt. limit: the most tokens to propose. thresholds: by
    position, the least survival, the product of the confidences up to its own, for which a token is worth drafting. A
    drafter may end its block before the first one below it: that is decided before the token is drawn, as confidences
    are. One that draws first and then drops the token is not lossless.
    """

    id: int
    tokens: Seq[int]
    prompt_length: int
    limit: int
    sampler: Sampler
    thresholds: Seq[float] = ()


@dataclass(frozen=True, slots=True)
class Proposal:
    """Drafted tokens, in order; empty is an ordinary answer and means a plain step.

    q: one distribution per token, or None for a point mass; q=None altogether means all are point masses.
    confidence: for schedules that cut a block: confidence[k] estimates P(token k survives | those before it did)
    and must be computed without looking at token k or later ones. drafter: who proposed. stratum: a small number
    telling how the proposal was found (such as the length of a match), computed from committed tokens alone;
    schedules keep separate acceptance statistics by it.
    """

    tokens: Seq[int] = ()
    q: Seq[Dist | None] | None = None
    drafter: str = ""
    confidence: Seq[float] | None = None
    stratum: int = 0

    def __post_init__(self) -> None:
        for what, values in (("q", self.q), ("confidence", self.confidence)):
            if values is not None and len(values) != len(self.tokens):
                raise BadProposal(
                    f"drafter {self.drafter!r}: {len(self.tokens)} tokens with {len(values)} entries of {what}",
                    "give one per token, or None",
                )

    def cut(self, length: int) -> Proposal:
        """The first `length` tokens."""
        if length >= len(self.tokens):
            return self
        q, confidence = self.q, self.confidence
        return Proposal(
            self.tokens[:length],
            None if q is None else q[:length],
            self.drafter,
            None if confidence is None else confidence[:length],
            self.stratum,
        )


@runtime_checkable
class Drafter(Protocol):
    """A source of proposals."""

    @property
    def name(self) -> str:
        """As written on the command line."""
        ...

    def open(self, id: int) -> None:
        """A sequence joins; `id` names it in requests."""
        ...

    def close(self, id: int) -> None:
        """The sequence has ended; its state can go."""
        ...

    def propose(self, requests: Seq[DraftRequest]) -> list[Proposal]:
        """One proposal per request, in order, each of at most `limit` tokens."""
        ...

    def commit(self, id: int, tokens: Seq[int]) -> None:
        """The sequence now holds exactly `tokens` (prompt first). Roll back what was drafted beyond them."""
        ...


class StatelessDrafter:
    """Base of drafters that keep nothing between calls."""

    def open(self, id: int) -> None:
        """Nothing to keep."""

    def close(self, id: int) -> None:
        """Nothing to drop."""

    def commit(self, id: int, tokens: Seq[int]) -> None:
        """Nothing to roll back."""
