"""The engine: rounds of draft, schedule, one target pass, verify, commit, over a changing set of sequences.

Guarantees: each emitted token follows the target's p after the request's controls, whatever the drafter, the
verifier and the schedule (shown by `draftproof prove`, which enumerates this very code). A round makes exactly one
target pass and commits at least one token to every live sequence; afterwards target and drafter hold exactly what
was committed. What it does not do: load models (`draftproof.load`) or draw random numbers (`chance`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

from draftproof.chance import ChanceSource, SeededSource, Streams, fresh_seed
from draftproof.dist import Dist
from draftproof.draft.base import Drafter, DraftRequest, Proposal
from draftproof.draft.none import NoDrafter
from draftproof.errors import BadProposal, InvalidValue
from draftproof.result import Event, FinishEvent, Result, TokenEvent
from draftproof.sampling.controls import Controls
from draftproof.sampling.params import SamplingParams
from draftproof.schedule.base import RoundRecord, Schedule, Slot
from draftproof.schedule.fixed import FixedSchedule
from draftproof.sequence import Sequence
from draftproof.target.base import Feed, LogitRows, Rows, Target, check_logits
from draftproof.text import Message, Tokenizer
from draftproof.verify.base import Drafted, Origin, RowSource, Verdict, Verifier
from draftproof.verify.token import TokenVerifier

Prompt = str | Seq[int] | Seq[Message]


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


class Engine:
    """Speculative decoding of one target with one drafter, one verifier and one schedule."""

    def __init__(
        self,
        target: Target,
        *,
        drafter: Drafter | None = None,
        verifier: Verifier | None = None,
        schedule: Schedule | None = None,
        tokenizer: Tokenizer | None = None,
        chance: ChanceSource | None = None,
        load_seconds: float = 0.0,
    ) -> None:
        self.target = target
        self.drafter = drafter or NoDrafter()
        self.verifier = verifier or TokenVerifier()
        self.schedule = schedule or FixedSchedule(4)
        self.tokenizer = tokenizer
        self.chance = chance or SeededSource()
        self.load_seconds = load_seconds
        self.observers: list[Observer] = []
        self.live: dict[int, Sequence] = {}
        self._ids = itertools.count()

    # -- requests ----------------------------------------------------------------------------------------

    def add(self, prompt: Prompt, params: SamplingParams | None = None, *, chat: bool | None = None) -> int:
        """Join a request; it takes part from the next round on. Returns its id.

        prompt: text, chat messages, or token ids. Text goes through the chat template if the model has one,
        unless chat=False. Raises InvalidValue for an empty prompt, one that does not fit the context, or a
        budget that does not.
        """
        params = params or SamplingParams()
        ids = self.encode(prompt, chat=chat)
        limit = self._limit(len(ids), params)
        eos = frozenset() if params.ignore_eos else self.target.eos_ids
        sequence = Sequence(
            id=next(self._ids),
            handle=self.target.open(),
            prompt=ids,
            params=params,
            seed=fresh_seed() if params.seed is None else params.seed,
            stop_ids=eos | params.stop_ids,
            limit=limit,
            controls=Controls(params, self.target.vocab_size),
            tokenizer=self.tokenizer,
        )
        self.drafter.open(sequence.id)
        self.live[sequence.id] = sequence
        return sequence.id

    def cancel(self, request: int) -> Result:
        """End a live request now; what was committed stands, with finish_reason "cancelled"."""
        sequence = self.live[request]
        sequence.finish_reason = "cancelled"
        if sequence.stream is not None:
            sequence.stream.flush()
        self._leave(sequence)
        return self._result(sequence)

    def encode(self, prompt: Prompt, *, chat: bool | None = None) -> list[int]:
        """Token ids of a prompt, checked against the vocabulary."""
        if isinstance(prompt, str):
            tokenizer = self._tokenizer()
            wants_chat = tokenizer.has_chat if chat is None else chat
            ids = tokenizer.chat([{"role": "user", "content": prompt}]) if wants_chat else tokenizer.encode(prompt)
            if not prompt:
                ids = []
        elif len(prompt) and isinstance(prompt[0], dict):
            ids = self._tokenizer().chat(prompt)  # type: ignore[arg-type]
        else:
            ids = [int(i) for i in prompt]  # type: ignore[arg-type]
        if not ids:
            raise InvalidValue("the prompt is empty", "give at least one token; a model continues something")
        for i in ids:
            if not 0 <= i < self.target.vocab_size:
                raise InvalidValue(f"prompt token {i}", f"ids are 0..{self.target.vocab_size - 1}")
        return ids

    # -- whole answers -----------------------------------------------------------------------------------

    def generate(self, prompt: Prompt, params: SamplingParams | None = None, *, chat: bool | None = None) -> Result:
        """The answer to one prompt. Other live requests go on meanwhile; their events are lost to `round`."""
        for event in self.stream(prompt, params, chat=chat):
            if isinstance(event, FinishEvent):
                return event.result
        raise AssertionError("a stream ends with a FinishEvent")

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, chat: bool | None = None
    ) -> Iterator[Event]:
        """The events of one answer as they happen; closing the iterator cancels the request."""
        request = self.add(prompt, params, chat=chat)
        try:
            while request in self.live:
                yield from (event for event in self.round() if event.request == request)
        finally:
            if request in self.live:
                self.cancel(request)

    # -- the round ---------------------------------------------------------------------------------------

    def round(self) -> list[Event]:
        """One round over all live sequences; their events in order of joining."""
        live = list(self.live.values())
        if not live:
            return []
        started = perf_counter()
        slots = [self._slot(s) for s in live]
        proposals = self._propose(live, slots)
        drafted_by = perf_counter()
        admitted = self.schedule.admit(slots, proposals)
        drafts = [_with_q(p.cut(n), self.target.vocab_size) for p, n in zip(proposals, admitted, strict=True)]
        feeds = [self._feed(s, d) for s, d in zip(live, drafts, strict=True)]
        scoring = perf_counter()
        rows = self.target.score(feeds)
        scored = perf_counter()
        events: list[Event] = []
        settled = [self._settle(s, d, r, events) for s, d, r in zip(live, drafts, rows, strict=True)]
        rolling = perf_counter()
        for s in live:
            if s.finish_reason is None:
                self.target.rollback(s.handle, len(s.tokens) - 1)  # the newest token has not been scored yet
        rolled = perf_counter()
        for s in live:
            if s.finish_reason is None:
                self.drafter.commit(s.id, s.tokens)
        ended = perf_counter()
        record = RoundRecord(
            slots=slots,
            drafters=[p.drafter for p in proposals],
            drafted=[len(p.tokens) for p in proposals],
            admitted=admitted,
            accepted=[x.accepted for x in settled],
            target_seconds=scored - scoring + rolled - rolling,
            draft_seconds=drafted_by - started + ended - rolled,
            other_seconds=scoring - drafted_by + rolling - scored,
        )
        self.schedule.observe(record)
        self._account(live, record, perf_counter() - started)
        for observer in self.observers:
            observer.round(record, settled)
        for s in live:
            if s.finish_reason is not None:
                tail = s.stream.flush() if s.stream is not None else ""
                self._leave(s)
                events.append(FinishEvent(s.id, tail, self._result(s)))
        return events

    def _slot(self, s: Sequence) -> Slot:
        # One token of the budget is kept for the round's own (residual, bonus or plain) token.
        return Slot(s.id, len(s.tokens), s.remaining - 1, self.drafter.name)

    def _propose(self, live: Seq[Sequence], slots: Seq[Slot]) -> list[Proposal]:
        lengths = self.schedule.lengths(slots)
        wanting = [i for i, n in enumerate(lengths) if n > 0]
        requests = [
            DraftRequest(
                live[i].id,
                live[i].tokens,
                live[i].prompt_length,
                lengths[i],
                _Sampler(live[i], self._streams(live[i]), self.verifier),
            )
            for i in wanting
        ]
        proposals = [Proposal()] * len(live)
        answers = self.drafter.propose(requests) if requests else []
        for i, proposal in zip(wanting, answers, strict=True):
            if len(proposal.tokens) > lengths[i]:
                raise BadProposal(
                    f"drafter {proposal.drafter!r} proposed {len(proposal.tokens)} tokens, asked for {lengths[i]}",
                    "a proposal is at most request.limit tokens",
                )
            proposals[i] = proposal.cut(_first_stop(proposal.tokens, live[i].stop_ids))
        return proposals

    def _feed(self, s: Sequence, drafted: Drafted) -> Feed:
        pending = s.tokens[self.target.length(s.handle) :]
        return Feed(s.handle, [*pending, *drafted.tokens], rows=len(drafted.tokens) + 1)

    def _settle(self, s: Sequence, drafted: Drafted, rows: Rows, events: list[Event]) -> Settled:
        """Verify and commit one sequence's round."""
        source = _Rows(s, drafted.tokens, rows, self.target.name)
        start = len(s.tokens)
        verdict = self.verifier.verify(drafted, source, self._streams(s), start)
        s.tally.count_round(len(drafted.tokens))
        s.tally.surprises += verdict.surprises
        for k, (token, origin) in enumerate(_emitted(drafted, verdict)):
            text = s.commit(token, origin)
            if origin is Origin.ACCEPTED:
                s.tally.count_accepted(k)
            events.append(TokenEvent(s.id, s.emitted - 1, token, text, origin))
            if s.finish_reason is not None:
                break
        return Settled(s.id, start, drafted, verdict, len(s.tokens) - start, source)

    def _streams(self, s: Sequence) -> Streams:
        return Streams(self.chance.of(s.id, s.seed), epoch=len(s.tokens), sample=s.sample)

    def _account(self, live: Seq[Sequence], record: RoundRecord, seconds: float) -> None:
        for s in live:
            s.tally.total_seconds += seconds
            s.tally.target_seconds += record.target_seconds
            s.tally.draft_seconds += record.draft_seconds

    # -- small things ------------------------------------------------------------------------------------

    def _leave(self, s: Sequence) -> None:
        del self.live[s.id]
        self.target.close(s.handle)
        self.drafter.close(s.id)
        self.chance.forget(s.id)

    def _result(self, s: Sequence) -> Result:
        return s.result(
            drafter=self.drafter.name,
            verifier=self.verifier.name,
            schedule=self.schedule.name,
            load=self.load_seconds,
            off_reason=None,
        )

    def _limit(self, prompt_length: int, params: SamplingParams) -> int:
        context = self.target.context_limit
        if context is None:
            if params.max_tokens is None:
                raise InvalidValue("max_tokens=None on a target without context limit", "give a number")
            return params.max_tokens
        room = context - prompt_length
        if room < 1:
            raise InvalidValue(
                f"the prompt has {prompt_length} tokens", f"the context holds {context}, answer included"
            )
        if params.max_tokens is not None and params.max_tokens > room:
            raise InvalidValue(
                f"max_tokens={params.max_tokens} after a prompt of {prompt_length} tokens",
                f"the context of {context} leaves at most {room}",
            )
        return room if params.max_tokens is None else params.max_tokens

    def _tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise InvalidValue("a text prompt without a tokenizer", "pass token ids, or build the engine with one")
        return self.tokenizer


class _Sampler:
    """What a drafter may use of its request: the controls and the proposal stream (`draft.base.Sampler`)."""

    __slots__ = ("_sequence", "_streams", "_verifier")

    def __init__(self, sequence: Sequence, streams: Streams, verifier: Verifier) -> None:
        self._sequence = sequence
        self._streams = streams
        self._verifier = verifier

    def distribution(self, rows: Rows, row: int, drafted: Seq[int], temperature: float | None = None) -> Dist:
        return self._sequence.controls.distribution(rows, row, drafted, temperature)

    def draw(self, q: Dist, index: int) -> int:
        return self._verifier.propose(q, self._streams, len(self._sequence.tokens) + index)


class _Rows:
    """p of each row, made when a verifier asks for it and kept for the round (`verify.base.RowSource`)."""

    __slots__ = ("_drafted", "_known", "_rows", "_sequence", "_who")

    def __init__(self, sequence: Sequence, drafted: Seq[int], rows: Rows, who: str) -> None:
        self._sequence = sequence
        self._drafted = drafted
        self._rows = rows
        self._who = who
        self._known: dict[int, Dist] = {}

    def p(self, i: int) -> Dist:
        if i not in self._known:
            if isinstance(self._rows, LogitRows):
                check_logits(self._rows.values[i], position=len(self._sequence.tokens) + i, row=i, who=self._who)
            self._known[i] = self._sequence.controls.distribution(self._rows, i, self._drafted[:i])
        return self._known[i]


def _emitted(drafted: Drafted, verdict: Verdict) -> Iterator[tuple[int, Origin]]:
    for token in drafted.tokens[: verdict.accepted]:
        yield token, Origin.ACCEPTED
    yield verdict.token, verdict.origin


def _first_stop(tokens: Seq[int], stop_ids: frozenset[int]) -> int:
    """Length up to and including the first stop id: what follows could never be emitted.

    Stopping after a token because of what it is keeps the ratio rules exact; dropping it would not.
    """
    for i, token in enumerate(tokens):
        if token in stop_ids:
            return i + 1
    return len(tokens)


def _with_q(proposal: Proposal, vocab_size: int) -> Drafted:
    """The proposal with a q for every token; refused where the drafter broke its contract."""
    laws = []
    for i, token in enumerate(proposal.tokens):
        if not 0 <= token < vocab_size:
            raise BadProposal(
                f"drafter {proposal.drafter!r} proposed id {token} at position {i}",
                f"ids are 0..{vocab_size - 1}",
            )
        q = proposal.q[i] if proposal.q is not None else None
        if q is None:
            q = Dist.point(token, vocab_size)
        elif q.size != vocab_size:
            raise BadProposal(
                f"drafter {proposal.drafter!r}: q over {q.size} tokens at position {i}",
                f"the target's vocabulary has {vocab_size}",
            )
        elif not q.prob(token) > 0:
            raise BadProposal(
                f"drafter {proposal.drafter!r}: q gives its own token {token} probability {q.prob(token)} "
                f"at position {i}",
                "q must be the distribution the token was drawn from",
            )
        laws.append(q)
    return Drafted(tuple(proposal.tokens), tuple(laws))
