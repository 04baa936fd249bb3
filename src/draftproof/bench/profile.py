"""A curve file: what a round costs on some machine, and how likely its drafter's tokens are to be accepted.

    {"name": "a GPU", "target_seconds": {"1": 0.02, "64": 0.024, "256": 0.05},
     "draft_seconds": {"1": 0.002, "32": 0.004}, "acceptance": [0.8, 0.75, 0.7, 0.65, 0.6], "spread": 0.2,
     "switch_seconds": 0, "rest_seconds": 0}

target_seconds: of a target pass, by its rows; target_seconds_by_requests ({"8": {"8": 0.02, ...}}) is used instead for
exactly so many requests. draft_seconds: of drafting a whole block for so many requests together (a single number: the
same for any); draft_token_seconds: what of it each token costs, so that a shorter block is cheaper (default 0: it is
not). All are linear between points and go on with the last slope, a single point of drafting stays as it is.
acceptance: P(token k is accepted | those before it were), by position of the block. spread: how much these chances
differ from block to block, as a share of the most they could: 0, every block is alike; 1, the drafter's confidence
knows the outcome. Default 0.2.
switch_seconds: what a pass costs more that has another number of tokens than the pass before it; one number, or by
requests as draft_seconds are. Default 0.
rest_seconds: what a round takes for each request besides drafting and the pass (rows, draws, text). Default 0.

Guarantees: what is wrong in a file is named. What it does not do: measure; `draftproof bench --load --json` writes what
it measured in this form, as "profile".
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftproof.errors import InvalidValue
from draftproof.schedule.costs import CostCurve
from draftproof.schedule.fixed import LONGEST

SPREAD = 0.2
_OPTIONAL = {
    "name",
    "spread",
    "switch_seconds",
    "rest_seconds",
    "target_seconds_by_requests",
    "draft_token_seconds",
}
_FIELDS = {"target_seconds", "draft_seconds", "acceptance"} | _OPTIONAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """target_seconds: by rows. draft_seconds, draft_token_seconds, switch_seconds (added to a pass after one of another
    width): by requests. acceptance: by position. rest_seconds: of every request in a round.
    """

    name: str
    target_seconds: Mapping[int, float]
    draft_seconds: Mapping[int, float]
    acceptance: tuple[float, ...]
    spread: float = SPREAD
    switch_seconds: Mapping[int, float] = field(default_factory=dict)
    rest_seconds: float = 0.0
    target_seconds_by_requests: Mapping[int, Mapping[int, float]] = field(default_factory=dict)
    draft_token_seconds: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        curves = {f"target_seconds_by_requests of {n}": each for n, each in self.target_seconds_by_requests.items()}
        curves |= {"target_seconds": self.target_seconds, "draft_seconds": self.draft_seconds}
        for what in ("draft_token_seconds", "switch_seconds"):
            if getattr(self, what):
                curves[what] = getattr(self, what)
        for what, points in curves.items():
            lowest = "> 0" if what.startswith("target") else ">= 0"
            if not points or any(
                at < 1 or not math.isfinite(s) or s < 0 or (s == 0 and lowest == "> 0") for at, s in points.items()
            ):
                raise InvalidValue(f"{what} {dict(points)}", f"{{whole number >= 1: seconds {lowest}}}")
        if not 1 <= len(self.acceptance) <= LONGEST or not all(0 <= a <= 1 for a in self.acceptance):
            raise InvalidValue(f"acceptance {list(self.acceptance)}", f"1 to {LONGEST} numbers in [0, 1]")
        if not 0 <= self.spread <= 1:
            raise InvalidValue(f"spread {self.spread}", "in [0, 1]")
        for requests, each in self.draft_token_seconds.items():
            if each * len(self.acceptance) > self.draft(requests) * (1 + 1e-9):
                raise InvalidValue(
                    f"draft_token_seconds {each} for {requests} requests",
                    f"{len(self.acceptance)} tokens cost no more than a block, {self.draft(requests)}",
                )
        if not 0 <= self.rest_seconds < math.inf:
            raise InvalidValue(f"rest_seconds {self.rest_seconds}", ">= 0")

    def costs(self, requests: int) -> CostCurve:
        """The target's curve for so many requests, for a schedule of its own: schedules may refine theirs."""
        points = self.target_seconds_by_requests.get(requests, self.target_seconds)
        return CostCurve(points, switch=_line(self.switch_seconds, requests) if self.switch_seconds else 0.0)

    def draft(self, requests: int, tokens: int | None = None) -> float:
        """Seconds of drafting so many tokens in all, None for whole blocks, for `requests` requests; 0 for none."""
        if not requests:
            return 0.0
        missing = 0.0 if tokens is None else len(self.acceptance) - tokens / requests
        per_token = _line(self.draft_token_seconds, requests) if self.draft_token_seconds else 0.0
        return max(0.0, _line(self.draft_seconds, requests) - per_token * missing)

    def to_json(self) -> dict[str, Any]:
        """A curve file's content."""
        return {
            "name": self.name,
            "target_seconds": {str(at): s for at, s in sorted(self.target_seconds.items())},
            "draft_seconds": {str(at): s for at, s in sorted(self.draft_seconds.items())},
            "acceptance": list(self.acceptance),
            "spread": self.spread,
            "draft_token_seconds": {str(at): s for at, s in sorted(self.draft_token_seconds.items())},
            "switch_seconds": {str(at): s for at, s in sorted(self.switch_seconds.items())},
            "rest_seconds": self.rest_seconds,
            "target_seconds_by_requests": {
                str(n): {str(at): s for at, s in sorted(points.items())}
                for n, points in sorted(self.target_seconds_by_requests.items())
            },
        }

    @classmethod
    def read(cls, file: Path) -> Profile:
        """The profile in a curve file, or in the report of a measured run. Raises InvalidValue with file and field."""
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InvalidValue(f"cannot read the curve file {file}: {error}", "a JSON object") from error
        if isinstance(values, dict) and "profile" in values:
            values = values["profile"]
        if not isinstance(values, dict):
            raise InvalidValue(f"{file} holds {type(values).__name__}", "a JSON object")
        missing, unknown = sorted(_FIELDS - _OPTIONAL - values.keys()), sorted(values.keys() - _FIELDS)
        if missing or unknown:
            said = f"lacks {', '.join(missing)}" if missing else f"has unknown fields {', '.join(unknown)}"
            raise InvalidValue(f"{file} {said}", f"fields: {', '.join(sorted(_FIELDS))}")
        try:
            return cls(
                name=str(values.get("name", file.stem)),
                target_seconds={int(at): float(s) for at, s in values["target_seconds"].items()},
                draft_seconds=_by_requests(values["draft_seconds"]),
                acceptance=tuple(float(a) for a in values["acceptance"]),
                spread=float(values.get("spread", SPREAD)),
                switch_seconds=_by_requests(values.get("switch_seconds", {})),
                rest_seconds=float(values.get("rest_seconds", 0.0)),
                draft_token_seconds=_by_requests(values.get("draft_token_seconds", {})),
                target_seconds_by_requests={
                    int(n): {int(at): float(s) for at, s in points.items()}
                    for n, points in values.get("target_seconds_by_requests", {}).items()
                },
            )
        except (TypeError, ValueError, AttributeError) as error:
            raise InvalidValue(f"{file}: {error}", "numbers, and objects of {number: seconds}") from error


def _by_requests(value: Any) -> dict[int, float]:
    """Seconds by requests; a single number is that of any."""
    points = value if isinstance(value, dict) else {1: value}
    return {int(at): float(s) for at, s in points.items()}


def _line(points: Mapping[int, float], requests: int) -> float:
    """Linear between points, going on with the last slope, never below 0."""
    at = sorted(points)
    if len(at) == 1:
        return points[at[0]]
    i = min(max(bisect_left(at, requests), 1), len(at) - 1)
    low, high = points[at[i - 1]], points[at[i]]
    return max(0.0, low + (high - low) * (requests - at[i - 1]) / (at[i] - at[i - 1]))
