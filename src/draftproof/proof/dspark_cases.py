"""What `draftproof prove` proves about DSpark: a semi-autoregressive drafter with live confidences, every schedule.

The toy drafter's rows depend on the history, on the position in the block and, through a bias, on the token drawn
before; its confidences depend on the drawn tokens, take the values 0 and 1, and tie; it ends blocks where a schedule's
thresholds tell it to. Guarantees: the engine, the
verifiers and the schedules are the shipped ones, probabilities are Fractions, the error must be exactly 0. What it does
not do: the neural forward pass, which is no part of losslessness as long as q is what was drawn from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from draftproof.dist import Dist
from draftproof.draft.base import DraftRequest, Proposal, StatelessDrafter
from draftproof.engine import Engine
from draftproof.proof.cases import DEAR_CHANGE, LEVEL_ROWS, VERIFIERS, Outcome, prove_toy
from draftproof.proof.toys import toy_row, toy_target
from draftproof.registry import make_verifier
from draftproof.schedule.adaptive import AdaptiveSchedule
from draftproof.schedule.base import Schedule, Slot
from draftproof.schedule.costs import CostCurve
from draftproof.schedule.fixed import FixedSchedule
from draftproof.schedule.later import AT_ONCE, TOGETHER
from draftproof.schedule.prefix import EVIDENCE, PrefixSchedule
from draftproof.target.base import ProbRows

# Passes whose seconds rise slowly, steeply, and with a dip that a search past it would find.
FLAT, STEEP = {1: 1.0, 2: 1.25, 4: 1.75, 8: 2.75}, {1: 1.0, 2: 1.7, 4: 3.2, 8: 6.2}
BITING = {1: 1.0, 2: 1.1, 3: 1.4, 4: 1.8, 8: 3.4}  # rows after the second are worth it to the surest alone
JAGGED = {1: 1.0, 2: 2.0, 3: 2.05, 4: 2.1, 5: 4.0, 8: 4.2}
CONFIDENCES = (Fraction(1), Fraction(4, 5), Fraction(9, 10), Fraction(0), Fraction(1, 2), Fraction(4, 5))
"""Saturated, tying and ordinary values."""


class ToyDSpark(StatelessDrafter):
    """Block rows from the history, a Markov bias from the token before, confidences from the tokens drawn so far."""

    name = "toy-dspark"

    def __init__(self, vocab_size: int, block: int = 3) -> None:
        self.vocab_size, self.block = vocab_size, block

    def propose(self, requests: Seq[DraftRequest]) -> list[Proposal]:
        return [self._one(request) for request in requests]

    def _one(self, request: DraftRequest) -> Proposal:
        tokens: list[int] = []
        laws: list[Dist | None] = []
        confidences: list[Any] = []  # exact numbers where the protocol has floats
        survival: Any = 1
        for k in range(min(request.limit, self.block)):
            previous = tokens[-1] if tokens else request.tokens[-1]
            confidence = toy_confidence(request.tokens, tokens)
            survival *= confidence
            if k < len(request.thresholds) and survival < request.thresholds[k]:
                break
            confidences.append(confidence)
            row = toy_block_row(request.tokens, k, previous, self.vocab_size)
            q = request.sampler.distribution(ProbRows(Dist.checked(row).probs[None, :]), 0, tokens)
            tokens.append(request.sampler.draw(q, k))
            laws.append(q)
        return Proposal(tokens, laws, self.name, confidences)


def toy_block_row(history: Seq[int], k: int, previous: int, vocab_size: int) -> list[Fraction]:
    """q at block position k: a parallel row (it does not know the drawn tokens) tilted by the token before."""
    row = toy_row((len(history) % 3, history[-1], k), vocab_size, "block")
    tilt = toy_row((previous,), vocab_size, "bias")
    weights = [u * (1 + b) for u, b in zip(row, tilt, strict=True)]
    return [w / sum(weights) for w in weights]


def toy_confidence(history: Seq[int], drafted: Seq[int]) -> Fraction:
    """c of the next position, from what was drawn before it."""
    return CONFIDENCES[(len(history) + 4 + sum((i + 2) * (x + 1) for i, x in enumerate(drafted))) % len(CONFIDENCES)]


class EndingBlocks(FixedSchedule):
    """A fixed length with thresholds that end blocks from the first round on, at the first token too."""

    def thresholds(self, slots: Seq[Slot]) -> Seq[float]:
        """See `schedule.base.Stopping`."""
        return (0.6, 0.75, 0.7)


def _prefix(
    points: dict[int, float],
    *,
    budget: bool = False,
    switch: float = 0.0,
    evidence: int = EVIDENCE,
    at_once: int = AT_ONCE,
    together: int = TOGETHER,
) -> Callable[[int], Schedule]:
    return lambda length: PrefixSchedule(
        CostCurve(points, refine=False, switch=switch),
        length,
        form="budget" if budget else "causal",
        draft_seconds=0.1,
        evidence=evidence,
        at_once=at_once,
        together=together,
    )


SCHEDULES: dict[str, Callable[[int], Schedule]] = {
    "fixed": FixedSchedule,
    "fixed, blocks end": EndingBlocks,
    "adaptive": lambda length: AdaptiveSchedule(CostCurve(FLAT, refine=False), length),
    "prefix": _prefix(FLAT),
    "prefix, dear rows": _prefix(STEEP),
    "prefix, blocks end": _prefix(BITING, evidence=0),
    "prefix, learning later, blocks end": _prefix(BITING, evidence=0, at_once=0, together=2),
    "prefix, jagged costs": _prefix(JAGGED),
    "prefix, dear changes": _prefix(LEVEL_ROWS, switch=DEAR_CHANGE),
    "prefix-budget": _prefix(FLAT, budget=True),
    "prefix-budget, jagged costs": _prefix(JAGGED, budget=True),
    "prefix-budget, learning later": _prefix(FLAT, budget=True, evidence=0, at_once=0, together=2),
}


@dataclass(frozen=True, slots=True)
class DSparkCase:
    """One verifier and schedule with the toy drafter. `requests`: how many share the engine."""

    verifier: str
    schedule: str
    vocab_size: int
    length: int
    temperature: float = 1.0
    requests: int = 1

    @property
    def group(self) -> str:
        """The line of the report this case belongs to."""
        return f"{self.verifier} x toy-dspark x {self.schedule}"

    @property
    def name(self) -> str:
        """Group and sizes."""
        greedy = ", greedy" if self.temperature == 0 else ""
        return f"{self.group}: vocabulary {self.vocab_size}, draft {self.length}, requests {self.requests}{greedy}"

    def run(self) -> Outcome:
        """Enumerate and compare."""
        sizes = [4] if self.requests == 1 else [3, 2]

        def build() -> Engine:
            return Engine(
                toy_target(self.vocab_size),
                drafter=ToyDSpark(self.vocab_size),
                verifier=make_verifier(self.verifier),
                schedule=SCHEDULES[self.schedule](self.length),
            )

        return prove_toy(self.name, build, self.vocab_size, sizes, self.temperature)


def dspark_cases() -> Iterator[DSparkCase]:
    """Every verifier and schedule: vocabularies of two and three, one and two requests, and temperature 0."""
    for verifier in VERIFIERS:
        for schedule in SCHEDULES:
            yield DSparkCase(verifier, schedule, 2, 2)
            yield DSparkCase(verifier, schedule, 3, 3)
            yield DSparkCase(verifier, schedule, 3, 3, temperature=0)
            yield DSparkCase(verifier, schedule, 2, 2, requests=2)
            yield DSparkCase(verifier, schedule, 2, 3, requests=2)
