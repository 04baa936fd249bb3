"""Token verification: the rule of the derivation, position by position.

Guarantees: exact for proposals drawn from q under every non-anticipating schedule (derivation; Leviathan et al.,
arXiv:2211.17192; algorithms.md, sections 1 and 7). A point-mass q makes it the one-hot rule: accept with p(x),
correct from p without x.
"""

from __future__ import annotations

from draftproof.chance import Purpose, Streams
from draftproof.dist import Dist, residual
from draftproof.verify.base import Drafted, Origin, RowSource, Verdict, accept_prob_of


class TokenVerifier:
    """Accept x with min(1, p/q); correct the first rejection from max(0, p-q)/Z; bonus from p."""

    name = "token"
    any_schedule = False

    def propose(self, q: Dist, streams: Streams, position: int) -> int:
        return streams.at(Purpose.PROPOSAL, position).draw(q)

    def verify(self, drafted: Drafted, rows: RowSource, streams: Streams, start: int) -> Verdict:
        for i, (token, q) in enumerate(zip(drafted.tokens, drafted.q, strict=True)):
            p = rows.p(i)
            if streams.at(Purpose.ACCEPT, start + i).flip(accept_prob_of(p, q, token)):
                continue
            rest = residual(p, q)
            correction = streams.at(Purpose.RESIDUAL, start + i).draw(p if rest is None else rest)
            return Verdict(i, correction, Origin.RESIDUAL, surprises=int(rest is None))
        return last_token(drafted, rows, streams, start)


def last_token(drafted: Drafted, rows: RowSource, streams: Streams, start: int) -> Verdict:
    """The token after full acceptance, drawn from p; the plain token when nothing was drafted."""
    count = len(drafted.tokens)
    token = streams.at(Purpose.BONUS, start + count).draw(rows.p(count))
    return Verdict(count, token, Origin.BONUS if count else Origin.PLAIN)
