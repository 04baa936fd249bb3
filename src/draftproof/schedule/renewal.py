"""When a cost curve is measured again: rounds have disproved it, and no request is live that would have to wait.

What it is for: a curve that was measured while the machine was busy, or on another machine than it runs on now. What it
guarantees: never while a request is live; the first time at once, later ones at most every REST seconds of decoding, so
that a machine whose speed keeps changing is not measured after every answer. What it does not do: measure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from draftproof.schedule.costs import CostCurve

REST = 60.0  # seconds of decoding


class Renewal:
    """measure_again: makes the new curve; None: never."""

    def __init__(self, measure_again: Callable[[], CostCurve] | None) -> None:
        self._measure_again = measure_again
        self._live: set[int] = set()
        self._last = -math.inf

    def join(self, requests: Iterable[int]) -> None:
        """These requests are live."""
        self._live.update(requests)

    def leave(self, request: int, costs: CostCurve, elapsed: float) -> CostCurve:
        """The request has ended after so many seconds of decoding in all; the curve to go on with."""
        self._live.discard(request)
        if self._live or self._measure_again is None or not costs.stale or elapsed - self._last < REST:
            return costs
        self._last = elapsed
        return self._measure_again()
