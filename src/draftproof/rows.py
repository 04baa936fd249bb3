"""Rows made into distributions: the target's for the verifier, a draft model's for the drafter.

Guarantees: both go through the request's controls, with the history the row would have had in plain decoding. A row
after which no token is allowed (a dead end of the grammar) does not disturb what is decided before it: it is given
as a point mass, and the engine ends the answer there. That is exact because a verifier's first tokens follow p
whatever the rows after them hold (the round lemma, algorithms.md section 0). What it does not do: decide anything.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from draftproof.chance import Streams
from draftproof.dist import Dist
from draftproof.logprobs import TokenLogprob, token_logprob
from draftproof.sampling.controls import DeadEnd
from draftproof.sampling.legal import Number
from draftproof.sampling.scores import Scores
from draftproof.sequence import Sequence
from draftproof.target.base import LogitRows, Rows, check_logits
from draftproof.verify.base import Verifier


class TargetRows:
    """p of each row, made when a verifier asks for it and kept for the round (`verify.base.RowSource`).

    dead: the first row after which no token is allowed, among those asked for; None if there is none.
    """

    __slots__ = ("_drafted", "_known", "_rows", "_sequence", "_who", "dead")

    def __init__(self, sequence: Sequence, drafted: Seq[int], rows: Rows, who: str) -> None:
        self._sequence = sequence
        self._drafted = drafted
        self._rows = rows
        self._who = who
        self._known: dict[int, Dist] = {}
        self.dead: int | None = None

    def p(self, i: int) -> Dist:
        known = self._known.get(i)
        if known is None:
            peak = None
            if isinstance(self._rows, LogitRows):
                position = len(self._sequence.tokens) + i
                peak = check_logits(self._rows.values[i], position=position, row=i, who=self._who)
            try:
                known = self._sequence.controls.distribution(self._rows, i, self._drafted[:i], peak=peak)
            except DeadEnd:
                self.dead = i if self.dead is None else min(self.dead, i)
                known = _anything(self._rows)
            self._known[i] = known
        return known

    def logprob(self, i: int, token: int) -> TokenLogprob | None:
        """What is reported of a token decided on row i; None unless the request asked for it.

        To be called when the i tokens before it have been committed: they are history now, not drafted any more.
        """
        params = self._sequence.params
        if params.logprobs is None:
            return None
        if params.temperature and not params.raw_logprobs:
            return token_logprob(Scores.of_dist(self.p(i)), token, params.logprobs)
        scores = self._sequence.controls.scores(self._rows, i, (), raw=params.raw_logprobs)
        return token_logprob(scores, token, params.logprobs)


class DraftSampler:
    """What a drafter may use of its request: the controls and the proposal stream (`draft.base.Sampler`)."""

    __slots__ = ("_sequence", "_streams", "_verifier")

    def __init__(self, sequence: Sequence, streams: Streams, verifier: Verifier) -> None:
        self._sequence = sequence
        self._streams = streams
        self._verifier = verifier

    @property
    def temperature(self) -> Number:
        return self._sequence.params.temperature

    @property
    def draws(self) -> bool:
        # Verifiers that allow any schedule do not weigh q.
        ratio = not self._verifier.any_schedule
        return ratio and self.temperature > 0 and not self._sequence.controls.narrow

    def distribution(self, rows: Rows, row: int, drafted: Seq[int], temperature: float | None = None) -> Dist:
        try:
            return self._sequence.controls.distribution(rows, row, drafted, temperature)
        except DeadEnd:
            return _anything(rows)  # a token drawn from it is judged like any other

    def draw(self, q: Dist, index: int) -> int:
        return self._verifier.propose(q, self._streams, len(self._sequence.tokens) + index)


def _anything(rows: Rows) -> Dist:
    """A distribution for a row that has none; which one makes no difference, as long as it looks at no token."""
    return Dist.point(0, rows.vocab_size)
