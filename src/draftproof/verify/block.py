"""Block verification: the whole block is judged at once, and more of it is accepted.

Guarantees: exact under every non-anticipating schedule; the expected accepted length is the largest any
single-path rule can reach, never below token verification (Sun et al., arXiv:2403.10444; algorithms.md,
section 3). Cost: one sum over the vocabulary per position judged.
"""

from __future__ import annotations

from fractions import Fraction

from draftproof.chance import Purpose, Streams
from draftproof.dist import Dist, Prob, excess, residual
from draftproof.verify.base import Drafted, Origin, RowSource, Verdict
from draftproof.verify.token import last_token


class BlockVerifier:
    """P_i = min(1, P_(i-1) p/q); keep the longest prefix i whose coin of probability h_i falls on its side."""

    name = "block"
    any_schedule = False

    def propose(self, q: Dist, streams: Streams, position: int) -> int:
        return streams.at(Purpose.PROPOSAL, position).draw(q)

    def verify(self, drafted: Drafted, rows: RowSource, streams: Streams, start: int) -> Verdict:
        count = len(drafted.tokens)
        weights = prefix_weights(drafted, rows)
        # From the end, stopping at the first success: the same law as the largest success, fewer sums.
        for i in range(count, 0, -1):
            h = weights[i] if i == count else stop_prob(weights[i], rows.p(i), drafted.q[i])
            if streams.at(Purpose.ACCEPT, start + i - 1).flip(h):
                break
        else:
            i = 0
        if i == count:
            return last_token(drafted, rows, streams, start)
        rest = residual(rows.p(i), drafted.q[i], weights[i])
        correction = streams.at(Purpose.RESIDUAL, start + i).draw(rows.p(i) if rest is None else rest)
        return Verdict(i, correction, Origin.RESIDUAL, surprises=int(rest is None))


def prefix_weights(drafted: Drafted, rows: RowSource) -> list[Prob]:
    """[P_0 = 1, P_1, ..., P_n]; P_i is the probability that at least i tokens are accepted given the block."""
    weights: list[Prob] = [1]
    for i, (token, q) in enumerate(zip(drafted.tokens, drafted.q, strict=True)):
        before = weights[-1]
        if before == 0:
            weights.append(0)  # nothing past a forbidden token can stand; its row need not be looked at
            continue
        joint_p, q_x = before * rows.p(i).prob(token), q.prob(token)
        weights.append(1 if joint_p >= q_x else _divide(joint_p, q_x))
    return weights


def stop_prob(weight: Prob, p: Dist, q: Dist) -> Prob:
    """h_i = D/(D + 1 - P) with D the mass of (P p - q)+; 1 where the denominator is zero."""
    if weight == 0:
        return 0
    _, mass = excess(p, q, weight)
    denominator = mass + 1 - weight
    return 1 if denominator == 0 else min(1, _divide(mass, denominator))


def _divide(a: Prob, b: Prob) -> Prob:
    return Fraction(a) / b if isinstance(a, int) and isinstance(b, int | Fraction) else a / b
