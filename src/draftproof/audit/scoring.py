"""The target's own p at every token of a finished text, from one plain pass over it.

What it is for: every audit. Whoever produced the text, the reference is recomputed without drafts, verification or
rollback. Guarantees: p of a token sees the prompt and the answer before it, through the same controls as the engine's.
What it does not do: tell rounding from bias; `SequentialTest(noise=...)` allows for rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np

from draftproof.dist import Dist
from draftproof.engine import Engine
from draftproof.errors import InvalidValue
from draftproof.proof.sequential import SequentialTest
from draftproof.result import FinishEvent, Result
from draftproof.rounds import Settled
from draftproof.sampling.controls import Controls
from draftproof.sampling.params import SamplingParams
from draftproof.schedule.base import RoundRecord
from draftproof.target.base import Feed, Rows, Target
from draftproof.verify.base import Origin

ROWS = 256  # rows of a scoring pass held at a time


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished text, whoever produced it.

    origins: of each token, () where the engine does not say. q: what each token was drafted from, None where nothing
    was drafted; () where the engine does not say.
    """

    prompt: Seq[int]
    tokens: Seq[int]
    origins: Seq[Origin] = ()
    q: Seq[Dist | None] = ()

    def __post_init__(self) -> None:
        if not len(self.prompt):
            raise InvalidValue("an answer without a prompt", "give at least one token before it")
        for name, values in (("origins", self.origins), ("q", self.q)):
            if len(values) not in (0, len(self.tokens)):
                raise InvalidValue(f"{len(values)} {name} for {len(self.tokens)} tokens", "one for each, or none")


class DraftRecorder:
    """An engine observer that keeps q of every drafted position that was reached (float32: q only aims the bets)."""

    def __init__(self) -> None:
        self.q: dict[tuple[int, int], Dist] = {}

    def round(self, record: RoundRecord, settled: Seq[Settled]) -> None:
        for s in settled:
            for k, q in enumerate(s.drafted.q[: s.emitted]):
                kept = q if q.token is not None else Dist(q.probs.astype(np.float32), ids=q.ids, size=q.size)
                self.q[s.request, s.start + k] = kept

    def answer(self, request: int, prompt: Seq[int], result: Result) -> Answer:
        """The answer of one request, with its q; what was recorded of it is given up."""
        positions = range(len(prompt), len(prompt) + len(result.token_ids))
        q = [self.q.pop((request, position), None) for position in positions]
        return Answer(tuple(prompt), result.token_ids, result.origins, q)


def run_engine(engine: Engine, prompts: Seq[Seq[int]], params: Seq[SamplingParams]) -> list[Answer]:
    """The engine's answers to prompts (ids), decoded together, with what it says about its drafts."""
    recorder = DraftRecorder()
    engine.observers.append(recorder)
    try:
        waiting = {engine.add(list(p), s): i for i, (p, s) in enumerate(zip(prompts, params, strict=True))}
        answers: dict[int, Answer] = {}
        while len(answers) < len(prompts):
            for event in engine.round():
                if isinstance(event, FinishEvent):
                    i = waiting[event.request]
                    answers[i] = recorder.answer(event.request, prompts[i], event.result)
    finally:
        engine.observers.remove(recorder)
    return [answers[i] for i in range(len(prompts))]


def target_distributions(
    target: Target, answer: Answer, params: SamplingParams, controls: Controls | None = None
) -> Iterator[Dist]:
    """p at every token of the answer, in order. controls: those of the request, if they need more than `params`."""
    used = controls or Controls(params, target.vocab_size, prompt=answer.prompt, eos_ids=target.eos_ids)
    handle = target.open()
    try:
        pending = list(answer.prompt)
        for start in range(0, len(answer.tokens), ROWS):
            part = list(answer.tokens[start : start + ROWS])
            [rows] = target.score([Feed(handle, [*pending, *part[:-1]], rows=len(part))])
            yield from _through_controls(rows, part, used)
            pending = part[-1:]
    finally:
        target.close(handle)


def _through_controls(rows: Rows, tokens: Seq[int], controls: Controls) -> Iterator[Dist]:
    for i, token in enumerate(tokens):
        yield controls.distribution(rows, i, ())
        controls.commit(token)


def feed(test: SequentialTest, target: Target, answer: Answer, params: SamplingParams) -> None:
    """Put every token of an answer to the test, with what is known about its position."""
    text = [*answer.prompt, *answer.tokens]
    previous: Origin | None = None
    for i, p in enumerate(target_distributions(target, answer, params)):
        at = len(answer.prompt) + i
        origin = answer.origins[i] if answer.origins else None
        q = answer.q[i] if answer.q else None
        test.update(text[at], p, q=q, origin=origin, previous=previous, history=text[max(0, at - 64) : at])
        previous = origin
