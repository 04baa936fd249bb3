"""What theory says the speed-up should be, next to what is measured.

What it is for: telling a slow machine from a bad draft, and both from a slow program. Two predictions, both relative
to plain decoding:

- `leviathan`: the closed form. One acceptance probability for every position, and a pass that costs the same however
  many rows it has (Leviathan et al., arXiv:2211.17192, Theorem 3.8).
- `from_curve`: the tokens that really came, over what the cost curve says the rounds cost by their rows.

Where the first is right and the second is not, the curve is wrong; where the second is right and the first is not,
more rows cost more, or acceptance differs between positions. What it does not do: decide anything; see `schedule`.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from draftproof.bench.calls import Round
from draftproof.bench.stats import ratio
from draftproof.schedule.costs import CostCurve


def mean_acceptance(rounds: Seq[Round]) -> float | None:
    """Accepted over judged tokens: what follows a rejected token in its block was not judged."""
    accepted = sum(r.accepted for r in rounds)
    judged = accepted + sum(r.accepted < r.drafted for r in rounds)
    return ratio(accepted, judged)


def leviathan(rounds: Seq[Round], draft_cost: float) -> float | None:
    """Speed-up by the closed form, averaged over the rounds' draft lengths; None if nothing was drafted.

    draft_cost: time of one drafted token in units of one plain pass (the paper's c).
    """
    alpha = mean_acceptance(rounds)
    if alpha is None:
        return None
    tokens = sum(expected_tokens(alpha, r.drafted) for r in rounds)
    return tokens / sum(1 + draft_cost * r.drafted for r in rounds)


def expected_tokens(alpha: float, length: int) -> float:
    """E[tokens of a round] = 1 + alpha + ... + alpha^length."""
    return sum(alpha**k for k in range(length + 1))


def from_curve(rounds: Seq[Round], curve: CostCurve) -> float | None:
    """Speed-up by the cost curve: tokens of these rounds as plain passes, over these rounds' passes and drafting."""
    plain = sum(r.emitted * curve.seconds(1, r.context) for r in rounds)
    return ratio(plain, sum(curve.seconds(r.rows, r.context) + r.draft_seconds for r in rounds))
