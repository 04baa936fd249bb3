"""What is measured of one answer, and an answer of this engine as it is given.

Guarantees: the clock is read at the same places for every mode: when the request joins, when its first tokens are
there, when it has ended; it stands still while others have their turn, and before an answer goes on its last pass is
made again, so that a runtime which prepares itself for a shape of pass has that of this answer. What it does not do:
choose parts; see `modes`.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

from draftproof.bench.calls import Log, Replay, Round
from draftproof.engine import Engine
from draftproof.errors import InvalidValue
from draftproof.result import Event, FinishEvent, Result
from draftproof.sampling.params import SamplingParams


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


class Answering(Protocol):
    """An answer that is being given, a turn at a time."""

    def go(self, tokens: int) -> Answer | None:
        """Go on until so many tokens are there in all, or the answer ends: then, and only then, what was measured."""
        ...

    def close(self) -> None:
        """Leave nothing behind, ended or not."""
        ...


class EngineAnswering:
    """An answer of this engine. watch: has every target of the mode write its calls into a log, or no longer."""

    def __init__(
        self,
        engine: Engine,
        log: Log,
        watch: Callable[[Log | None], None],
        rounds: Seq[Round],
        prompt: Seq[int],
        params: SamplingParams,
        *,
        floor: bool,
    ) -> None:
        self._engine, self._log, self._watch, self._rounds = engine, log, watch, rounds
        self._prompt, self._params = prompt, params
        self._replay = Replay(log) if floor else None
        self._request: int | None = None
        self._seconds = self._first_seconds = 0.0
        self._first_tokens = self._first_calls = 0

    def go(self, tokens: int) -> Answer | None:
        engine, clock = self._engine, self._log.clock
        if self._request is not None:
            self._log.last_passes_again()
        self._watch(self._log)
        try:
            started = clock()
            ended = None
            if self._request is None:
                self._request = engine.add(self._prompt, self._params)
                ended = self._first(engine.round(), started)
            while ended is None and engine.live[self._request].emitted < tokens:
                ended = _ended(engine.round())
            self._seconds += clock() - started
        finally:
            self._watch(None)
        if self._replay is not None:
            self._replay.catch_up()
        return None if ended is None else self._answer(ended.result)

    def close(self) -> None:
        if self._request is not None and self._request in self._engine.live:
            self._engine.cancel(self._request)
        if self._replay is not None:
            self._replay.close()

    def _first(self, events: Seq[Event], started: float) -> FinishEvent | None:
        self._first_seconds = self._log.clock() - started
        self._first_tokens = sum(not isinstance(event, FinishEvent) for event in events)
        self._first_calls = len(self._log.calls)
        return _ended(events)

    def _answer(self, result: Result) -> Answer:
        return Answer(
            tokens=tuple(result.token_ids),
            seconds=self._seconds,
            first_tokens=self._first_tokens,
            first_seconds=self._first_seconds,
            rounds=tuple(self._rounds[1:]),
            model_seconds=sum(self._log.seconds[self._first_calls :]),
            floor_seconds=None if self._replay is None else sum(self._replay.seconds[self._first_calls :]),
            off_reason=result.speculation.off_reason,
        )


def _ended(events: Seq[Event]) -> FinishEvent | None:
    return next((event for event in events if isinstance(event, FinishEvent)), None)
