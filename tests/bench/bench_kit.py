"""A machine whose time is known: passes of a table target take what a curve says, everything else a fixed amount."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from fractions import Fraction

from draftproof.bench.answers import Answer
from draftproof.bench.modes import EngineMode, Parts, Spec
from draftproof.draft.base import DraftRequest, Proposal
from draftproof.sampling.params import SamplingParams
from draftproof.schedule.adaptive import AdaptiveSchedule
from draftproof.schedule.base import Schedule
from draftproof.schedule.costs import CostCurve
from draftproof.schedule.fixed import FixedSchedule
from draftproof.target.base import Feed, Rows
from draftproof.target.table import TableModel, TableTarget
from draftproof.text import IdTokenizer

SIZE = 8
PASS = 10.0  # seconds of a pass of one row
ROW = 1.0  # of each further row
CURVE = {rows: PASS + ROW * (rows - 1) for rows in (1, 2, 4, 8)}


class FakeClock:
    """Stands still unless told otherwise."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class ClockedTarget(TableTarget):
    """Counts 0, 1, 2, ... round and round with certainty; its passes take time. `slower` scales them.

    switch: what a pass takes more that has other rows than the one before it.
    """

    def __init__(self, clock: FakeClock, switch: float = 0.0) -> None:
        super().__init__(TableModel(_next, SIZE, name="counter"))
        self.clock = clock
        self.slower = 1.0
        self.switch, self._last = switch, 0
        self.fed: list[tuple[list[int], int]] = []

    @property
    def open_sequences(self) -> int:
        return len(self._caches)

    def score(self, feeds: Seq[Feed]) -> list[Rows]:
        rows = sum(len(feed.tokens) for feed in feeds)
        self.fed += [(list(feed.tokens), feed.rows) for feed in feeds]
        self.clock.now += self.slower * (PASS + ROW * (rows - 1)) + self.switch * (rows != self._last)
        self._last = rows
        return super().score(feeds)


def _next(prefix: tuple[int, ...]) -> list[Fraction]:
    following = (prefix[-1] + 1) % SIZE if prefix else 0
    return [Fraction(int(i == following)) for i in range(SIZE)]


def parts(clock: FakeClock, target: ClockedTarget | None = None) -> Parts:
    """What engines are built from, on this clock."""
    target = target or ClockedTarget(clock)

    def schedule(name: str, length: int) -> Schedule:
        curve = CostCurve(CURVE, refine=False)
        return FixedSchedule(length) if name == "fixed" else AdaptiveSchedule(curve, length)

    def load_model(name: str) -> tuple[TableTarget, IdTokenizer]:
        return ClockedTarget(clock), IdTokenizer(SIZE)

    return Parts(
        target=target,
        tokenizer=IdTokenizer(SIZE),
        load_model=load_model,
        schedule=schedule,
        curve=lambda: CostCurve(CURVE, refine=False),
        clock=clock,
    )


def plain(p: Parts) -> EngineMode:
    """Plain decoding."""
    return EngineMode(Spec("none", "token", "fixed", 0), p)


def lookup(p: Parts, length: int = 4) -> EngineMode:
    """The lookup drafter at a fixed length: on a counter that has gone round once it is always right."""
    return EngineMode(Spec("lookup", "token", "fixed", length), p)


class ScriptedMode:
    """A mode whose answers are given; writes down in `diary` that it was asked."""

    def __init__(
        self,
        name: str,
        answers: Seq[Answer],
        diary: list[tuple[str, tuple[int, ...], int | None]],
        baseline: str = "plain",
    ) -> None:
        self.name = name
        self.baseline = baseline
        self._answers = answers
        self._asked = 0
        self._diary = diary
        self.begun = 0

    def begin(self) -> None:
        self.begun += 1
        self._asked = -1  # the next one is the warm-up

    def answer(self, prompt: Seq[int], params: SamplingParams, *, floor: bool) -> Answer:
        self._diary.append((self.name, tuple(prompt), params.seed))
        self._asked += 1
        return self._answers[max(0, self._asked - 1) % len(self._answers)]


def seconds(decode: float, tokens: int = 11, first: float = 1.0) -> Answer:
    """An answer of `tokens` tokens, one of them first, whose rest took `decode` seconds."""
    return Answer(tuple(range(tokens)), first + decode, 1, first)


class Overhead:
    """A drafter wrapped so that proposing takes time on the fake clock."""

    def __init__(self, inner: object, clock: FakeClock, each: float) -> None:
        self._inner, self._clock, self._each = inner, clock, each
        self.name = inner.name

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def propose(self, requests: Seq[DraftRequest]) -> list[Proposal]:
        self._clock.now += self._each
        return self._inner.propose(requests)
