"""The model calls of a run, timed where they happen, written down, and made again without the engine.

What it is for: the floor under a round. `RecordingTarget` passes everything on and notes what was asked; `Log.replay`
asks the same again, in the same order and with nothing in between: the measured time of the bare model calls.

Guarantees: a replay leaves the targets as it found them; rows are not kept. What it does not do: judge rows.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from draftproof.schedule.base import RoundRecord
from draftproof.target.base import Feed, Rows, Target

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Round:
    """One round of one request. rows: of its target pass; context: tokens before it; drafted: tokens verified."""

    rows: int
    context: int
    drafted: int
    accepted: int
    emitted: int
    draft_seconds: float

    @classmethod
    def of(cls, record: RoundRecord) -> Round:
        """From a round over a single request."""
        assert len(record.slots) == 1
        return cls(
            rows=record.rows,
            context=record.slots[0].length,
            drafted=record.admitted[0],
            accepted=record.accepted[0],
            emitted=len(record.emitted[0]),
            draft_seconds=record.draft_seconds,
        )


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a target: which, what, with what, and how long it took. Only score and rollback take time."""

    target: Target
    kind: Literal["open", "score", "rollback", "close"]
    argument: Any
    seconds: float = 0.0


@dataclass(slots=True)
class Log:
    """Calls in order, of one target or several (a target and its draft model)."""

    clock: Clock
    calls: list[Call] = field(default_factory=list)

    @property
    def seconds(self) -> list[float]:
        """Of each call."""
        return [call.seconds for call in self.calls]

    def replay(self) -> list[float]:
        """Make every call again; seconds of each. Sequences that the log leaves open are closed."""
        handles: dict[tuple[int, int], int] = {}
        owners: dict[tuple[int, int], Target] = {}
        try:
            return [self._again(call, handles, owners) for call in self.calls]
        finally:
            for key, handle in handles.items():
                owners[key].close(handle)

    def _again(self, call: Call, handles: dict[tuple[int, int], int], owners: dict[tuple[int, int], Target]) -> float:
        target, name = call.target, id(call.target)
        if call.kind == "open":
            handles[name, call.argument] = target.open()
            owners[name, call.argument] = target
            return 0.0
        if call.kind == "close":
            target.close(handles.pop((name, call.argument)))
            return 0.0
        if call.kind == "rollback":
            handle, length = handles[name, call.argument[0]], call.argument[1]
            started = self.clock()
            target.rollback(handle, length)
            return self.clock() - started
        feeds = [replace(feed, handle=handles[name, feed.handle]) for feed in call.argument]
        started = self.clock()
        target.score(feeds)
        return self.clock() - started


class RecordingTarget:
    """A target that notes its calls in `log` when it has one."""

    def __init__(self, inner: Target, clock: Clock) -> None:
        self.inner = inner
        self.name = inner.name
        self.vocab_size = inner.vocab_size
        self.context_limit = inner.context_limit
        self.eos_ids = inner.eos_ids
        self.log: Log | None = None
        self._clock = clock

    def open(self) -> int:
        handle = self.inner.open()
        self._note("open", handle)
        return handle

    def close(self, handle: int) -> None:
        self.inner.close(handle)
        self._note("close", handle)

    def length(self, handle: int) -> int:
        return self.inner.length(handle)

    def score(self, feeds: Seq[Feed]) -> list[Rows]:
        started = self._clock()
        rows = self.inner.score(feeds)
        self._note("score", list(feeds), self._clock() - started)
        return rows

    def rollback(self, handle: int, length: int) -> None:
        started = self._clock()
        self.inner.rollback(handle, length)
        self._note("rollback", (handle, length), self._clock() - started)

    def _note(self, kind: Literal["open", "score", "rollback", "close"], argument: Any, seconds: float = 0.0) -> None:
        if self.log is not None:
            self.log.calls.append(Call(self.inner, kind, argument, seconds))
