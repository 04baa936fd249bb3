"""Rounds: draft, schedule, one target pass, verify, commit, over a changing set of sequences.

Guarantees: each emitted token follows the target's p after the request's controls, whatever the drafter, the
verifier and the schedule (shown by `draftproof prove`, which enumerates this very code). A round makes exactly one
target pass and commits at least one token to every sequence that has one to get; afterwards target and drafter hold
exactly what was committed, also when the round was interrupted. What it does not do: prompts, requests, whole
answers; see `engine`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

from draftproof import proposals
from draftproof.chance import ChanceSource, SeededSource, Streams
from draftproof.draft.base import Drafter, DraftRequest, Proposal
from draftproof.draft.none import NoDrafter
from draftproof.errors import InvalidValue
from draftproof.result import Event, FinishEvent, Result, TokenEvent
from draftproof.rows import DraftSampler, TargetRows
from draftproof.sampling.processors import Processor
from draftproof.schedule.base import RoundRecord, Schedule, Slot, thresholds_of
from draftproof.schedule.fixed import FixedSchedule
from draftproof.sequence import Sequence
from draftproof.target.base import Feed, Rows, Target
from draftproof.text import Tokenizer
from draftproof.verify.base import Drafted, Origin, RowSource, Verdict, Verifier
from draftproof.verify.token import TokenVerifier


@dataclass(frozen=True, slots=True)
class Settled:
    """One sequence's part of a round, for observers.

    start: absolute position of the first drafted token. emitted: how many of the verdict's tokens were committed
    before a stop. rows: p at each row, on demand.
    """

    request: int
    start: int
    drafted: Drafted
    verdict: Verdict
    emitted: int
    rows: RowSource

    @property
    def accepted(self) -> int:
        """Drafted tokens that were accepted and emitted."""
        return min(self.emitted, self.verdict.accepted)


class Observer(Protocol):
    """Watches rounds (traces, audits); reads, never writes. Its time is not counted as the engine's."""

    def round(self, record: RoundRecord, settled: Seq[Settled]) -> None:
        """A round has been committed; sequences that ended in it have not left yet."""
        ...


class Rounds:
    """The parts, the live sequences, and the one loop over them. `Engine` adds requests."""

    def __init__(
        self,
        target: Target,
        *,
        drafter: Drafter | None = None,
        verifier: Verifier | None = None,
        schedule: Schedule | None = None,
        tokenizer: Tokenizer | None = None,
        chance: ChanceSource | None = None,
        processors: Mapping[str, Processor] | None = None,
        load_seconds: float = 0.0,
    ) -> None:
        self.target = target
        self.drafter = drafter or NoDrafter()
        self.verifier = verifier or TokenVerifier()
        self.schedule = schedule or FixedSchedule(4)
        self.tokenizer = tokenizer
        self.chance = chance or SeededSource()
        self.processors = dict(processors or {})  # a user's own functions on logits; requests name them
        self.load_seconds = load_seconds
        self.observers: list[Observer] = []
        self.live: dict[int, Sequence] = {}
        self._ids = itertools.count()

    # -- the round ---------------------------------------------------------------------------------------

    def round(self) -> list[Event]:
        """One round over all live sequences; their events in order of joining.

        An exception (a broken model, Ctrl-C) leaves the engine usable: tokens that were committed stand, everything
        else is rolled back, and the next round goes on from there.
        """
        live = [s for s in self.live.values() if s.finish_reason is None]
        events: list[Event] = []
        try:
            if live:
                self._round(live, events)
        except BaseException:
            self._recover()
            raise
        for s in list(self.live.values()):
            if s.finish_reason is not None:
                tail = s.flush()
                events.append(FinishEvent(s.id, tail, self._leave(s), s.sample))
        return events

    def _round(self, live: Seq[Sequence], events: list[Event]) -> None:
        started = perf_counter()
        slots = [self._slot(s) for s in live]
        lengths = self.schedule.lengths(slots)
        _check_lengths(lengths, [slot.room for slot in slots], self.schedule.name)
        thresholds = thresholds_of(self.schedule, slots) if any(lengths) else ()
        drafting = perf_counter()  # what a schedule thinks about is no cost of its drafter
        proposed = self._propose(live, lengths, thresholds)
        drafted_by = perf_counter()
        admitted = self.schedule.admit(slots, proposed)
        _check_lengths(admitted, [len(p.tokens) for p in proposed], self.schedule.name)
        vocab_size = self.target.vocab_size
        drafts = [proposals.with_q(p.cut(n), vocab_size) for p, n in zip(proposed, admitted, strict=True)]
        width: int = getattr(self.schedule, "width", 0)  # of a `schedule.base.Steady`
        feeds = [self._feed(s, d, width) for s, d in zip(live, drafts, strict=True)]
        scoring = perf_counter()
        rows = self.target.score(feeds)
        scored = perf_counter()
        settled = [self._settle(s, d, r, events) for s, d, r in zip(live, drafts, rows, strict=True)]
        rolling = perf_counter()
        for s in live:
            if s.finish_reason is None:
                self.target.rollback(s.handle, len(s.tokens) - 1)  # the newest token has not been scored yet
        rolled = perf_counter()
        for s in live:
            if s.finish_reason is None and s.speculates:
                self.drafter.commit(s.id, s.tokens)
        ended = perf_counter()
        record = RoundRecord(
            slots=slots,
            proposals=proposed,
            admitted=admitted,
            accepted=[x.accepted for x in settled],
            emitted=[s.tokens[x.start :] for s, x in zip(live, settled, strict=True)],
            rows=sum(len(feed.tokens) for feed in feeds),
            target_seconds=scored - scoring + rolled - rolling,
            draft_seconds=drafted_by - drafting + ended - rolled,
            other_seconds=drafting - started + scoring - drafted_by + rolling - scored,
        )
        self.schedule.observe(record)
        self._account(live, record, perf_counter() - started)
        for observer in self.observers:
            observer.round(record, settled)

    def _slot(self, s: Sequence) -> Slot:
        if not s.speculates:
            return Slot(s.id, len(s.tokens), 0, "none")
        # One token of the budget is kept for the round's own (residual, bonus or plain) token.
        return Slot(s.id, len(s.tokens), s.remaining - 1, self.drafter.name)

    def _propose(self, live: Seq[Sequence], lengths: Seq[int], thresholds: Seq[float]) -> list[Proposal]:
        wanting = [(i, s, n) for i, (s, n) in enumerate(zip(live, lengths, strict=True)) if n > 0]
        requests = [
            DraftRequest(
                s.id, s.tokens, s.prompt_length, n, DraftSampler(s, self._streams(s), self.verifier), thresholds
            )
            for _, s, n in wanting
        ]
        proposed = [_NOTHING] * len(live)
        answers = self.drafter.propose(requests) if requests else []
        for (i, s, n), proposal in zip(wanting, answers, strict=True):
            proposed[i] = proposals.worth_verifying(proposals.checked(proposal, n, self.target.vocab_size), s)
        return proposed

    def _feed(self, s: Sequence, drafted: Drafted, width: int) -> Feed:
        pending = s.tokens[self.target.length(s.handle) :]
        return Feed(s.handle, [*pending, *drafted.tokens], rows=len(drafted.tokens) + 1, width=width)

    def _settle(self, s: Sequence, drafted: Drafted, rows: Rows, events: list[Event]) -> Settled:
        """Verify and commit one sequence's round."""
        source = TargetRows(s, drafted.tokens, rows, self.target.name)
        start = len(s.tokens)
        verdict = self.verifier.verify(drafted, source, self._streams(s), start)
        s.tally.count_round(len(drafted.tokens))
        s.tally.surprises += verdict.surprises
        for k, (token, origin) in enumerate(_emitted(drafted, verdict)):
            if source.dead is not None and k >= source.dead:
                s.finish_reason = "grammar_dead_end"
                break
            logprob = source.logprob(k, token)
            text = s.commit(token, origin, logprob)
            if origin is Origin.ACCEPTED:
                s.tally.count_accepted(k)
            events.append(TokenEvent(s.id, s.emitted - 1, token, text, origin, s.sample, logprob))
            if s.finish_reason is not None:
                break
        return Settled(s.id, start, drafted, verdict, len(s.tokens) - start, source)

    def _streams(self, s: Sequence) -> Streams:
        return Streams(self.chance.of(s.id, s.seed), epoch=len(s.tokens), sample=s.sample)

    # -- keeping house -----------------------------------------------------------------------------------

    def _account(self, live: Seq[Sequence], record: RoundRecord, seconds: float) -> None:
        for s in live:
            s.tally.total_seconds += seconds
            s.tally.target_seconds += record.target_seconds
            s.tally.draft_seconds += record.draft_seconds

    def _recover(self) -> None:
        """After an interrupted round: caches hold no more than what was committed."""
        for s in self.live.values():
            self.target.rollback(s.handle, min(self.target.length(s.handle), len(s.tokens) - 1))
            if s.speculates:
                self.drafter.commit(s.id, s.tokens)

    def _leave(self, s: Sequence) -> Result:
        """The sequence has ended: free everything it held; its result."""
        result = self._result(s)
        del self.live[s.id]
        self.target.close(s.handle)
        if s.speculates:
            self.drafter.close(s.id)
        self.chance.forget(s.id)
        self.schedule.forget(s.id)
        return result

    def _result(self, s: Sequence) -> Result:
        return s.result(
            drafter=self.drafter.name,
            verifier=self.verifier.name,
            schedule=self.schedule.name,
            load=self.load_seconds,
            off_reason=self.schedule.off_reason(s.id) if s.speculates else "switched off for this request",
        )


_NOTHING = Proposal()


def _emitted(drafted: Drafted, verdict: Verdict) -> Iterator[tuple[int, Origin]]:
    for token in drafted.tokens[: verdict.accepted]:
        yield token, Origin.ACCEPTED
    yield verdict.token, verdict.origin


def _check_lengths(lengths: Seq[int], most: Seq[int], schedule: str) -> None:
    for length, limit in zip(lengths, most, strict=True):
        if not 0 <= length <= limit:
            raise InvalidValue(f"schedule {schedule!r} asks for {length} tokens", f"0 to {limit} here")
