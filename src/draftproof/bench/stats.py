"""Medians and spreads of repeated measurements.

What it is for: figures that one slow moment of the machine does not decide. Guarantees: quartiles of the sample
itself (linear between order statistics), no assumption about its shape. What it does not do: tests of significance.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from draftproof.errors import InvalidValue


@dataclass(frozen=True, slots=True)
class Spread:
    """median: of the values. low, high: first and third quartile. count: how many values."""

    median: float
    low: float
    high: float
    count: int

    def __post_init__(self) -> None:
        if self.count < 1 or not self.low <= self.median <= self.high:
            raise InvalidValue(
                f"spread {self.low}..{self.median}..{self.high} of {self.count}", "low <= median <= high"
            )

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """Of the values that are there; None without any."""
        known = sorted(v for v in values if v is not None)
        if not known:
            return None
        return cls(statistics.median(known), _quantile(known, 0.25), _quantile(known, 0.75), len(known))

    @property
    def iqr(self) -> float:
        """high - low, in the unit of the values."""
        return self.high - self.low


def ratio(above: float, below: float) -> float | None:
    """above / below; None where there is nothing to divide by."""
    return above / below if below > 0 else None


def standard_error(values: Sequence[float]) -> float | None:
    """Of the mean of independent values; None for fewer than two."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def _quantile(known: list[float], share: float) -> float:
    at = share * (len(known) - 1)
    i = int(at)
    following = known[min(i + 1, len(known) - 1)]
    return known[i] + (at - i) * (following - known[i])
