"""What rounds under load showed of a drafter and a target, as a curve file's content (`profile`).

Guarantees: acceptance and confidences are of the longest fixed length, at positions that were reached; seconds are
medians. What it does not do: run anything; see `load`.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from draftproof.bench.profile import Profile
from draftproof.rounds import Settled
from draftproof.schedule.base import RoundRecord


@dataclass(slots=True)
class Seen:
    """Rounds of one policy, for the profile."""

    reached: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    confidences: list[list[float]] = field(default_factory=list)
    draft_seconds: list[float] = field(default_factory=list)
    rest_seconds: list[float] = field(default_factory=list)  # of one request

    def hold(self, positions: int) -> None:
        """Have a place for each of so many positions."""
        while len(self.reached) < positions:
            self.reached.append(0)
            self.accepted.append(0)
            self.confidences.append([])

    def round(self, record: RoundRecord, settled: Seq[Settled]) -> None:
        """Observer of an engine's rounds."""
        if any(record.admitted):
            self.draft_seconds.append(record.draft_seconds)
            self.rest_seconds.append(record.other_seconds / len(record.slots))
        for proposal, n, accepted in zip(record.proposals, record.admitted, record.accepted, strict=True):
            self.hold(n)
            for k in range(min(accepted + 1, n)):
                self.reached[k] += 1
                self.accepted[k] += k < accepted
            for k, confidence in enumerate(list(proposal.confidence or ())[:n]):
                self.confidences[k].append(float(confidence))

    def add(self, more: Seen) -> None:
        """The same of another concurrency."""
        self.rest_seconds += more.rest_seconds
        self.hold(len(more.reached))
        for k in range(len(more.reached)):
            self.reached[k] += more.reached[k]
            self.accepted[k] += more.accepted[k]
            self.confidences[k] += more.confidences[k]


def token_slope(fixed: Mapping[int, Seen], most: float) -> float:
    """Seconds that a further drafted token takes: of the line through the medians by length, 0 to `most`."""
    medians = {length: statistics.median(seen.draft_seconds) for length, seen in fixed.items() if seen.draft_seconds}
    if len(medians) < 2:
        return 0.0
    return min(max(statistics.linear_regression(list(medians), list(medians.values())).slope, 0.0), most)


def as_profile(
    name: str,
    curves: dict[int, dict[int, float]],
    draft_seconds: dict[int, float],
    token_seconds: dict[int, float],
    seen: Seen,
    switches: dict[int, float],
) -> Profile | None:
    """The profile, by requests where a cost is; None where nothing was drafted."""
    known = [(a, r, c) for a, r, c in zip(seen.accepted, seen.reached, seen.confidences, strict=True) if r]
    if not known:
        return None
    shares = []
    for _, _, confidences in known:
        mean = statistics.fmean(confidences) if confidences else 0.0
        if 0 < mean < 1:
            shares.append(statistics.pvariance(confidences) / (mean * (1 - mean)))
    return Profile(
        name=name,
        # As many rows of fewer sequences are another pass; where both were measured, fewer sequences stand for others.
        target_seconds={at: s for n in sorted(curves, reverse=True) for at, s in curves[n].items()},
        target_seconds_by_requests=curves,
        draft_seconds=draft_seconds,
        draft_token_seconds=token_seconds,
        acceptance=tuple(a / r for a, r, _ in known),
        spread=min(statistics.fmean(shares), 1.0) if shares else 0.0,
        switch_seconds=switches,
        rest_seconds=statistics.median(seen.rest_seconds),
    )
