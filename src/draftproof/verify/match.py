"""Sample and match: draw the target's own token at each position and keep going while the draft agrees.

Guarantees: exact for any drafter and any rule for the draft length, even one that looks at the drafted values,
because every emitted token is a fresh draw from p (algorithms.md, section 2). Needs no q. The draws are keyed by
position alone, so the same seed gives the same text for every drafter and length. Accepts least of the four.
"""

from __future__ import annotations

from collections.abc import Callable

from draftproof.chance import Purpose, Streams
from draftproof.dist import Dist
from draftproof.verify.base import Drafted, Origin, RowSource, Verdict

Draw = Callable[[Dist, int], int]


class MatchVerifier:
    """y ~ p; emit y; go on while y equals the drafted token."""

    name = "match"
    any_schedule = True

    def propose(self, q: Dist, streams: Streams, position: int) -> int:
        return streams.at(Purpose.PROPOSAL, position).draw(q)

    def verify(self, drafted: Drafted, rows: RowSource, streams: Streams, start: int) -> Verdict:
        return walk(drafted, rows, start, lambda p, position: streams.at(Purpose.MATCH, position).draw(p))


def walk(drafted: Drafted, rows: RowSource, start: int, draw: Draw) -> Verdict:
    """Emit the target's own draws as long as they equal the drafted tokens, then one more."""
    for i, token in enumerate(drafted.tokens):
        own = draw(rows.p(i), start + i)
        if own != token:
            return Verdict(i, own, Origin.RESIDUAL)
    count = len(drafted.tokens)
    return Verdict(count, draw(rows.p(count), start + count), Origin.BONUS if count else Origin.PLAIN)
