"""The verifier protocol: drafted tokens and the target's rows in, an accepted count and one more token out.

Guarantees asked of an implementation (the round lemma, algorithms.md section 0): for every prefix that can be
emitted, the next emitted token follows p given that prefix. `draftproof.proof` checks it exactly. What a
verifier does not do: stop conditions, rollback, statistics; and it draws only through the streams it is given.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from draftproof.chance import Streams
from draftproof.dist import Dist, Prob


class Origin(enum.StrEnum):
    """Which path a token came from."""

    ACCEPTED = "accepted"  # drafted and accepted
    RESIDUAL = "residual"  # the target's correction after a rejection
    BONUS = "bonus"  # after full acceptance
    PLAIN = "plain"  # nothing was drafted


class RowSource(Protocol):
    """The target's rows of one sequence in this round, made into p on demand."""

    def p(self, i: int) -> Dist:
        """p after the committed tokens and the first i drafted ones, 0 <= i <= number drafted."""
        ...


@dataclass(frozen=True, slots=True)
class Drafted:
    """What is to be verified: the admitted tokens, and q of each (the law it was really drawn from)."""

    tokens: Seq[int]
    q: Seq[Dist]

    def __post_init__(self) -> None:
        assert len(self.tokens) == len(self.q)


@dataclass(frozen=True, slots=True)
class Verdict:
    """accepted: how many drafted tokens stand; token: the one after them; surprises: numeric fall-backs.

    A surprise is a rejection whose residual had no mass left after rounding (rule 3 of the design); p was
    drawn from instead, and it is counted.
    """

    accepted: int
    token: int
    origin: Origin
    surprises: int = 0


@runtime_checkable
class Verifier(Protocol):
    """One way to accept a prefix of the drafted tokens and draw one more token."""

    @property
    def name(self) -> str:
        """As written on the command line."""
        ...

    @property
    def any_schedule(self) -> bool:
        """True if exact under every rule for the draft length, even one that looks at the drafted values.

        False: exact under non-anticipating rules (algorithms.md, section 7).
        """
        ...

    def propose(self, q: Dist, streams: Streams, position: int) -> int:
        """Draw a drafted token from q for this absolute position; drafters call it through their request."""
        ...

    def verify(self, drafted: Drafted, rows: RowSource, streams: Streams, start: int) -> Verdict:
        """Walk the rows. `start` is the absolute position of the first drafted token."""
        ...


def accept_prob_of(p: Dist, q: Dist, token: int) -> Prob:
    """alpha of one token, min(1, p/q): the scalar form of `draftproof.rule.accept_prob`."""
    p_x, q_x = p.prob(token), q.prob(token)
    assert q_x > 0, "the engine refuses proposals that q gives probability 0"
    if p_x >= q_x:
        return 1
    return p_x / q_x
