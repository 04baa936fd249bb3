"""The schedules that a benchmark under load compares, and what it says about each: one point a policy and concurrency.

Guarantees: every policy is a production schedule, built as the command line builds it, on the same cost curve. What it
does not do: run anything; see `load` (an engine) and `simulate` (a curve file).
"""

from __future__ import annotations

from dataclasses import dataclass

from draftproof.errors import InvalidValue
from draftproof.schedule.adaptive import AdaptiveSchedule
from draftproof.schedule.base import Schedule
from draftproof.schedule.costs import CostCurve
from draftproof.schedule.fixed import FixedSchedule
from draftproof.schedule.prefix import PrefixSchedule

CONCURRENT = (1, 8, 32)
"""Requests at a time, unless others are asked for."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A schedule by its name on the command line. length: fixed at, or limited to; fixed at 0 is plain decoding."""

    schedule: str
    length: int

    def __post_init__(self) -> None:
        if self.schedule not in ("fixed", "adaptive", "prefix", "prefix-budget"):
            raise InvalidValue(f"schedule {self.schedule!r}", "fixed, adaptive, prefix or prefix-budget")
        FixedSchedule(self.length)

    @property
    def name(self) -> str:
        """As shown."""
        if self.schedule != "fixed":
            return self.schedule
        return f"fixed {self.length}" if self.length else "plain"

    @property
    def fixed(self) -> bool:
        """Whether it drafts and verifies the same number of tokens in every round."""
        return self.schedule == "fixed"

    def make(self, costs: CostCurve) -> Schedule:
        """A new schedule that knows nothing yet. costs: its own curve, which it may refine."""
        if self.schedule == "fixed":
            return FixedSchedule(self.length)
        if self.schedule == "adaptive":
            return AdaptiveSchedule(costs, self.length)
        return PrefixSchedule(costs, self.length, form="causal" if self.schedule == "prefix" else "budget")


def policies(longest: int) -> tuple[Policy, ...]:
    """Plain decoding, every fixed length up to `longest`, and every schedule that decides."""
    if longest < 1:
        raise InvalidValue(f"draft length {longest} under load", "at least 1")
    fixed = [Policy("fixed", n) for n in range(longest + 1)]
    return (*fixed, *(Policy(name, longest) for name in ("adaptive", "prefix", "prefix-budget")))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPoint:
    """One policy with so many requests at a time.

    throughput: tokens a second of all requests together; error: its standard error, 0 where it is exact, None where it
    is not known. tokens_per_round: of one request. rows_per_round: of the target's passes, all requests. rates: the
    throughput of each repeat, where there were repeats in which policies took turns.
    """

    policy: str
    requests: int
    throughput: float
    error: float | None
    tokens_per_round: float
    rows_per_round: float
    rates: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.requests < 1 or not self.throughput > 0 or (self.error is not None and not self.error >= 0):
            raise InvalidValue(
                f"{self.policy}: {self.throughput} tokens a second with {self.requests} requests, error {self.error}",
                "at least one request, a speed > 0, an error >= 0",
            )

    @property
    def per_request(self) -> float:
        """Tokens a second that one request sees."""
        return self.throughput / self.requests
