"""What `draftproof prove` proves: the production engine's joint law on every combination of its parts.

Guarantees: each case runs `draftproof.engine.Engine` itself (rounds, drafter, schedule, verifier, commits, cache and
rollback) over every branch and compares the joint law of the whole answer with the product of the target's own p.
The error is reported as it is; on these tables it must be the Fraction 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from time import perf_counter
from typing import Protocol

from draftproof.dist import Prob
from draftproof.engine import Engine
from draftproof.proof.engine_law import engine_law, target_law
from draftproof.proof.toys import DRAFTERS, PROMPT, toy_model, toy_target
from draftproof.registry import make_verifier
from draftproof.sampling.params import SamplingParams
from draftproof.schedule.adaptive import IDLE, AdaptiveSchedule
from draftproof.schedule.base import Schedule
from draftproof.schedule.costs import CostCurve
from draftproof.schedule.fixed import FixedSchedule
from draftproof.schedule.later import AT_ONCE, TOGETHER
from draftproof.schedule.prefix import PrefixSchedule

VERIFIERS = ("token", "block", "match", "coupled")
# Fixed costs: a proof must not read clocks. On the first curve drafting pays until acceptance is seen to be poor; on
# the second it hardly ever does, so that the schedule goes off, watches unverified point masses, and comes back.
CHEAP_ROWS = {1: 1.0, 2: 1.2, 4: 1.5}
DEAR_ROWS = {1: 1.0, 2: 1.55, 4: 2.6}
# Further rows are free once there is one: a block may be worth verifying where its first token alone is not.
STEPPED_ROWS = {1: 1.0, 2: 1.7, 4: 1.7}
# Where a change of width is dear, widths are chosen for several rounds: the schedule changes its mind within an answer.
LEVEL_ROWS, DEAR_CHANGE = {1: 1.0, 2: 1.05, 4: 1.3}, 0.4
FREE_DRAFTS = {"lookup": 0.0, "suffix": 0.0, "retrieval": 0.0, "mixed": 0.0}


def _adaptive(
    points: dict[int, float], switch: float = 0.0, idle: int = IDLE, at_once: int = AT_ONCE, together: int = TOGETHER
) -> Callable[[int], Schedule]:
    def make(length: int) -> Schedule:
        costs = CostCurve(points, refine=False, switch=switch)
        return AdaptiveSchedule(costs, length, draft_seconds=FREE_DRAFTS, idle=idle, at_once=at_once, together=together)

    return make


SCHEDULES: dict[str, Callable[[int], Schedule]] = {
    "fixed": FixedSchedule,
    "adaptive": _adaptive(CHEAP_ROWS),
    "adaptive, dear rows": _adaptive(DEAR_ROWS),
    "adaptive, stepped rows": _adaptive(STEPPED_ROWS),
    "adaptive, seldom asked": _adaptive(DEAR_ROWS, idle=1),
    "adaptive, dear changes": _adaptive(LEVEL_ROWS, DEAR_CHANGE),
    "adaptive, learning later": _adaptive(DEAR_ROWS, at_once=0, together=2),
    "prefix, stepped rows": lambda length: PrefixSchedule(CostCurve(STEPPED_ROWS, refine=False), length, evidence=1),
}
VOCABULARIES = (2, 3, 4)
LENGTHS = (0, 1, 2, 3)
ANSWER = 4

Law = dict[tuple[int, ...], Prob]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first answer, in lexicographic order, whose probabilities differ."""

    answer: tuple[int, ...]
    got: Prob
    expected: Prob


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one case found.

    error: the largest absolute difference of any answer's probability. tolerance: how large it may be where it is a
    float; Fractions must be exactly 0.
    """

    name: str
    answers: int
    error: Prob
    difference: Difference | None
    seconds: float
    tolerance: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether the two laws are equal: exactly, or up to the rounding of a float program."""
        return self.error == 0 or (not isinstance(self.error, Fraction) and self.error <= self.tolerance)


class Provable(Protocol):
    """One thing to enumerate, as the report sees it. Picklable: cases run in processes of their own."""

    @property
    def group(self) -> str:
        """The line of the report it belongs to."""
        ...

    @property
    def name(self) -> str:
        """Unique."""
        ...

    def run(self) -> Outcome:
        """Enumerate and compare."""
        ...


@dataclass(frozen=True, slots=True)
class Case:
    """One combination. `temperature` is 1 or 0, `requests` how many share the engine (with different prompts)."""

    verifier: str
    drafter: str
    schedule: str
    vocab_size: int
    length: int
    temperature: float = 1.0
    requests: int = 1

    @property
    def group(self) -> str:
        """The line of the report this case belongs to."""
        return f"{self.verifier} x {self.drafter} x {self.schedule}"

    @property
    def name(self) -> str:
        """Group and sizes."""
        greedy = ", greedy" if self.temperature == 0 else ""
        return f"{self.group}: vocabulary {self.vocab_size}, draft {self.length}, requests {self.requests}{greedy}"

    def run(self) -> Outcome:
        """Enumerate and compare."""
        # Two requests: shorter answers and other prompts, so that they accept differently and end apart.
        sizes = [ANSWER] if self.requests == 1 else [2, 3, 2][: self.requests]

        def build() -> Engine:
            return Engine(
                toy_target(self.vocab_size),
                drafter=DRAFTERS[self.drafter](self.vocab_size),
                verifier=make_verifier(self.verifier),
                schedule=SCHEDULES[self.schedule](self.length),
            )

        return prove_toy(self.name, build, self.vocab_size, sizes, self.temperature)


def prove_toy(name: str, build: Callable[[], Engine], vocab_size: int, sizes: list[int], temperature: float) -> Outcome:
    """Enumerate an engine on the toy target: one request per entry of `sizes` (its budget), prompts differing."""
    started = perf_counter()
    prompts = [(*PROMPT, *([1] * i)) for i in range(len(sizes))]
    params = [SamplingParams(max_tokens=n, temperature=temperature) for n in sizes]
    got = engine_law(build, list(zip(prompts, params, strict=True)))
    model, eos = toy_model(vocab_size), frozenset([vocab_size - 1])
    singles = [target_law(model, prompt, p, eos) for prompt, p in zip(prompts, params, strict=True)]
    return compare(name, got, product(singles), perf_counter() - started)


def product(laws: list[Law]) -> dict[tuple[tuple[int, ...], ...], Prob]:
    """The joint law of independent answers."""
    joint: dict[tuple[tuple[int, ...], ...], Prob] = {(): Fraction(1)}
    for law in laws:
        joint = {(*a, b): w * v for a, w in joint.items() for b, v in law.items()}
    return joint


def compare(
    name: str,
    got: dict[tuple[tuple[int, ...], ...], Prob],
    expected: dict[tuple[tuple[int, ...], ...], Prob],
    seconds: float,
    tolerance: float = 0.0,
) -> Outcome:
    """Both laws, answer by answer."""
    error: Prob = Fraction(0)
    first: Difference | None = None
    for answers in sorted(got.keys() | expected.keys()):
        a, b = got.get(answers, Fraction(0)), expected.get(answers, Fraction(0))
        gap = a - b if a > b else b - a
        if first is None and (gap > tolerance or (gap > 0 and isinstance(gap, Fraction))):
            first = Difference(sum(answers, ()), a, b)
        error = max(error, gap)
    return Outcome(name, len(expected), error, first, seconds, tolerance)


def engine_cases() -> Iterator[Case]:
    """Every verifier x drafter x schedule, on every vocabulary and draft length; then batches and temperature 0."""
    for verifier in VERIFIERS:
        for drafter in DRAFTERS:
            for schedule in SCHEDULES:
                for vocab_size in VOCABULARIES:
                    for length in LENGTHS:
                        yield Case(verifier, drafter, schedule, vocab_size, length)
                yield Case(verifier, drafter, schedule, 3, 3, temperature=0)
                yield Case(verifier, drafter, schedule, 2, 2, requests=2)
