"""The prefix schedule: how much of each drafted block is verified, decided from the drafter's own confidences.

It maximises tokens per second of the round, tau / seconds(rows): tau counts every request's own token and the survival
a = c_1 ... c_k of each admitted draft; seconds are those of the whole round, draft and target. Greedy, largest survival
first, stopping at the first token that does not raise it.

Guarantees: non-anticipating (algorithms.md, sections 7 and 7.1). The heap holds one entry per request, its next
survival; the confidence of position k + 1, which depends on token k, is read only after position k was admitted, so
nothing unrevealed can be looked at. Equal survivals are taken by position, then by request. What it does not do: search
past a dip, which would let a drafted token decide whether it is verified (the fault `retrospective_schedule`).

The `budget` form is for jagged cost curves and engines that must know a pass's size early: the number of rows comes
from the confidences of earlier rounds, and this round's largest survivals fill it.

Where a pass of another shape than the last one is dear, both forms verify as many tokens as fit in a width that past
rounds have decided (`width`), and draft no more than that. What a wider one would make follows from past acceptance.
Elsewhere they draft as much of a block as would have made most in past rounds (`reach`).

Source: dspark.md, "Scheduler"; arXiv:2607.05147.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from itertools import islice
from typing import Literal

from draftproof.draft.base import Proposal
from draftproof.errors import BadProposal, InvalidValue
from draftproof.schedule.acceptance import Acceptance
from draftproof.schedule.allocate import best_rows
from draftproof.schedule.balance import LONG, Balance
from draftproof.schedule.base import RoundRecord, Slot
from draftproof.schedule.costs import CostCurve, learn_pass
from draftproof.schedule.fixed import LONGEST
from draftproof.schedule.reach import ROUNDS, Reach
from draftproof.schedule.renewal import Renewal
from draftproof.schedule.seconds import DraftSeconds, RestSeconds, Seconds
from draftproof.schedule.width import Width

Form = Literal["causal", "budget"]
PROBE_SHARE = 0.01  # of all time, spent on trying a drafter that is switched off
WHOLE_SHARE = 0.003  # of all time, spent on drafting more of a block than is best, to see it
MEMORY = 0.9  # weight kept by the running average of rows
FIRST = 3  # tokens drafted at first, where a width is kept


class PrefixSchedule:
    """longest: most tokens to draft. costs: the target's cost curve. draft_seconds: of drafting a round, if known.
    reach: rounds that decide how much of a block is drafted (`reach`). measure_again: see `renewal`.

    With costs that do not refine themselves (`CostCurve(refine=False)`) no clock is read: proofs and simulations.
    """

    def __init__(
        self,
        costs: CostCurve,
        longest: int = 8,
        *,
        form: Form = "causal",
        draft_seconds: float | None = None,
        reach: int = ROUNDS,
        measure_again: Callable[[], CostCurve] | None = None,
    ) -> None:
        if not 0 <= longest <= LONGEST:
            raise InvalidValue(f"draft length {longest}", f"0 to {LONGEST}; 0 is plain decoding")
        if form not in ("causal", "budget"):
            raise InvalidValue(f"form={form!r}", "'causal' or 'budget'")
        if draft_seconds is not None and not draft_seconds >= 0:
            raise InvalidValue(f"draft_seconds={draft_seconds}", ">= 0")
        self.costs = costs
        self.longest = longest
        self.form = form
        self.acceptance = Acceptance()
        self._block_seconds = Seconds(draft_seconds)
        self._rest = RestSeconds()
        self._elapsed = 0.0
        self._probed = 0.0
        self._explored = 0.0
        self._probe_short = True  # a try of one token and a whole block in turn: what drafting costs by its length
        self._rows_per_request: float | None = None
        self._balance = Balance()
        self._renewal = Renewal(measure_again)
        self._reach = Reach(longest, reach)
        self._width = Width(longest, now=min(longest, FIRST) + 1)
        self._drafting = DraftSeconds()  # of late, for widths
        self._by_token = DraftSeconds(level=1.0, memory=LONG)  # what a block's end costs, if it costs anything
        self._off: dict[int, str] = {}

    @property
    def name(self) -> str:
        """As written on the command line."""
        return "prefix" if self.form == "causal" else "prefix-budget"

    # -- the protocol ------------------------------------------------------------------------------------

    @property
    def width(self) -> int:
        """See `schedule.base.Steady`."""
        return self._width.now if self.costs.switch else 0

    def lengths(self, slots: Seq[Slot]) -> list[int]:
        """As much of the block as is worth it (`reach`), or none of it where the rounds of late made fewer tokens a
        second than plain ones would.
        """
        self._renewal.join(slot.id for slot in slots)
        most = self.longest if self.costs.switch else self._ask()
        caps = [min(most, slot.room) for slot in slots]
        if self.costs.switch and self._width.now > 1:
            return [min(cap, self._width.now - 1) for cap in caps]
        pays = self._balance.pays or not self._reach.known
        if not any(caps) or (pays and not self.costs.switch):
            return caps
        drafting = self._block_seconds.expected
        extra = drafting + 2 * self.costs.switch
        if self._probed + extra <= PROBE_SHARE * self._elapsed:
            self._probed += extra
            if self.costs.switch and self._probe_short:
                caps = [min(cap, 1) for cap in caps]
            self._probe_short = not self._probe_short
            return caps
        for slot, cap in zip(slots, caps, strict=True):
            if cap:
                self._off[slot.id] = f"{slot.drafter} does not pay: {self._balance}"
        return [0] * len(slots)

    def admit(self, slots: Seq[Slot], proposals: Seq[Proposal]) -> list[int]:
        """How much of each proposal to verify."""
        for slot, proposal in zip(slots, proposals, strict=True):
            if proposal.tokens:
                self._off.pop(slot.id, None)
        if self.costs.switch:
            most = max(self._width.now - 1, 1)  # one where a drafter that is off is tried again
            return [min(len(proposal.tokens), most) for proposal in proposals]
        survivals = [self._survivals(proposal) for proposal in proposals]
        if self.form == "budget":
            return self._fill(survivals, self._budget(len(slots)))
        return self._climb(survivals, _context(slots))

    def observe(self, record: RoundRecord) -> None:
        """Learn acceptance, seconds, and (budget form) how many rows the confidences of this round were worth."""
        for proposal, verified, accepted in zip(record.proposals, record.admitted, record.accepted, strict=True):
            self.acceptance.observe(proposal.drafter, proposal.stratum, verified, accepted)
        context, requests = _context(record.slots), len(record.slots)
        drafted = any(proposal.tokens for proposal in record.proposals)
        learn_pass(self.costs, record, self.width)
        if self.costs.refine:
            self._elapsed += record.target_seconds + record.draft_seconds + record.other_seconds
            self._rest.observe(record.other_seconds, judged=any(record.admitted))
            if drafted:
                self._block_seconds.observe(record.draft_seconds)
        if not drafted:
            return
        longest = max(len(p.tokens) for p in record.proposals)
        block = record.draft_seconds if self.costs.refine else self._block_seconds.expected
        for line in (self._drafting, self._by_token):
            line.observe(longest, block)
        drafting = self._by_token(longest) or self._block_seconds.expected
        before = self._reach.known and self._reach.choice
        if self._reach.whole:
            self._explored += self._more_than(self._reach.choice) if self._reach.known else 0.0
            self._reach.observe(self._by_length(record))
        else:
            self._reach.passed()
        if self._reach.known and self._reach.choice != before:
            self._balance.forget()
        rows = max(requests + sum(record.admitted), requests * self.width)
        spent = self._round(rows, context, requests) + drafting
        pairs = zip(record.proposals, record.admitted, strict=True)
        promised = sum(sum(islice(self._survivals(proposal), n)) for proposal, n in pairs)
        self._balance.trust(promised, sum(record.accepted))
        if self.costs.switch or not self._reach.whole or self._reach.choice == self.longest:
            self._balance.add(requests, promised, spent, self._round(requests, context, requests))
        if self.costs.switch:
            # The round is over: its confidences are history now.
            self._width.next(
                [self._beyond(proposal) for proposal in record.proposals],
                lambda width: self._round(requests * width, context, requests) + (self._drafting(width - 1) or 0.0),
                self.costs.switch,
                free=self.costs.changes(requests * self._width.now),  # the round read a prompt
            )
        elif self.form == "budget":
            # The round is over: all its confidences are history now, and searching them all is allowed.
            survivals = [list(self._survivals(proposal)) for proposal in record.proposals]
            best = best_rows(survivals, lambda rows: self._round(rows, context, requests) + drafting)
            worth = sum(best.lengths) / requests
            self._rows_per_request = worth if self._rows_per_request is None else _blend(self._rows_per_request, worth)

    def off_reason(self, id: int) -> str | None:
        """Why nothing is drafted for this request now."""
        return "the draft length is 0" if not self.longest else self._off.get(id)

    def forget(self, id: int) -> None:
        """The request has ended."""
        self._off.pop(id, None)
        self.costs = self._renewal.leave(id, self.costs, self._elapsed)

    # -- decisions ---------------------------------------------------------------------------------------

    def _climb(self, survivals: Seq[Iterator[float]], context: int) -> list[int]:
        """The causal form: admit while the rate rises."""
        drafting = self._block_seconds.expected
        requests = len(survivals)
        tokens: float = requests
        rows = requests
        rate = tokens / (self._round(rows, context, requests) + drafting)
        lengths = [0] * requests
        heap = _first_entries(survivals)
        while heap:
            survival, position, request = heapq.heappop(heap)
            raised = (tokens - survival) / (self._round(rows + 1, context, requests) + drafting)
            if not raised > rate:
                break
            tokens, rows, rate = tokens - survival, rows + 1, raised
            lengths[request] = position + 1
            _reveal(heap, survivals[request], position + 1, request)
        return lengths

    def _fill(self, survivals: Seq[Iterator[float]], budget: int) -> list[int]:
        """The budget form: the `budget` largest survivals."""
        lengths = [0] * len(survivals)
        heap = _first_entries(survivals) if budget else []
        while heap and sum(lengths) < budget:
            _, position, request = heapq.heappop(heap)
            lengths[request] = position + 1
            _reveal(heap, survivals[request], position + 1, request)
        return lengths

    def _budget(self, requests: int) -> int:
        worth = self.longest if self._rows_per_request is None else self._rows_per_request
        return round(worth * requests)

    def _survivals(self, proposal: Proposal) -> Iterator[float]:
        """a_1, a_2, ... of a proposal, each computed when it is asked for."""
        alive: float = 1
        for k in range(len(proposal.tokens)):
            if proposal.confidence is None:
                alive = alive * self.acceptance.estimate(proposal.drafter, proposal.stratum, k)
            else:
                confidence = proposal.confidence[k]
                if not 0 <= confidence <= 1:
                    raise BadProposal(
                        f"drafter {proposal.drafter!r}: confidence {confidence} at position {k}", "it is in [0, 1]"
                    )
                alive = alive * confidence
            yield alive

    def _ask(self) -> int:
        """How much of a block to draft; a whole one, to see more of it, costs at most a share of all time."""
        extra = self._more_than(self._reach.choice)
        return self._reach.ask(afford=self._explored + extra <= WHOLE_SHARE * self._elapsed)

    def _more_than(self, tokens: int) -> float:
        """Seconds that drafting a whole block takes more than drafting so many tokens."""
        return (self._by_token(self.longest) or 0.0) - (self._by_token(tokens) or 0.0)

    def _by_length(self, record: RoundRecord) -> list[tuple[float, float]]:
        """Expected tokens and seconds of a past round, had 1, 2, ... tokens been drafted; what was not verified would
        not have been.
        """
        requests, context, kept = len(record.slots), _context(record.slots), self._balance.kept
        rows = [list(islice(self._survivals(p), n)) for p, n in zip(record.proposals, record.admitted, strict=True)]
        tokens, verified, made = float(requests), requests, list[tuple[float, float]]()
        for k in range(max(len(p.tokens) for p in record.proposals)):
            column = [row[k] for row in rows if k < len(row)]
            tokens, verified = tokens + kept * sum(column), verified + len(column)
            made.append((tokens, self._round(verified, context, requests) + (self._by_token(k + 1) or 0.0)))
        return made

    def _beyond(self, proposal: Proposal) -> list[float]:
        """Survivals of a past proposal, as many as were kept of such promises, continued to the longest draft."""
        known = [self._balance.kept * a for a in self._survivals(proposal)]
        alive = known[-1] if known else 0.0
        for k in range(len(known), self.longest):
            alive *= self.acceptance.estimate(proposal.drafter, proposal.stratum, k)
            known.append(alive)
        return known

    def _round(self, rows: int, context: int, requests: int) -> float:
        return self.costs.seconds(rows, context) + self._rest(judged=rows > requests)


_Entry = tuple[float, int, int]
"""(-survival, position, request): the heap's order is the rule for ties."""


def _first_entries(survivals: Seq[Iterator[float]]) -> list[_Entry]:
    heap: list[_Entry] = []
    for request, values in enumerate(survivals):
        _reveal(heap, values, 0, request)
    return heap


def _reveal(heap: list[_Entry], survivals: Iterator[float], position: int, request: int) -> None:
    """Read the next survival of a request, whose tokens before `position` are all admitted."""
    survival = next(survivals, None)
    if survival is not None:
        heapq.heappush(heap, (-survival, position, request))


def _context(slots: Seq[Slot]) -> int:
    return max((slot.length for slot in slots), default=0)


def _blend(known: float, new: float) -> float:
    return MEMORY * known + (1 - MEMORY) * new
