"""One way of answering: this engine, plain or with a drafter.

Guarantees: every mode of a run uses the same loaded target. What a mode learns (acceptance, costs) it forgets between
workloads. What it does not do: other programs; see `peers`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Protocol, runtime_checkable

from draftproof.bench.answers import Answer, Answering, EngineAnswering
from draftproof.bench.calls import Clock, Log, RecordingTarget, Round
from draftproof.draft.base import Drafter
from draftproof.draft.scripted import ScriptedDrafter
from draftproof.engine import Engine
from draftproof.errors import DraftproofError
from draftproof.registry import DraftContext, check_drafter, check_schedule, make_drafter, make_verifier
from draftproof.rounds import Settled
from draftproof.sampling.params import SamplingParams
from draftproof.schedule.base import RoundRecord, Schedule
from draftproof.schedule.costs import CostCurve
from draftproof.target.base import Target
from draftproof.text import Tokenizer

PLAIN = "plain"
WRONG = "wrong"
"""A drafter only the benchmark has: always one token that the target would hardly say."""


class ModeFailed(DraftproofError):
    """A mode cannot go on; the others can."""


class Mode(Protocol):
    """A way of answering that can be measured."""

    @property
    def name(self) -> str:
        """As it is shown."""
        ...

    @property
    def baseline(self) -> str:
        """Name of the mode it is to be compared with: plain decoding by the same program."""
        ...

    def begin(self) -> None:
        """Another workload: forget what was learnt."""
        ...

    def answer(self, prompt: Seq[int], params: SamplingParams, *, floor: bool) -> Answer:
        """Answer once, and measure it. floor: replay the model calls afterwards, if they are known.

        Raises ModeFailed if this mode has to be left out from now on.
        """
        ...


@runtime_checkable
class TakesTurns(Mode, Protocol):
    """A mode whose answers can be given a turn at a time, with others' in between."""

    def start(self, prompt: Seq[int], params: SamplingParams, *, floor: bool) -> Answering:
        """Begin an answer; nothing is computed yet. One at a time."""
        ...


@dataclass(frozen=True, slots=True)
class Spec:
    """How the engine is built: the names of the command line. length: fixed at, or limited to."""

    draft: str = "lookup"
    verifier: str = "token"
    schedule: str = "adaptive"
    length: int = 8

    def __post_init__(self) -> None:
        if self.draft != WRONG:
            check_drafter(self.draft)
        make_verifier(self.verifier)
        check_schedule(self.schedule, self.length)

    @property
    def name(self) -> str:
        """Draft, and the schedule unless it is the usual one; the verifier unless it is."""
        if self.draft == "none":
            return PLAIN
        schedule = f" {self.schedule}" + (f" {self.length}" if self.schedule == "fixed" else "")
        schedule = "" if self.schedule == "adaptive" else schedule
        return f"{self.draft}{schedule}" + ("" if self.verifier == "token" else f" ({self.verifier})")


@dataclass(frozen=True, slots=True)
class Parts:
    """What engines are built from; loaded once.

    load_model: for draft models, as (target, tokenizer). schedule: a new one by name and length. curve: the cost curve
    of the target on this machine, for predictions. loaded: what drafters of all modes share (`DraftContext`).
    """

    target: Target
    tokenizer: Tokenizer | None
    load_model: Callable[[str], tuple[Target, Tokenizer | None]]
    schedule: Callable[[str, int], Schedule]
    curve: Callable[[], CostCurve]
    clock: Clock = perf_counter
    loaded: dict[object, Any] = field(default_factory=dict)


class EngineMode:
    """This package's engine."""

    baseline = PLAIN

    def __init__(self, spec: Spec, parts: Parts) -> None:
        self.name = spec.name
        self._spec = spec
        self._parts = parts
        self._target = RecordingTarget(parts.target, parts.clock)
        self._models: list[RecordingTarget] = []
        self._rounds: list[Round] = []
        self._drafter = self._make_drafter()  # a draft model is loaded once; drafters keep nothing between requests
        self._engine = self._make_engine()

    def begin(self) -> None:
        self._engine = self._make_engine()

    def answer(self, prompt: Seq[int], params: SamplingParams, *, floor: bool) -> Answer:
        answering = self.start(prompt, params, floor=floor)
        try:
            answer = answering.go(sys.maxsize)
        finally:
            answering.close()
        assert answer is not None
        return answer

    def start(self, prompt: Seq[int], params: SamplingParams, *, floor: bool) -> EngineAnswering:
        self._rounds.clear()
        log = Log(self._parts.clock)
        return EngineAnswering(self._engine, log, self._watch, self._rounds, prompt, params, floor=floor)

    def round(self, record: RoundRecord, settled: Seq[Settled]) -> None:
        """Observer of the engine's rounds."""
        self._rounds.append(Round.of(record))

    def _watch(self, log: Log | None) -> None:
        for target in (self._target, *self._models):
            target.log = log

    def _make_engine(self) -> Engine:
        spec = self._spec
        engine = Engine(
            self._target,
            drafter=self._drafter,
            verifier=make_verifier(spec.verifier),
            schedule=self._parts.schedule(spec.schedule, spec.length),
            tokenizer=self._parts.tokenizer,
        )
        engine.observers.append(self)
        return engine

    def _make_drafter(self) -> Drafter:
        if self._spec.draft == WRONG:
            return wrong_drafter(self._parts.target)
        context = DraftContext(
            "", self._parts.target, self._parts.tokenizer, self._load_model, loaded=self._parts.loaded
        )
        return make_drafter(self._spec.draft, context)

    def _load_model(self, name: str) -> tuple[Target, Tokenizer | None]:
        model, tokenizer = self._parts.load_model(name)
        self._models.append(RecordingTarget(model, self._parts.clock))
        return self._models[-1], tokenizer


def wrong_drafter(target: Target) -> ScriptedDrafter:
    """Proposes the last id that ends no answer, at every position: in most vocabularies a token that never comes."""
    token = max(i for i in range(target.vocab_size) if i not in target.eos_ids or target.vocab_size == 1)
    return ScriptedDrafter(lambda history, drafted: token, name=WRONG)
