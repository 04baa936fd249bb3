"""The model calls of a run, timed where they happen, written down, and made again without the engine.

What it is for: the floor under a round. `RecordingTarget` passes everything on and notes what was asked; a `Replay`
asks the same again, in the same order and with nothing in between: the measured time of the bare model calls.

Guarantees: a replay leaves the targets as it found them, and so does a last pass made again; rows are not kept. What it
does not do: judge rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
    """One call of a target: which, what, with what, and how long it took. Only score and rollback take time.

    lengths: of the sequences that were scored, before they were.
    """

    target: Target
    kind: Literal["open", "score", "rollback", "close"]
    argument: Any
    seconds: float = 0.0
    lengths: tuple[int, ...] = ()


@dataclass(slots=True)
class Log:
    """Calls in order, of one target or several (a target and its draft model)."""

    clock: Clock
    calls: list[Call] = field(default_factory=list)

    @property
    def seconds(self) -> list[float]:
        """Of each call."""
        return [call.seconds for call in self.calls]

    def last_passes_again(self) -> None:
        """Make the last pass of each target again: a runtime that others used meanwhile is as this run left it.

        Its sequences must still be open; they end as they are.
        """
        for call in _last_passes(self.calls):
            _make_again(call.target, call.argument, call.lengths)


class Replay:
    """A log's calls made again, on sequences of their own, while the log may still grow."""

    def __init__(self, log: Log) -> None:
        self.seconds: list[float] = []
        """Of each call that was made again."""
        self._log = log
        self._handles: dict[tuple[int, int], int] = {}
        self._owners: dict[tuple[int, int], Target] = {}

    def close(self) -> None:
        """Close the sequences that the log has left open."""
        for key, handle in self._handles.items():
            self._owners[key].close(handle)
        self._handles.clear()

    def catch_up(self) -> None:
        """Make every call again that was added since last time, as if nothing had come in between."""
        done = len(self.seconds)
        for call in _last_passes(self._log.calls[:done]):
            _make_again(call.target, self._feeds(call), call.lengths)
        for call in self._log.calls[done:]:
            self.seconds.append(self._again(call))

    def _feeds(self, call: Call) -> list[Feed]:
        name = id(call.target)
        return [replace(feed, handle=self._handles[name, feed.handle]) for feed in call.argument]

    def _again(self, call: Call) -> float:
        target, name, handles, clock = call.target, id(call.target), self._handles, self._log.clock
        if call.kind == "open":
            handles[name, call.argument] = target.open()
            self._owners[name, call.argument] = target
            return 0.0
        if call.kind == "close":
            target.close(handles.pop((name, call.argument)))
            return 0.0
        if call.kind == "rollback":
            handle, length = handles[name, call.argument[0]], call.argument[1]
            started = clock()
            target.rollback(handle, length)
            return clock() - started
        feeds = self._feeds(call)
        started = clock()
        target.score(feeds)
        return clock() - started


def _last_passes(calls: Seq[Call]) -> Iterable[Call]:
    """The last pass of each target."""
    return {id(call.target): call for call in calls if call.kind == "score"}.values()


def _make_again(target: Target, feeds: Seq[Feed], before: Seq[int]) -> None:
    """Score what was scored when the sequences had these lengths; they end as they are."""
    lengths = [target.length(feed.handle) for feed in feeds]
    for feed, length in zip(feeds, before, strict=True):
        target.rollback(feed.handle, length)
    target.score(feeds)
    for feed, length in zip(feeds, lengths, strict=True):
        target.rollback(feed.handle, length)


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
        if self.log is None:
            return self.inner.score(feeds)
        lengths = tuple(self.inner.length(feed.handle) for feed in feeds)
        started = self._clock()
        rows = self.inner.score(feeds)
        self._note("score", list(feeds), self._clock() - started, lengths)
        return rows

    def rollback(self, handle: int, length: int) -> None:
        started = self._clock()
        self.inner.rollback(handle, length)
        self._note("rollback", (handle, length), self._clock() - started)

    def _note(
        self,
        kind: Literal["open", "score", "rollback", "close"],
        argument: Any,
        seconds: float = 0.0,
        lengths: tuple[int, ...] = (),
    ) -> None:
        if self.log is not None:
            self.log.calls.append(Call(self.inner, kind, argument, seconds, lengths))
