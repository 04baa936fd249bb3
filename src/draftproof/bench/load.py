"""The engine under load: so many requests at a time, every policy, in one run.

What it is for: whether a schedule gives each request as many tokens as the machine has room for. For each concurrency
the target's cost curve is measured on passes of that many sequences; every policy then answers the same prompts with
the same seeds in a group of requests of its own, after a run that is thrown away in which schedules learn. Groups come
forward together, TURN tokens a request at a time, so that all policies meet every moment of the machine alike, every
time in another order, drawn with the seed (`turns`).

Guarantees: only rounds are counted in which every request was live, had room for the longest block, and no prompt was
read, so a point is a steady state. Schedules keep what they learnt from repeat to repeat. What it does not do: queues,
or requests that arrive one by one.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from random import Random
from time import perf_counter

from draftproof.bench.calls import Clock, Log, RecordingTarget
from draftproof.bench.policies import CONCURRENT, LoadPoint, Policy
from draftproof.bench.profile import Profile
from draftproof.bench.seen import Seen, as_profile, token_slope
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

TURN = 8  # tokens of each request
CURVE_SECONDS = 4.0  # of timing passes for each concurrency: in one a machine's bad moment makes rows look free


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """prompts: ids, in turn, from repeat to repeat. max_tokens: of each request; a group of requests ends where the
    first is near them. answers: least number of a run; fewer requests at a time come in as many groups as that takes,
    one after another, so that a few lucky texts decide no more about one request than about many. repeats: of
    everything. seed: request i of repeat r uses seed + 1000 r + i.
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

    def prompt(self, repeat: int, i: int) -> tuple[int, ...]:
        """Of one request: repeats go on with the prompts that were not used yet."""
        return self.prompts[(repeat * self.answers + i) % len(self.prompts)]

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


def measure_load(
    plan: LoadPlan,
    among: Seq[Policy],
    build: Callable[[Schedule, Target], Engine],
    target: Target,
    *,
    name: str = "measured",
    clock: Clock = perf_counter,
    progress: Progress = silent,
) -> tuple[list[LoadPoint], Profile | None]:
    """Points of every policy at every concurrency, and what the drafter and the target were seen to do.

    build: a new engine with this schedule around the target it is given, which is `target` and watched; engines are
    live at the same time, so each has a drafter of its own. The profile is None where nothing was drafted.
    """
    longest = max(policy.length for policy in among)
    plan.check_length(longest)
    points: list[LoadPoint] = []
    curves: dict[int, dict[int, float]] = {}
    draft_seconds: dict[int, float] = {}
    token_seconds: dict[int, float] = {}
    switches: dict[int, float] = {}
    seen = Seen()
    for at, requests in enumerate(plan.concurrent):
        curve, switch = measure_passes(target, requests, longest, clock=clock)
        curves[requests] = curve
        switches[requests] = switch
        running = [_Running(p, build, CostCurve(curve, switch=switch), target, clock) for p in among]
        for repeat in range(-1, plan.repeats):  # the first one is thrown away
            for share in _repeat(plan, running, requests, repeat, longest):
                whole = (at + (repeat + 1 + share) / (plan.repeats + 1)) / len(plan.concurrent)
                progress(f"{requests} requests", whole)
        points += [_point(each.policy.name, requests, each.windows[1:]) for each in running]
        fixed = {each.policy.length: each.seen for each in running if each.policy.fixed and each.policy.length}
        here = fixed.get(longest)
        if here is not None and here.draft_seconds:
            draft_seconds[requests] = statistics.median(here.draft_seconds)
            token_seconds[requests] = token_slope(fixed, draft_seconds[requests] / longest)
            seen.add(here)
    return points, as_profile(name, curves, draft_seconds, token_seconds, seen, switches)


class _Running:
    """A policy with its engine, and what was seen of it at one concurrency. windows: of each repeat."""

    def __init__(
        self,
        policy: Policy,
        build: Callable[[Schedule, Target], Engine],
        costs: CostCurve,
        target: Target,
        clock: Clock,
    ) -> None:
        self.policy = policy
        self.clock = clock
        self.target = RecordingTarget(target, clock)
        self.engine = build(policy.make(costs), self.target)
        self.windows: list[_Window] = []
        self.seen = Seen()


def _repeat(plan: LoadPlan, running: Seq[_Running], requests: int, repeat: int, longest: int) -> Iterator[float]:
    """Groups of answers, until there are enough; the share that is done after each. repeat: -1 counts for nothing."""
    for each in running:
        each.windows.append(_Window())
        each.engine.observers[:] = [each.seen] if repeat >= 0 else []
    for turn, first in enumerate(range(0, plan.answers, requests)):
        which = range(first, first + requests)
        start = (turn + repeat) % len(running)
        which_repeat = repeat if repeat >= 0 else plan.repeats  # what is thrown away answers prompts of its own
        groups = [_Group(each, plan, which, which_repeat, longest) for each in (*running[start:], *running[:start])]
        goal, order = 0, Random(plan.params(which_repeat, first).seed)
        try:
            while groups:
                goal += TURN
                groups = [group for group in groups if group.go(goal)]
                order.shuffle(groups)
        finally:
            for each in running:
                for request in list(each.engine.live):
                    each.engine.cancel(request)
        yield min(first + requests, plan.answers) / plan.answers


def measure_passes(
    target: Target, requests: int, longest: int, *, budget: float = CURVE_SECONDS, clock: Clock = perf_counter
) -> tuple[dict[int, float], float]:
    """Median seconds of passes of `requests` sequences with 1 .. longest + 1 rows each, by rows in all, and of one row
    alone, by which schedules judge whether a drafter is cheap; of a change.
    """
    each, switch = time_passes(target, requests, range(1, longest + 2), budget=budget, clock=clock)
    alone, _ = time_passes(target, 1, [1], budget=budget / 8, clock=clock) if requests > 1 else ({}, 0.0)
    return alone | {requests * rows: seconds for rows, seconds in each.items()}, switch


class _Group:
    """Requests of one policy that join together; their prompts are read in a round that counts for nothing."""

    def __init__(self, running: _Running, plan: LoadPlan, which: range, repeat: int, longest: int) -> None:
        self._running, self._plan, self._which, self._repeat = running, plan, which, repeat
        self._longest = longest
        self._log = Log(running.clock)

    def go(self, goal: int) -> bool:
        """Rounds until the requests have `goal` tokens each on the mean; False once one has no room for a block."""
        running, engine, requests = self._running, self._running.engine, len(self._which)
        self._log.last_passes_again()
        running.target.log = self._log
        try:
            if not engine.live:
                self._join()
            watch = _Rows(running.windows[-1])
            engine.observers.append(watch)
            while room := len(engine.live) == requests and self._left > self._longest:
                if sum(s.emitted for s in engine.live.values()) >= goal * requests:
                    break
                started = running.clock()
                events = engine.round()
                watch.window.seconds += running.clock() - started
                watch.window.tokens += sum(isinstance(event, TokenEvent) for event in events)
                watch.window.rounds += 1
            engine.observers.remove(watch)
        finally:
            running.target.log = None
        return room

    def _join(self) -> None:
        engine = self._running.engine
        for i in self._which:
            engine.add(self._plan.prompt(self._repeat, i), self._plan.params(self._repeat, i))
        engine.round()

    @property
    def _left(self) -> int:
        return min(s.remaining for s in self._running.engine.live.values())


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
