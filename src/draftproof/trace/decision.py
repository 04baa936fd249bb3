"""How a drafted token was judged: p, q, alpha, and the coin, found again after the fact.

What it is for: traces. Guarantees: asks only for rows the verifier has looked at, so that nothing is computed with a
later history; finds a coin by its address and disturbs no stream. Where a verifier tosses none (match, coupled, a
probability of 0 or 1) or is not ours, there is no coin to show. What it does not do: decide.
"""

from __future__ import annotations

from draftproof.chance import Chance, Purpose, SeededChance, Streams
from draftproof.dist import Dist, Prob, residual
from draftproof.rounds import Settled
from draftproof.verify.base import Origin, Verifier, accept_prob_of
from draftproof.verify.block import BlockVerifier, prefix_weights, stop_prob
from draftproof.verify.token import TokenVerifier

Coin = tuple[float, float]
"""(limit, u): the coin fell on the side of acceptance iff u < limit."""


def coin(verifier: Verifier, settled: Settled, streams: Streams, k: int) -> Coin | None:
    """The coin that decided about drafted token number k (0-based); None if there was none."""
    limit = _limit(verifier, settled, k)
    if limit is None or limit in (0, 1):  # a certain outcome uses no randomness
        return None
    u = _uniform(streams.at(Purpose.ACCEPT, settled.start + k))
    return None if u is None else (float(limit), u)


def alpha(settled: Settled, k: int) -> Prob:
    """min(1, p/q) of drafted token number k."""
    return accept_prob_of(settled.rows.p(k), settled.drafted.q[k], settled.drafted.tokens[k])


def law(verifier: Verifier, settled: Settled) -> tuple[str, Dist]:
    """What the round's own token was drawn from: ("residual", ...) or ("p", ...)."""
    k = settled.verdict.accepted
    p = settled.rows.p(k)
    if settled.verdict.origin is not Origin.RESIDUAL or not isinstance(verifier, TokenVerifier | BlockVerifier):
        return "p", p
    weight = prefix_weights(settled.drafted, settled.rows)[k] if isinstance(verifier, BlockVerifier) else 1
    rest = residual(p, settled.drafted.q[k], weight)
    return ("p", p) if rest is None else ("residual", rest)


def _limit(verifier: Verifier, settled: Settled, k: int) -> Prob | None:
    if isinstance(verifier, TokenVerifier):
        return alpha(settled, k)
    if not isinstance(verifier, BlockVerifier):
        return None
    # The block is scanned from its end: only the last token kept and those after it had a coin.
    count, i = len(settled.drafted.tokens), k + 1
    if i < settled.verdict.accepted:
        return None
    weights = prefix_weights(settled.drafted, settled.rows)
    return weights[i] if i == count else stop_prob(weights[i], settled.rows.p(i), settled.drafted.q[i])


def _uniform(chance: Chance) -> float | None:
    return chance.peek() if isinstance(chance, SeededChance) else None
