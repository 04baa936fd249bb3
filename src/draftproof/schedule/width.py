"""The width of passes: how many tokens every request's part has, kept from round to round where changes are dear.

What it is for: runtimes that prepare their kernels anew whenever a pass has another shape than the last one
(`CostCurve.switch`; on OpenVINO and a small model, half a pass). There a draft of varying length costs more than it
brings, while in a pass that is kept at one width every draft up to it is verified for nothing. So schedules decide on a
width for many rounds, not on a length for one.

The average of what each width would have made in past rounds is weighed against its seconds; a better width is taken
when what it gains in as many rounds as are known, at most HORIZON, repays the change, or when staying has cost as much;
at once where the coming pass is a change whatever is decided.

Guarantees: non-anticipating: it is told expected tokens that follow from past rounds, and of this round from lengths
and strata of point-mass proposals alone, never from a token or a live confidence (algorithms.md, section 7). What it
does not do: look at clocks.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from itertools import zip_longest

HORIZON = 16  # rounds
MEMORY = 1 - 1 / HORIZON  # weight kept by what was known when a round adds its own


class Width:
    """longest: most tokens drafted. now: tokens of every request's part, its own pending token among them."""

    def __init__(self, longest: int, *, now: int = 1) -> None:
        self.now = now
        self._tokens = [0.0] * (longest + 2)  # by width, of all requests and rounds
        self._requests = 0.0
        self._rounds = 0.0
        self._lost = 0.0  # seconds, since the last change, against the best width of each round

    def next(
        self,
        promised: Seq[float],
        requests: int,
        seconds: Callable[[int], float],
        switch: float,
        *,
        free: bool = False,
        leap: bool = False,
        rounds: int = 1,
    ) -> int:
        """Learn from a round's proposals and decide; the width from now on.

        promised[k]: the sum over `requests` of P(at least k+1 tokens accepted). seconds(width): of a whole round with
        it. switch: of a change. free: the coming pass is a change whatever is decided. leap: what is promised is of the
        round to come, and may widen it at once if that alone repays the change there and back. rounds: since last time.
        """
        widest = len(self._tokens) - 1
        made = _tokens(promised, requests, widest)
        self._requests = MEMORY * self._requests + requests
        self._rounds = MEMORY * self._rounds + 1
        for width in range(1, widest + 1):
            self._tokens[width] = MEMORY * self._tokens[width] + made[width]
        if self.now == 1 and made[widest] == requests:
            return 1  # nothing was proposed: less reason to widen than before
        cost = [0.0, *(seconds(width) for width in range(1, widest + 1))]
        rates = [0.0, *(self._tokens[width] / cost[width] for width in range(1, widest + 1))]
        best = rates.index(max(rates))
        lost = (1 - rates[self.now] / rates[best]) * cost[self.now]
        self._lost += lost * rounds
        if max(lost * self._rounds, self._lost) > (0.0 if free else switch):
            self.now, self._lost = best, 0.0
        if leap:
            per_token = self._requests / (rates[self.now] * requests)
            changes = switch if free else 2 * switch  # there, unless that is free, and back
            gains = [
                (made[width] - made[self.now]) * per_token - (cost[width] - cost[self.now]) - changes
                for width in range(self.now, widest + 1)
            ]
            if (most := max(gains)) > 0:
                self.now, self._lost = self.now + gains.index(most), 0.0
        return self.now


def by_position(survivals: Seq[Seq[float]]) -> list[float]:
    """Sums over the requests."""
    return [sum(column) for column in zip_longest(*survivals, fillvalue=0)]


def _tokens(promised: Seq[float], requests: int, widest: int) -> list[float]:
    """Expected tokens of a round by width, 0..widest."""
    made = [0.0, float(requests)]
    for k in range(widest - 1):
        made.append(made[-1] + (promised[k] if k < len(promised) else 0.0))
    return made
