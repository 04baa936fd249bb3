"""Rounds without a model: production schedules on simulated acceptance and cost.

What it is for: throughput under load on a machine one does not have, from a curve file (`profile`). Only the target,
the drafter and the dice are simulated: schedules are the very objects an engine uses, asked and told in the same order
(lengths, admit, observe), on a clock that the profile drives.

The drafter is calibrated: block by block and position by position a confidence is drawn from a Beta distribution with
the profile's acceptance as its mean, and the token is accepted with exactly that probability. Requests never end.

Guarantees: the same seed gives the same figures; a request's n-th block has the same confidences and the same luck
under every policy. Throughput counts, for every admitted token, its probability of being accepted given the
confidences (the mean of what is emitted), so only the confidences' own variation is left in it; schedules are told what
was really drawn. The error is that of the mean of BATCHES parts of the run, each after the one before. What it does not
do: model queues, prompts or requests that end.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from draftproof.bench.policies import CONCURRENT, LoadPoint, Policy, policies
from draftproof.bench.profile import Profile
from draftproof.draft.base import Proposal
from draftproof.errors import InvalidValue
from draftproof.models.cache import Progress, silent
from draftproof.schedule.base import RoundRecord, Schedule, Slot, Steady, thresholds_of, worth_drafting
from draftproof.schedule.costs import CostCurve

BATCHES = 20
CONTEXT = 256  # tokens of every request: costs of a profile do not depend on it
DRAFTER = "simulated"

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationOptions:
    """concurrent: requests at a time, each measured. rounds: counted. warm: rounds before them, in which schedules
    learn. seed: of confidences and acceptance.
    """

    concurrent: tuple[int, ...] = CONCURRENT
    rounds: int = 2000
    warm: int = 200
    seed: int = 1

    def __post_init__(self) -> None:
        if not self.concurrent or any(n < 1 for n in self.concurrent):
            raise InvalidValue(f"{self.concurrent} requests at a time", "numbers >= 1, at least one")
        if self.seed < 0:
            raise InvalidValue(f"seed {self.seed}", "at least 0")
        if self.rounds < 2 * BATCHES or self.warm < 0:
            raise InvalidValue(f"{self.rounds} rounds after {self.warm}", f"at least {2 * BATCHES} after at least 0")


@dataclass(frozen=True, slots=True)
class Run:
    """One policy's run. tokens, seconds: of each of its BATCHES parts."""

    point: LoadPoint
    tokens: Floats
    seconds: Floats

    def gain(self, other: Run) -> tuple[float, float]:
        """(this throughput / the other's, standard error), part by part on the very same blocks."""
        ratios = (self.tokens / self.seconds) / (other.tokens / other.seconds)
        return self.point.throughput / other.point.throughput, float(ratios.std(ddof=1)) / math.sqrt(BATCHES)


@dataclass(frozen=True, slots=True)
class _Round:
    expected: float
    seconds: float
    rows: int


def simulate(
    profile: Profile,
    options: SimulationOptions | None = None,
    *,
    among: Seq[Policy] | None = None,
    progress: Progress = silent,
) -> list[Run]:
    """Every policy (by default all up to the profile's longest block) at every concurrency."""
    options = options or SimulationOptions()
    among = policies(len(profile.acceptance)) if among is None else among
    longest = max([len(profile.acceptance), *(policy.length for policy in among)])
    if longest > len(profile.acceptance):
        raise InvalidValue(
            f"draft length {longest} with acceptance at {len(profile.acceptance)} positions", "give it for every one"
        )
    found = []
    for i, requests in enumerate(options.concurrent):
        blocks = _Blocks(profile, requests, options)
        for j, policy in enumerate(among):
            progress("simulating", (i + j / len(among)) / len(options.concurrent))
            found.append(_run(profile, policy, requests, blocks, options))
    progress("simulating", 1.0)
    return found


class _Blocks:
    """Confidences and luck of every round, (rounds, requests, block), the same for every policy."""

    def __init__(self, profile: Profile, requests: int, options: SimulationOptions) -> None:
        source = np.random.default_rng([options.seed, requests])
        shape = (options.warm + options.rounds, requests, len(profile.acceptance))
        mean = np.broadcast_to(np.array(profile.acceptance), shape)
        self.confidence: Floats = mean if profile.spread == 0 else _beta(source, mean, profile.spread)
        self.luck: Floats = source.random(shape)


def _beta(source: np.random.Generator, mean: Floats, spread: float) -> Floats:
    """Beta variables of this mean and of variance spread * mean * (1 - mean)."""
    if spread == 1:
        return (source.random(mean.shape) < mean).astype(np.float64)
    total = 1 / spread - 1
    inside = (mean > 0) & (mean < 1)
    drawn = source.beta(np.where(inside, mean, 0.5) * total, np.where(inside, 1 - mean, 0.5) * total)
    return np.where(inside, drawn, mean)


def _run(profile: Profile, policy: Policy, requests: int, blocks: _Blocks, options: SimulationOptions) -> Run:
    schedule = policy.make(profile.costs(requests))
    machine, longest = _Machine(profile.costs(requests)), len(profile.acceptance)
    slots = [Slot(i, CONTEXT, longest, DRAFTER) for i in range(requests)]
    drafting = functools.cache(profile.draft)
    rest = profile.rest_seconds * requests
    done = [
        _round(schedule, slots, machine, drafting, rest, blocks.confidence[t], blocks.luck[t])
        for t in range(options.warm + options.rounds)
    ][options.warm :]
    tokens, seconds = _parts([r.expected for r in done]), _parts([r.seconds for r in done])
    throughput = tokens.sum() / seconds.sum()
    # Of a ratio of sums. Neighbouring rounds may depend on each other, the parts hardly do.
    excess = tokens - throughput * seconds
    point = LoadPoint(
        policy=policy.name,
        requests=requests,
        throughput=float(throughput),
        error=float(excess.std(ddof=1) * math.sqrt(BATCHES) / seconds.sum()),
        tokens_per_round=float(tokens.sum()) / len(done) / requests,
        rows_per_round=float(np.mean([r.rows for r in done])),
    )
    return Run(point, tokens, seconds)


class _Machine:
    """What passes cost one after another: a change of their width has a price of its own."""

    def __init__(self, costs: CostCurve) -> None:
        self._costs, self._last = costs, 0

    def seconds(self, tokens: int) -> float:
        """Of the next pass, of so many tokens."""
        changed, self._last = tokens != self._last, tokens
        return self._costs.seconds(tokens) + self._costs.switch * changed


def _parts(values: Seq[float]) -> Floats:
    return np.array([part.sum() for part in np.array_split(np.array(values), BATCHES)])


def _round(
    schedule: Schedule,
    slots: Seq[Slot],
    machine: _Machine,
    drafting: Callable[[int, int], float],
    rest: float,
    confidence: Floats,
    luck: Floats,
) -> _Round:
    """One round as `draftproof.rounds` runs it, with everything but the schedule simulated."""
    lengths = schedule.lengths(slots)
    thresholds = thresholds_of(schedule, slots)
    # As `draft.dspark` ends blocks.
    lengths = [worth_drafting(np.cumprod(confidence[i, :n]).tolist(), thresholds) for i, n in enumerate(lengths)]
    proposals = [_proposal(confidence[i, :n]) for i, n in enumerate(lengths)]
    admitted = schedule.admit(slots, proposals)
    accepted = [_accepted(confidence[i, :n], luck[i, :n]) for i, n in enumerate(admitted)]
    rows = len(slots) + sum(admitted)
    width = schedule.width if isinstance(schedule, Steady) else 0
    target = machine.seconds(sum(max(1 + n, width) for n in admitted))
    draft = drafting(sum(n > 0 for n in lengths), sum(lengths))
    schedule.observe(
        RoundRecord(
            slots=slots,
            proposals=proposals,
            admitted=admitted,
            accepted=accepted,
            emitted=[[0] * (n + 1) for n in accepted],
            rows=rows,
            target_seconds=target,
            draft_seconds=draft,
            other_seconds=rest,
        )
    )
    expected = sum(1 + float(np.cumprod(confidence[i, :n]).sum()) for i, n in enumerate(admitted))
    return _Round(expected, target + draft + rest, rows)


def _proposal(confidence: Floats) -> Proposal:
    """Tokens drawn from some q (which one no schedule may ask), with their confidences."""
    n = len(confidence)
    return Proposal([0] * n, [None] * n, DRAFTER, confidence.tolist()) if n else Proposal(drafter=DRAFTER)


def _accepted(confidence: Floats, luck: Floats) -> int:
    """How many before the first that is rejected."""
    rejected = np.flatnonzero(luck >= confidence)
    return int(rejected[0]) if len(rejected) else len(confidence)
