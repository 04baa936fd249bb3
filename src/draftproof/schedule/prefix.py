"""The prefix schedule: how much of each drafted block is verified, decided from the drafter's own confidences.

It maximises tokens per second of the round, tau / seconds(rows): tau counts every request's own token and the survival
a = c_1 ... c_k of each admitted draft, times the share of such promises that was kept in past rounds (`trust`); seconds
are those of the whole round, draft and target. Greedy, largest survival first, stopping at the first token that does
not raise it (`admission`).

Guarantees: non-anticipating (algorithms.md, sections 7 and 7.1): what is not decided from past rounds is decided token
by token, and a confidence is read only after everything before it was admitted. What it does not do: search past a dip.

The `budget` form is for jagged cost curves and engines that must know a pass's size early: the number of rows comes
from the confidences of earlier rounds, and this round's largest survivals fill it.

Where a pass of another shape than the last one is dear, both forms verify as many tokens as fit in a width that past
rounds have decided (`width`), and draft no more than that. What a wider one would make follows from past acceptance.

A drafter with confidences is told when to end a block: at the first token whose survival is worth less than the seconds
of drafting and verifying it (`thresholds`, from past rounds); one without gets the length that past acceptance is worth
by the same measure. Where drafting does not pay, one request is asked for a block now and then.

Source: dspark.md, "Scheduler"; arXiv:2607.05147.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Literal

from draftproof.draft.base import Proposal
from draftproof.errors import BadProposal, InvalidValue
from draftproof.schedule.acceptance import Acceptance
from draftproof.schedule.admission import climb, fill
from draftproof.schedule.allocate import best_rows
from draftproof.schedule.balance import Balance
from draftproof.schedule.base import RoundRecord, Slot, worth_drafting
from draftproof.schedule.costs import CostCurve, learn_pass
from draftproof.schedule.fixed import LONGEST
from draftproof.schedule.later import AT_ONCE, TOGETHER, Later
from draftproof.schedule.renewal import Renewal
from draftproof.schedule.seconds import DraftSeconds, RestSeconds, Seconds
from draftproof.schedule.trust import Trust
from draftproof.schedule.width import Width, by_position

Form = Literal["causal", "budget"]
PROBE_SHARE = 0.003  # of all time, lost by trying a drafter that is switched off
MEMORY = 0.9  # weight kept by the running average of rows
FIRST = 3  # tokens drafted at first, where a width is kept
EVIDENCE = 8  # rounds that drafted, before they decide whether drafting pays


class PrefixSchedule:
    """longest: most tokens to draft. costs: the target's cost curve. draft_seconds: of drafting a round, if known.
    evidence: rounds that draft, whole blocks and halves in turn, before anything is decided. at_once, together:
    `later`. measure_again: `renewal`.

    With costs that do not refine themselves (`CostCurve(refine=False)`) no clock is read: proofs and simulations.
    """

    def __init__(
        self,
        costs: CostCurve,
        longest: int = 8,
        *,
        form: Form = "causal",
        draft_seconds: float | None = None,
        evidence: int = EVIDENCE,
        at_once: int = AT_ONCE,
        together: int = TOGETHER,
        measure_again: Callable[[], CostCurve] | None = None,
    ) -> None:
        if not 0 <= longest <= LONGEST:
            raise InvalidValue(f"draft length {longest}", f"0 to {LONGEST}; 0 is plain decoding")
        if form not in ("causal", "budget"):
            raise InvalidValue(f"form={form!r}", "'causal' or 'budget'")
        if draft_seconds is not None and not draft_seconds >= 0:
            raise InvalidValue(f"draft_seconds={draft_seconds}", ">= 0")
        if evidence < 0:
            raise InvalidValue(f"evidence={evidence}", "rounds >= 0")
        self.costs = costs
        self.longest = longest
        self.form = form
        self._evidence = evidence
        self.acceptance = Acceptance()
        self._known_seconds = draft_seconds or 0.0
        self._drafting = DraftSeconds()
        self._rest = RestSeconds()
        self._elapsed = 0.0
        self._probed = 0.0
        self._tries = 0
        self._tried: int | None = None  # the one request that was asked for a block in this round, by place
        self._try_seconds = Seconds()
        self._drafted = 0  # rounds
        self._since = 0  # rounds since the last one that drafted
        self._silent: tuple[str, int] | None = None  # drafter and stratum of late, if it gave no confidences
        self._rows_per_request: float | None = None
        self._later = Later[tuple[RoundRecord, int | None]](at_once, together)
        self._trust = Trust(max(longest, 1))
        self._balance = Balance(self._trust)
        self._renewal = Renewal(measure_again)
        self._width = Width(longest, now=min(longest, FIRST) + 1)
        self._plans: dict[tuple[int, int], _Plan] = {}  # until more is learnt
        self._off: dict[int, str] = {}  # the drafters of requests for which nothing is drafted

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
        """A block each; where drafting does not pay, none, or one for one request."""
        self._renewal.join(slot.id for slot in slots)
        self._tried = None
        caps = [min(self.longest, slot.room) for slot in slots]
        if not any(caps):
            return caps
        plan = self._plan(slots)
        if plan.drafts:
            return [min(cap, plan.most) for cap in caps]
        extra = self._try_seconds.value or self._block_seconds / len(slots)
        if self._probed + extra <= PROBE_SHARE * self._elapsed:
            self._tries += 1
            places = [i for i, cap in enumerate(caps) if cap]
            self._tried = places[self._tries % len(places)]
            most = self.longest if self.costs.switch else plan.most
            return [min(cap, most) if i == self._tried else 0 for i, cap in enumerate(caps)]
        for slot, cap in zip(slots, caps, strict=True):
            if cap:
                self._off[slot.id] = slot.drafter
        return [0] * len(slots)

    def thresholds(self, slots: Seq[Slot]) -> Seq[float]:
        """See `schedule.base.Stopping`. The first token is always worth drafting: its block is paid for by then."""
        return self._plan(slots).thresholds

    def admit(self, slots: Seq[Slot], proposals: Seq[Proposal]) -> list[int]:
        """How much of each proposal to verify."""
        if not any(map(_length, proposals)):
            return [0] * len(slots)
        if self._off:
            for slot, proposal in zip(slots, proposals, strict=True):
                if proposal.tokens:
                    self._off.pop(slot.id, None)
        if self.costs.switch:
            # Where a drafter that is off is tried again, its confidences say enough: a wider pass would be two changes.
            return [
                min(len(p.tokens), self._width.now - 1 if self._width.now > 1 else p.confidence is None)
                for p in proposals
            ]
        survivals = [self._believed(proposal) for proposal in proposals]
        if self.form == "budget":
            return fill(survivals, self._budget(len(slots)))
        return climb(survivals, self._plan(slots).seconds)

    def observe(self, record: RoundRecord) -> None:
        """Learn from it, or from several rounds at once where each has little to say."""
        self._later.append((record, self._tried))
        now = self.costs.switch or self._tried is not None or self._drafted < self._evidence
        if now or self._later.due(len(record.slots)):
            self._catch_up()

    def _catch_up(self) -> None:
        for record, tried in self._later.take():
            self._learn(record, tried)
        self._plans.clear()

    def _learn(self, record: RoundRecord, tried: int | None) -> None:
        """Acceptance, seconds, and (budget form) how many rows the confidences of this round were worth."""
        context, requests = _context(record.slots), len(record.slots)
        learn_pass(self.costs, record, self.width)
        if self.costs.refine:
            self._elapsed += record.target_seconds + record.draft_seconds + record.other_seconds
            self._rest.observe(record.other_seconds, judged=any(record.admitted))
        self._since += 1
        lengths = [n for n in map(_length, record.proposals) if n]
        mean = sum(lengths) / max(len(lengths), 1)
        self._learn_drafting(record, mean, tried)
        if not lengths:
            return
        last = next(p for p in reversed(record.proposals) if p.tokens)
        self._silent = (last.drafter, last.stratum) if last.confidence is None else None
        for proposal, verified, accepted in zip(record.proposals, record.admitted, record.accepted, strict=True):
            self.acceptance.observe(proposal.drafter, proposal.stratum, verified, accepted)
        proposals, admitted = record.proposals, record.admitted
        if tried is not None:  # it stands for all requests
            proposals, admitted = [proposals[tried]] * requests, [admitted[tried]] * requests
        each = [list(islice(self._survivals(p), n)) for p, n in zip(proposals, admitted, strict=True)]
        promised = by_position(each)
        if any(record.admitted):
            came = by_position([[1.0] * accepted for accepted in record.accepted])
            self._trust.observe(promised if tried is None else each[0], came, self._since)
        else:
            self._trust.doubt()
        drafting, seconds = self._drafting(mean) or self._known_seconds, self._round(requests, context)
        if tried is None or not self.costs.switch:  # otherwise nothing was admitted
            rows = max(requests + sum(admitted), requests * self.width)
            self._balance.add(requests, promised, seconds(rows) + drafting, seconds(requests), drafting)
        self._drafted += 1
        if self._drafted == self._evidence and self._silent is not None:
            self._balance.forget()
        if self.costs.switch:
            # The round is over: its confidences are history now.
            self._width.next(
                self._beyond(proposals),
                requests,
                lambda width: seconds(requests * width) + (self._drafting(width - 1) or 0.0),
                self.costs.switch,
                free=self.costs.changes(requests * self._width.now),  # the round read a prompt
                rounds=self._since,
            )
        elif self.form == "budget":
            # The round is over: all its confidences are history now, and searching them all is allowed.
            survivals = [list(self._believed(proposal)) for proposal in proposals]
            best = best_rows(survivals, self._round(requests, context, drafting))
            worth = sum(best.lengths) / requests
            self._rows_per_request = worth if self._rows_per_request is None else _blend(self._rows_per_request, worth)
        self._since = 0

    def off_reason(self, id: int) -> str | None:
        """Why nothing is drafted for this request now."""
        if not self.longest:
            return "the draft length is 0"
        drafter = self._off.get(id)
        return None if drafter is None else f"{drafter} does not pay: {self._balance}"

    def forget(self, id: int) -> None:
        """The request has ended."""
        self._off.pop(id, None)
        self._catch_up()
        self.costs = self._renewal.leave(id, self.costs, self._elapsed)

    # -- decisions ---------------------------------------------------------------------------------------

    def _plan(self, slots: Seq[Slot]) -> _Plan:
        requests, context = len(slots), _context(slots)
        key = (requests, context.bit_length())
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._decided(requests, context)
        return plan

    def _decided(self, requests: int, context: int) -> _Plan:
        thresholds = () if self._drafted < self._evidence else self._thresholds(requests, context)
        seconds = self._round(requests, context, self._block_seconds)
        return _Plan(self._on, self._most(thresholds), thresholds, seconds)

    @property
    def _on(self) -> bool:
        if self.costs.switch:
            return self._width.now > 1
        return self._balance.pays or self._drafted < self._evidence

    def _most(self, thresholds: Seq[float]) -> int:
        """Tokens of a block. At first every other one is half of it: what is it that a token takes? Then a drafter
        without confidences, which cannot end a block itself, gets the length that past acceptance is worth.
        """
        if self.costs.switch:
            return self._width.now - 1
        if self._drafted < self._evidence:
            return -(-self.longest // 2) if self._drafted % 2 else self.longest
        if self._silent is None:
            return self.longest
        return worth_drafting(self.acceptance.survivals(*self._silent, self.longest), thresholds)

    def _thresholds(self, requests: int, context: int) -> Seq[float]:
        rate = max(self._balance.rate, requests / self._round(requests, context)(requests))
        token = self._drafting.slope / requests
        if self.costs.switch:  # a pass is as wide as it is
            spent = [token] * (self.longest - 1)
        else:
            seconds = self.costs.at(context)
            passes = [seconds(requests * rows) for rows in range(2, self.longest + 2)]
            spent = [token + (more - less) / requests for less, more in pairwise(passes)]
        return (0.0, *(rate * each / kept for each, kept in zip(spent, self._trust.kept[1:], strict=True)))

    @property
    def _block_seconds(self) -> float:
        """Expected seconds of a round's drafting, whatever this round's blocks turned out to be."""
        return self._drafting.mean or self._known_seconds

    def _learn_drafting(self, record: RoundRecord, mean: float, tried: int | None) -> None:
        """mean: tokens drafted for each request for which there were any."""
        if not self.costs.refine:
            return
        if tried is not None:
            self._try_seconds.observe(record.draft_seconds)
            # What is verified saves time, so that a drafter which nearly pays may be tried often.
            saved = 0.0 if self.costs.switch else self._balance.worth
            self._probed += max(0.0, record.draft_seconds - saved) + 2 * self.costs.switch * any(record.admitted)
        if mean and (tried is None or len(record.slots) == 1):
            self._drafting.observe(mean, self._drafting.counted(mean, record.draft_seconds, self._since))

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

    def _believed(self, proposal: Proposal) -> Iterator[float]:
        """Survivals as past ones were kept, each computed when it is asked for; none above the one before it."""
        least: float = 1
        for survival, kept in zip(self._survivals(proposal), self._trust.kept, strict=False):
            least = min(least, survival * kept)
            yield least

    def _beyond(self, proposals: Seq[Proposal]) -> list[float]:
        """Believed survivals of past proposals, continued to the longest draft; sums over the requests."""
        alike: dict[tuple[str, int, int], list[list[float]]] = {}
        for p in proposals:
            alike.setdefault((p.drafter, p.stratum, len(p.tokens)), []).append(list(self._believed(p)))
        continued = []
        for (drafter, stratum, length), survivals in alike.items():
            known = by_position(survivals)
            for share in self.acceptance.estimates(drafter, stratum, self.longest)[length:] if length else ():
                known.append(known[-1] * share)
            continued.append(known)
        return by_position(continued)

    def _round(self, requests: int, context: int, drafting: float = 0.0) -> Callable[[int], float]:
        """Seconds of a whole round by its rows. drafting: seconds of it."""
        passes, plain, judging = self.costs.at(context), self._rest(judged=False), self._rest(judged=True)
        return lambda rows: passes(rows) + (judging if rows > requests else plain) + drafting


@dataclass(frozen=True, slots=True)
class _Plan:
    """What past rounds have decided for rounds of so many requests in such a context, until more is learnt.

    drafts: whether that pays. most: tokens of a block. thresholds: see `schedule.base.Stopping`. seconds: of a whole
    round that drafts, by its rows.
    """

    drafts: bool
    most: int
    thresholds: Seq[float]
    seconds: Callable[[int], float]


def _length(proposal: Proposal) -> int:
    return len(proposal.tokens)


def _context(slots: Seq[Slot]) -> int:
    return max((slot.length for slot in slots), default=0)


def _blend(known: float, new: float) -> float:
    return MEMORY * known + (1 - MEMORY) * new
