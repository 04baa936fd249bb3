"""One way of answering: this engine, plain or with a drafter. What is measured of one answer.

Guarantees: the clock is read at the same places for every mode: when the request joins, when its first tokens are
there, when it has ended. Every mode of a run uses the same loaded target. What a mode learns (acceptance, costs) it
forgets between workloads. What it does not do: other programs; see `peers`.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

from draftproof.bench.calls import Clock, Log, RecordingTarget, Round
from draftproof.draft.base import Drafter
from draftproof.draft.scripted import ScriptedDrafter
from draftproof.engine import Engine
from draftproof.errors import DraftproofError, InvalidValue
from draftproof.registry import DraftContext, check_drafter, check_schedule, make_drafter, make_verifier
from draftproof.result import FinishEvent
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


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of one mode, in seconds.

    seconds, first_seconds: from joining to the end, and to the first tokens. tokens: of the answer; first_tokens: how
    many of them came with the prompt's pass. What follows is known of our own engine only, and is about the rounds
    after the first. model_seconds: spent in model calls; floor_seconds: the same calls replayed without the engine.
    """

    tokens: tuple[int, ...]
    seconds: float
    first_tokens: int
    first_seconds: float
    rounds: tuple[Round, ...] = ()
    model_seconds: float | None = None
    floor_seconds: float | None = None
    off_reason: str | None = None

    def __post_init__(self) -> None:
        if not 0 < self.first_tokens <= len(self.tokens) or not 0 <= self.first_seconds <= self.seconds:
            raise InvalidValue(
                f"an answer of {len(self.tokens)} tokens, {self.first_tokens} of them first, in {self.seconds} s, "
                f"the first in {self.first_seconds} s",
                "at least one token, and the first not after the last",
            )

    @property
    def decoded(self) -> int:
        """Tokens after the first."""
        return len(self.tokens) - self.first_tokens

    @property
    def decode_seconds(self) -> float:
        """Time they took."""
        return self.seconds - self.first_seconds


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
    of the target on this machine, for predictions.
    """

    target: Target
    tokenizer: Tokenizer | None
    load_model: Callable[[str], tuple[Target, Tokenizer | None]]
    schedule: Callable[[str, int], Schedule]
    curve: Callable[[], CostCurve]
    clock: Clock = perf_counter


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
        clock, engine = self._parts.clock, self._engine
        log = Log(clock)
        self._watch(log)
        self._rounds.clear()
        try:
            started = clock()
            request = engine.add(prompt, params)
            events = engine.round()
            first = clock()
            before, count = len(log.calls), sum(not isinstance(e, FinishEvent) for e in events)
            while request in engine.live:
                events = engine.round()
            ended = clock()
        finally:
            self._watch(None)
        result = next(e.result for e in events if isinstance(e, FinishEvent))
        return Answer(
            tokens=tuple(result.token_ids),
            seconds=ended - started,
            first_tokens=count,
            first_seconds=first - started,
            rounds=tuple(self._rounds[1:]),
            model_seconds=sum(log.seconds[before:]),
            floor_seconds=sum(log.replay()[before:]) if floor else None,
            off_reason=result.speculation.off_reason,
        )

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
        context = DraftContext("", self._parts.target, self._parts.tokenizer, self._load_model)
        return make_drafter(self._spec.draft, context)

    def _load_model(self, name: str) -> tuple[Target, Tokenizer | None]:
        model, tokenizer = self._parts.load_model(name)
        self._models.append(RecordingTarget(model, self._parts.clock))
        return self._models[-1], tokenizer


def wrong_drafter(target: Target) -> ScriptedDrafter:
    """Proposes the last id that ends no answer, at every position: in most vocabularies a token that never comes."""
    token = max(i for i in range(target.vocab_size) if i not in target.eos_ids or target.vocab_size == 1)
    return ScriptedDrafter(lambda history, drafted: token, name=WRONG)
