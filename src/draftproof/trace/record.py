"""Recording a run: an observer of the engine that writes down every round and token.

Guarantees: changes nothing about the run: it draws nothing and asks for no row the verifier has not looked at; its
time is not counted as the engine's. What it does not do: write files (`jsonl`).

    recorder = Recorder(engine)
    engine.observers.append(recorder)
    result = engine.generate(prompt, params)
    write_trace(recorder.trace(result.choices), path)
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from fractions import Fraction
from typing import Any

from draftproof import __version__
from draftproof.chance import Streams
from draftproof.dist import Dist
from draftproof.engine import Engine, Settled
from draftproof.result import Result
from draftproof.sampling.params import SamplingParams
from draftproof.schedule.base import RoundRecord
from draftproof.sequence import Sequence
from draftproof.text import TextStream
from draftproof.trace import decision
from draftproof.trace.records import Choice, DraftedToken, Header, Part, RequestRecord, Round, TokenRecord, Trace
from draftproof.verify.base import Origin


class Recorder:
    """An `Observer`. top: how many tokens of the residual (or of p) are kept for each drawn token."""

    def __init__(self, engine: Engine, *, top: int = 5) -> None:
        self._engine = engine
        self._top = top
        self._requests: dict[int, RequestRecord] = {}
        self._streams: dict[int, TextStream] = {}
        self._rounds: list[Round] = []

    def trace(self, results: Seq[Result] = ()) -> Trace:
        """What was recorded so far, with the results of the requests in order of joining."""
        e = self._engine
        header = Header(e.target.name, e.drafter.name, e.verifier.name, e.schedule.name, __version__)
        # Through JSON, so that a trace equals what is read back from its file; each result stands for itself.
        plain = json.loads(json.dumps([result.to_json() | {"alternatives": []} for result in results]))
        return Trace(header, tuple(self._requests.values()), tuple(self._rounds), tuple(plain))

    def round(self, record: RoundRecord, settled: Seq[Settled]) -> None:
        """One round of the engine."""
        parts = tuple(self._part(record, i, s) for i, s in enumerate(settled))
        self._rounds.append(
            Round(
                index=len(self._rounds),
                rows=record.rows,
                target_seconds=record.target_seconds,
                draft_seconds=record.draft_seconds,
                other_seconds=record.other_seconds,
                parts=parts,
            )
        )

    def _part(self, record: RoundRecord, i: int, settled: Settled) -> Part:
        sequence = self._engine.live[settled.request]
        self._join(sequence)
        proposal = record.proposals[i]
        return Part(
            request=settled.request,
            start=settled.start,
            drafter=proposal.drafter or record.slots[i].drafter,
            drafted=tuple(self._piece(token) for token in proposal.tokens),
            admitted=record.admitted[i],
            accepted=record.accepted[i],
            surprises=settled.verdict.surprises,
            tokens=tuple(self._token(sequence, settled, k) for k in range(settled.emitted)),
        )

    def _join(self, s: Sequence) -> None:
        if s.id in self._requests:
            return
        tokenizer = self._engine.tokenizer
        before = s.tokens[: s.start]
        if tokenizer is not None:
            self._streams[s.id] = TextStream(tokenizer, before)
        self._requests[s.id] = RequestRecord(
            request=s.id,
            sample=s.sample,
            seed=s.seed,
            prompt_tokens=len(before),
            prompt=tokenizer.decode(before, skip_special=False) if tokenizer else " ".join(map(str, before)),
            controls=controls_in_force(s.params),
        )

    def _token(self, s: Sequence, settled: Settled, k: int) -> TokenRecord:
        token = s.tokens[settled.start + k]
        accepted = k < settled.verdict.accepted
        law, top = (None, ()) if accepted else self._law(settled)
        return TokenRecord(
            id=token,
            text=self._text(s, token, last=s.finish_reason is not None and settled.start + k == len(s.tokens) - 1),
            piece=self._piece(token),
            origin=Origin.ACCEPTED if accepted else settled.verdict.origin,
            p=float(settled.rows.p(k).prob(token)),
            drafted=self._drafted(s, settled, k) if k < len(settled.drafted.tokens) else None,
            law=law,
            top=top,
        )

    def _drafted(self, s: Sequence, settled: Settled, k: int) -> DraftedToken:
        token = settled.drafted.tokens[k]
        # The streams the round had: keyed by the length the sequence had when it began.
        streams = Streams(self._engine.chance.of(s.id, s.seed), epoch=settled.start, sample=s.sample)
        limit, u = decision.coin(self._engine.verifier, settled, streams, k) or (None, None)
        return DraftedToken(
            id=token,
            piece=self._piece(token),
            p=float(settled.rows.p(k).prob(token)),
            q=float(settled.drafted.q[k].prob(token)),
            alpha=float(decision.alpha(settled, k)),
            limit=limit,
            u=u,
        )

    def _law(self, settled: Settled) -> tuple[str, Seq[Choice]]:
        name, dist = decision.law(self._engine.verifier, settled)
        return name, self._choices(dist)

    def _choices(self, dist: Dist) -> tuple[Choice, ...]:
        return tuple(Choice(i, self._piece(i), float(prob)) for i, prob in dist.top(self._top) if prob > 0)

    def _text(self, s: Sequence, token: int, *, last: bool) -> str:
        if s.id not in self._streams:
            return f"{token} "
        text = self._streams[s.id].push(token)
        return text + self._streams[s.id].flush() if last else text

    def _piece(self, token: int) -> str:
        tokenizer = self._engine.tokenizer
        return str(token) if tokenizer is None else tokenizer.decode([token], skip_special=False)


def controls_in_force(params: SamplingParams) -> dict[str, Any]:
    """The temperature and every parameter that is not at its default, as JSON values; the seed is told apart."""
    found = {}
    for field in dataclasses.fields(params):
        value = getattr(params, field.name)
        if field.name == "temperature" or (field.name != "seed" and value != field.default):
            found[field.name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float | Fraction):
        return float(value) if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, frozenset | set):
        return sorted(value)
    if isinstance(value, Seq):
        return [_plain(inner) for inner in value]
    return type(value).__name__
