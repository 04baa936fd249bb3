"""The engine under load: so many requests at a time, every policy, in one run.

What it is for: whether a schedule gives each request as many tokens as the machine has room for. For each concurrency
the target's cost curve is measured on passes of that many sequences; every policy then answers the same prompts with
the same seeds, one group of requests each in turn, after a run that is thrown away in which schedules learn.

Guarantees: only rounds are counted in which every request was live, had room for the longest block, and no prompt was
read, so a point is a steady state. Schedules keep what they learnt from repeat to repeat. What it does not do: queues,
or requests that arrive one by one.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from time import perf_counter

from draftproof.bench.calls import Clock
from draftproof.bench.policies import CONCURRENT, LoadPoint, Policy
from draftproof.bench.profile import Profile
from draftproof.bench.stats import standard_error
from draftproof.engine import Engine
from draftproof.errors import InvalidValue
from draftproof.models.cache import Progress, silent
from draftproof.result import TokenEvent
from draftproof.rounds import Settled
from draftproof.sampling.params import SamplingParams
from draftproof.schedule.base import RoundRecord, Schedule
from draftproof.schedule.costs import CostCurve, time_passes
from draftproof.target.base import Target

CURVE_SECONDS = 4.0  # of timing passes for each concurrency: in one a machine's bad moment makes rows look free


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """prompts: ids, used in turn. max_tokens: of each request; a group of requests ends where the first is near them.
    answers: least number of a run; fewer requests at a time come in as many groups as that takes, one after another, so
    that a few lucky texts decide no more about one request than about many. repeats: of everything. seed: request i of
    repeat r uses seed + 1000 r + i.
    """

    prompts: tuple[tuple[int, ...], ...]
    temperature: float = 1.0
    concurrent: tuple[int, ...] = CONCURRENT
    max_tokens: int = 64
    answers: int = 8
    repeats: int = 3
    seed: int = 1

    def __post_init__(self) -> None:
        if not self.prompts or not all(self.prompts):
            raise InvalidValue("a run under load without prompts", "at least one, of at least one token")
        if not self.concurrent or any(n < 1 for n in self.concurrent):
            raise InvalidValue(f"{self.concurrent} requests at a time", "numbers >= 1, at least one")
        if self.repeats < 1 or self.answers < 1 or self.max_tokens < 8:
            raise InvalidValue(
                f"{self.repeats} repeats of {self.answers} answers of {self.max_tokens} tokens", "at least 1, 1 and 8"
            )
        self.params(0, 0)

    def check_length(self, longest: int) -> None:
        """Raise InvalidValue where answers hold too few blocks of this length to be measured."""
        if self.max_tokens < 4 * (longest + 1):
            raise InvalidValue(
                f"{self.max_tokens} tokens a request with blocks of {longest}", f"at least {4 * (longest + 1)}"
            )

    def params(self, repeat: int, i: int) -> SamplingParams:
        """Of one request; it does not end before its budget does."""
        return SamplingParams(
            temperature=self.temperature,
            max_tokens=self.max_tokens,
            seed=self.seed + 1000 * repeat + i,
            ignore_eos=True,
        )


@dataclass(slots=True)
class _Window:
    """What was seen in the counted rounds of one run."""

    tokens: int = 0
    seconds: float = 0.0
    rounds: int = 0
    rows: int = 0


@dataclass(slots=True)
class _Seen:
    """Rounds of one fixed length, for the profile."""

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


def measure_load(
    plan: LoadPlan,
    among: Seq[Policy],
    build: Callable[[Schedule], Engine],
    target: Target,
    *,
    name: str = "measured",
    clock: Clock = perf_counter,
    progress: Progress = silent,
) -> tuple[list[LoadPoint], Profile | None]:
    """Points of every policy at every concurrency, and what the drafter and the target were seen to do.

    build: a new engine around `target` with this schedule. The profile is None where nothing was drafted.
    """
    longest = max(policy.length for policy in among)
    plan.check_length(longest)
    points: list[LoadPoint] = []
    curves: dict[int, dict[int, float]] = {}
    draft_seconds: dict[int, float] = {}
    token_seconds: dict[int, float] = {}
    switches: dict[int, float] = {}
    seen = _Seen()
    for at, requests in enumerate(plan.concurrent):
        curve, switch = measure_passes(target, requests, longest, clock=clock)
        curves[requests] = curve
        switches[requests] = switch
        engines = {policy.name: build(policy.make(CostCurve(curve, switch=switch))) for policy in among}
        fixed = {policy.length: _Seen() for policy in among if policy.fixed and policy.length}
        runs: dict[str, list[_Window]] = {policy.name: [] for policy in among}
        for repeat in range(-1, plan.repeats):  # the first one is thrown away
            windows = {policy.name: _Window() for policy in among}
            for turn, first in enumerate(range(0, plan.answers, requests)):  # groups of answers, until there are enough
                which = range(first, first + requests)
                for k in range(len(among)):
                    policy = among[(k + turn + repeat) % len(among)]
                    engine = engines[policy.name]
                    counted = repeat >= 0 and policy.fixed and policy.length
                    engine.observers[:] = [fixed[policy.length]] if counted else []
                    _group(engine, plan, which, max(repeat, 0), longest, clock, windows[policy.name])
                done = min(first + requests, plan.answers) / plan.answers
                share = (repeat + 1 + done) / (plan.repeats + 1)
                progress(f"{requests} requests", (at + share) / len(plan.concurrent))
            if repeat >= 0:
                for policy in among:
                    runs[policy.name].append(windows[policy.name])
        points += [_point(policy.name, requests, runs[policy.name]) for policy in among]
        here = fixed.get(longest)
        if here is not None and here.draft_seconds:
            draft_seconds[requests] = statistics.median(here.draft_seconds)
            token_seconds[requests] = _slope(fixed, draft_seconds[requests] / longest)
            _merge(seen, here)
    return points, _profile(name, curves, draft_seconds, token_seconds, seen, switches)


def measure_passes(
    target: Target, requests: int, longest: int, *, budget: float = CURVE_SECONDS, clock: Clock = perf_counter
) -> tuple[dict[int, float], float]:
    """Median seconds of passes of `requests` sequences with 1 .. longest + 1 rows each, by rows in all; of a change."""
    each, switch = time_passes(target, requests, range(1, longest + 2), budget=budget, clock=clock)
    return {requests * rows: seconds for rows, seconds in each.items()}, switch


def _group(
    engine: Engine, plan: LoadPlan, which: range, repeat: int, longest: int, clock: Clock, window: _Window
) -> None:
    """Join all, read their prompts, and count rounds until one has no room left for a whole block."""
    requests = len(which)
    watch = _Rows(window)
    joined: list[int] = []
    try:
        joined += [engine.add(plan.prompts[i % len(plan.prompts)], plan.params(repeat, i)) for i in which]
        engine.round()
        engine.observers.append(watch)
        while len(engine.live) == requests and min(s.remaining for s in engine.live.values()) > longest:
            started = clock()
            events = engine.round()
            window.seconds += clock() - started
            window.tokens += sum(isinstance(event, TokenEvent) for event in events)
            window.rounds += 1
    finally:
        if watch in engine.observers:
            engine.observers.remove(watch)
        for request in joined:
            if request in engine.live:
                engine.cancel(request)


@dataclass(slots=True, eq=False)
class _Rows:
    """Observer that counts rows."""

    window: _Window

    def round(self, record: RoundRecord, settled: Seq[Settled]) -> None:
        self.window.rows += record.rows


def _point(policy: str, requests: int, runs: Seq[_Window]) -> LoadPoint:
    rates = [run.tokens / run.seconds for run in runs]
    rounds = sum(run.rounds for run in runs)
    return LoadPoint(
        policy=policy,
        requests=requests,
        throughput=sum(run.tokens for run in runs) / sum(run.seconds for run in runs),
        error=standard_error(rates),
        tokens_per_round=sum(run.tokens for run in runs) / rounds / requests,
        rows_per_round=sum(run.rows for run in runs) / rounds,
        rates=tuple(rates),
    )


def _slope(fixed: Mapping[int, _Seen], most: float) -> float:
    """Seconds that a further drafted token takes: of the line through the medians by length, 0 to `most`."""
    medians = {length: statistics.median(seen.draft_seconds) for length, seen in fixed.items() if seen.draft_seconds}
    if len(medians) < 2:
        return 0.0
    return min(max(statistics.linear_regression(list(medians), list(medians.values())).slope, 0.0), most)


def _merge(seen: _Seen, more: _Seen) -> None:
    seen.rest_seconds += more.rest_seconds
    seen.hold(len(more.reached))
    for k in range(len(more.reached)):
        seen.reached[k] += more.reached[k]
        seen.accepted[k] += more.accepted[k]
        seen.confidences[k] += more.confidences[k]


def _profile(
    name: str,
    curves: dict[int, dict[int, float]],
    draft_seconds: dict[int, float],
    token_seconds: dict[int, float],
    seen: _Seen,
    switches: dict[int, float],
) -> Profile | None:
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
