"""Wrong rules as running parts: verifiers, drafters, schedules and targets that each carry one fault of the field.

What it is for: showing that a check can fail. Each class differs from the right one in the one line its docstring
names, and works in the production engine, on tables and on real models alike. What it is not for: anything else;
nothing in the package uses these outside `draftproof.proof` and the tests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from fractions import Fraction

import numpy as np

from draftproof.chance import Purpose, Streams
from draftproof.dist import Dist, Prob, excess, residual
from draftproof.draft.base import DraftRequest, Proposal, StatelessDrafter
from draftproof.draft.scripted import Script, ScriptedDrafter
from draftproof.schedule.base import Slot
from draftproof.schedule.fixed import FixedSchedule
from draftproof.target.base import Feed, LogitRows, ProbRows, Rows
from draftproof.target.table import TableTarget
from draftproof.verify.base import Drafted, Origin, RowSource, Verdict
from draftproof.verify.token import TokenVerifier

# -- verifiers -------------------------------------------------------------------------------------------------


class RuleMutant(TokenVerifier):
    """The token rule with its three ingredients exposed; subclasses replace one of them."""

    def accept(self, p: Dist, q: Dist, token: int) -> Prob:
        p_x, q_x = p.prob(token), q.prob(token)
        return 1 if p_x >= q_x else p_x / q_x

    def replace(self, p: Dist, q: Dist, token: int) -> Dist:
        return residual(p, q) or p

    def last(self, rows: RowSource, count: int) -> Dist:
        return rows.p(count)

    def verify(self, drafted: Drafted, rows: RowSource, streams: Streams, start: int) -> Verdict:
        for i, (token, q) in enumerate(zip(drafted.tokens, drafted.q, strict=True)):
            p = rows.p(i)
            if not streams.at(Purpose.ACCEPT, start + i).flip(self.accept(p, q, token)):
                replacement = streams.at(Purpose.RESIDUAL, start + i).draw(self.replace(p, q, token))
                return Verdict(i, replacement, Origin.RESIDUAL)
        count = len(drafted.tokens)
        token = streams.at(Purpose.BONUS, start + count).draw(self.last(rows, count))
        return Verdict(count, token, Origin.BONUS if count else Origin.PLAIN)


class ResidualMinusDraftedOnly(RuleMutant):
    """The residual subtracts q at the drafted token and nowhere else."""

    def replace(self, p: Dist, q: Dist, token: int) -> Dist:
        only = Dist(np.array([q.prob(token)], dtype=q.probs.dtype), ids=np.array([token]), size=p.size)
        return residual(p, only) or p


class ReplacementFromP(RuleMutant):
    """The replacement is drawn from p itself."""

    def replace(self, p: Dist, q: Dist, token: int) -> Dist:
        return p


class SoftmaxedResidual(RuleMutant):
    """The positive part of p - q goes through a softmax instead of being divided by its sum."""

    def replace(self, p: Dist, q: Dist, token: int) -> Dist:
        rest, _ = excess(p, q)
        weights = np.exp(rest.dense().astype(np.float64))
        return Dist(weights / weights.sum())


class InvertedRatio(RuleMutant):
    """Accepts with min(1, q/p)."""

    def accept(self, p: Dist, q: Dist, token: int) -> Prob:
        return RuleMutant.accept(self, q, p, token)


class ResidualReversed(RuleMutant):
    """The residual is max(0, q - p)."""

    def replace(self, p: Dist, q: Dist, token: int) -> Dist:
        return residual(q, p) or p


class AcceptIfLikelier(RuleMutant):
    """Accepts iff p(x) >= q(x)."""

    def accept(self, p: Dist, q: Dist, token: int) -> Prob:
        return int(p.prob(token) >= q.prob(token))


class AcceptIfTypical(RuleMutant):
    """Accepts iff p(x) is at least a fixed threshold (typical acceptance, as a lossy engine does it)."""

    threshold = Fraction(3, 10)

    def accept(self, p: Dist, q: Dist, token: int) -> Prob:
        return int(p.prob(token) >= self.threshold)


class BonusFromPreviousRow(RuleMutant):
    """The bonus token is drawn from the row of the last drafted token."""

    def last(self, rows: RowSource, count: int) -> Dist:
        return rows.p(max(count - 1, 0))


class BonusTooCold(RuleMutant):
    """The bonus token is drawn at half the temperature."""

    def last(self, rows: RowSource, count: int) -> Dist:
        p = rows.p(count)
        if count == 0:
            return p
        squared = p.probs * p.probs
        return Dist(squared / squared.sum(), ids=p.ids, size=p.size)


class MatchThenRedraw(TokenVerifier):
    """Keeps the draft iff it equals a draw from p, but on a mismatch draws again instead of emitting that draw."""

    def verify(self, drafted: Drafted, rows: RowSource, streams: Streams, start: int) -> Verdict:
        for i, token in enumerate(drafted.tokens):
            if streams.at(Purpose.MATCH, start + i).draw(rows.p(i)) != token:
                again = streams.at(Purpose.RESIDUAL, start + i).draw(rows.p(i))
                return Verdict(i, again, Origin.RESIDUAL)
        count = len(drafted.tokens)
        token = streams.at(Purpose.BONUS, start + count).draw(rows.p(count))
        return Verdict(count, token, Origin.BONUS if count else Origin.PLAIN)


class SiblingsStaleResidual(TokenVerifier):
    """A second candidate for a rejected position is judged against p, not against the residual of the first."""

    def verify(self, drafted: Drafted, rows: RowSource, streams: Streams, start: int) -> Verdict:
        if not drafted.tokens:
            return super().verify(drafted, rows, streams, start)
        p, q = rows.p(0), drafted.q[0]
        sibling = streams.at(Purpose.OTHER, start).draw(q)
        for purpose, token in ((Purpose.ACCEPT, drafted.tokens[0]), (Purpose.SCHEDULE, sibling)):
            p_x, q_x = p.prob(token), q.prob(token)
            if streams.at(purpose, start).flip(1 if p_x >= q_x else p_x / q_x):
                return Verdict(0, token, Origin.RESIDUAL)
        return Verdict(0, streams.at(Purpose.RESIDUAL, start).draw(residual(p, q) or p), Origin.RESIDUAL)


class SharedStream(TokenVerifier):
    """The residual is drawn from the stream the proposal came from."""

    def verify(self, drafted: Drafted, rows: RowSource, streams: Streams, start: int) -> Verdict:
        for i, (token, q) in enumerate(zip(drafted.tokens, drafted.q, strict=True)):
            p = rows.p(i)
            if not streams.at(Purpose.ACCEPT, start + i).flip(min(1, p.prob(token) / q.prob(token))):
                rest = residual(p, q) or p
                return Verdict(i, streams.at(Purpose.PROPOSAL, start + i).draw(rest), Origin.RESIDUAL)
        count = len(drafted.tokens)
        return Verdict(count, streams.at(Purpose.BONUS, start + count).draw(rows.p(count)), Origin.BONUS)


# -- drafters --------------------------------------------------------------------------------------------------


class ArgmaxWithSoftQ(StatelessDrafter):
    """Proposes the argmax of its distribution and reports the whole distribution as q."""

    name = "argmax-with-soft-q"

    def __init__(self, script: Script) -> None:
        self._script = script

    def __deepcopy__(self, memo: dict[int, object]) -> ArgmaxWithSoftQ:
        return self

    def drawn_from(self, q: Dist) -> Dist:
        """The law the token is really drawn from."""
        return Dist.point(q.top(1)[0][0], q.size)

    def propose(self, requests: Seq[DraftRequest]) -> list[Proposal]:
        return [self._one(request) for request in requests]

    def _one(self, request: DraftRequest) -> Proposal:
        tokens: list[int] = []
        laws: list[Dist | None] = []
        while len(tokens) < request.limit:
            q = self._script(tuple(request.tokens), tuple(tokens))
            if not isinstance(q, Dist):
                break
            tokens.append(request.sampler.draw(self.drawn_from(q), len(tokens)))
            laws.append(q)
        return Proposal(tokens, laws, self.name)


class TruncatedWithRawQ(ArgmaxWithSoftQ):
    """Draws from its top two tokens and reports the untruncated distribution as q."""

    name = "truncated-with-raw-q"

    def drawn_from(self, q: Dist) -> Dist:
        ids = np.array(sorted(token for token, _ in q.top(2)))
        kept = q.dense()[ids]
        return Dist(kept / kept.sum(), ids=ids, size=q.size)


class ColderThanReported(ArgmaxWithSoftQ):
    """Draws at half the temperature of the q it reports."""

    name = "colder-than-reported"

    def drawn_from(self, q: Dist) -> Dist:
        squared = q.dense() * q.dense()
        return Dist(squared / squared.sum())


class DropsBeforeTheUnsure(ScriptedDrafter):
    """Ends a block where the confidence is low, and takes the token along that made it so: drawn, then dropped."""

    def propose(self, requests: Seq[DraftRequest]) -> list[Proposal]:
        return [self._ended(p) for p in super().propose(requests)]

    def _ended(self, proposal: Proposal) -> Proposal:
        for k, token in enumerate(proposal.tokens):
            if token == 1:  # what follows token 1 is unlikely to survive
                return proposal.cut(k)
        return proposal


# -- schedules -------------------------------------------------------------------------------------------------


class DropSeenToken(FixedSchedule):
    """Throws a drafted token away after seeing that its own probability was below one half."""

    def admit(self, slots: Seq[Slot], proposals: Seq[Proposal]) -> list[int]:
        lengths = []
        for proposal in proposals:
            laws = proposal.q or [None] * len(proposal.tokens)
            kept = 0
            for token, q in zip(proposal.tokens, laws, strict=True):
                if q is not None and q.prob(token) < Fraction(1, 2):
                    break
                kept += 1
            lengths.append(kept)
        return lengths


class RetrospectiveSchedule(FixedSchedule):
    """Searches all prefixes of the live confidences, past a dip (the trap of the DSpark paper's appendix)."""

    def __init__(self, length: int, passes_per_second: Seq[float]) -> None:
        super().__init__(length)
        self.passes_per_second = tuple(passes_per_second)

    def admit(self, slots: Seq[Slot], proposals: Seq[Proposal]) -> list[int]:
        return [self._best(proposal) for proposal in proposals]

    def _best(self, proposal: Proposal) -> int:
        survival, tokens, best, best_rate = 1.0, 1.0, 0, self.passes_per_second[0]
        for k, confidence in enumerate(proposal.confidence or [1.0] * len(proposal.tokens)):
            survival *= confidence
            tokens += survival
            rate = tokens * self.passes_per_second[k + 1]
            if rate > best_rate:
                best, best_rate = k + 1, rate
        return best


class ConfidentDrafter(ScriptedDrafter):
    """A scripted drafter with confidences: confidence(drafted tokens before the position) -> number."""

    def __init__(self, script: Script, confidence: dict[tuple[int, ...], float]) -> None:
        super().__init__(script, name="confident")
        self._confidence = confidence

    def propose(self, requests: Seq[DraftRequest]) -> list[Proposal]:
        return [
            Proposal(p.tokens, p.q, p.drafter, [self._confidence[tuple(p.tokens[:k])] for k in range(len(p.tokens))])
            for p in super().propose(requests)
        ]


# -- targets ---------------------------------------------------------------------------------------------------


class StaleCacheTarget(TableTarget):
    """Rollback moves the length and leaves the rejected tokens in the cache: later rows still see them."""

    def rollback(self, handle: int, length: int) -> None:
        self._stale[handle] = self._stale.get(handle, 0) + self.length(handle) - length

    def length(self, handle: int) -> int:
        return super().length(handle) - self._stale.get(handle, 0)

    def open(self) -> int:
        self._stale: dict[int, int] = getattr(self, "_stale", {})
        return super().open()


class ShiftedRowsTarget(TableTarget):
    """Every row after the first of a pass is the one before it."""

    def score(self, feeds: Seq[Feed]) -> list[Rows]:
        shifted: list[Rows] = []
        for rows in super().score(feeds):
            values = np.concatenate([rows.values[:1], rows.values[:-1]])
            shifted.append(ProbRows(values) if isinstance(rows, ProbRows) else LogitRows(values))
        return shifted


def total_variation(a: Seq[Prob], b: Seq[Prob]) -> float:
    """Half the summed absolute difference."""
    return math.fsum(abs(float(x) - float(y)) for x, y in zip(a, b, strict=True)) / 2
