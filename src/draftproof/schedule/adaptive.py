"""The adaptive schedule: in every round, the draft lengths that promise the most tokens per second.

What it is for: speculation that never loses. It weighs the machine's own cost curve against the acceptance seen in
past rounds, per drafter, match stratum and position; where no length pays it verifies nothing, which costs what plain
decoding costs, and says why. A drafter of whose proposals none was worth verifying for a while is asked less often. On
runtimes to which a pass of another shape is dear, it decides on a width for many rounds (`width`) instead of a length
for each.

Guarantees: non-anticipating. Lengths are functions of past rounds, measured seconds, and (for proposals) of their
length and stratum, which are functions of committed tokens. When off, point-mass proposals are still made (they are
nearly free) and compared with what plain decoding then emits: P(equal) is the acceptance they would have had, so
nothing is spent on probing. Drafters that cost time are asked in their first rounds whatever comes of it, and probed,
within `PROBE_SHARE` of all time, where that did not pay.

Source: algorithms.md, section 7 (the theorem and the expected-value curve).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from draftproof.draft.base import Proposal
from draftproof.errors import InvalidValue
from draftproof.schedule.acceptance import Acceptance
from draftproof.schedule.allocate import best_block, best_rows
from draftproof.schedule.base import RoundRecord, Slot
from draftproof.schedule.costs import CostCurve, learn_pass
from draftproof.schedule.fixed import LONGEST
from draftproof.schedule.later import AT_ONCE, TOGETHER, Later
from draftproof.schedule.renewal import Renewal
from draftproof.schedule.seconds import DraftSeconds, RestSeconds, Seconds
from draftproof.schedule.width import Width, by_position

PROBE_SHARE = 0.005  # of all time, lost by trying a costly drafter that is switched off
FIRST_TRY = 3  # tokens drafted before a drafter's cost is known, and
EVIDENCE = 8  # rounds in which a costly one drafts so many or one, before it is decided whether that pays
CHEAP = 0.015  # of a plain pass: drafters whose proposals cost less always propose
POOLED = -1  # stratum under which all proposals of a (chain of) drafter(s) count, for deciding before drafting
BELIEF = 1.0  # token's worth of belief in estimates, before anything was seen
MEMORY = 0.9  # weight kept by the running averages of promises
IDLE = 16  # proposals in a row that were not verified, after which a cheap drafter
SELDOM = 4  # is asked in one round of so many


class AdaptiveSchedule:
    """longest: most tokens to draft. costs: the target's cost curve on this machine.

    draft_seconds: what is known beforehand of seconds per drafted token, by drafter. measure_again: makes a new curve
    when real rounds have disproved this one (`CostCurve.stale`); called only while no request is live. idle: rounds
    with proposals of which none was verified, after which proposals are asked for in one round of SELDOM. at_once,
    together: `later`.
    """

    name = "adaptive"

    def __init__(
        self,
        costs: CostCurve,
        longest: int = 8,
        *,
        draft_seconds: Mapping[str, float] | None = None,
        idle: int = IDLE,
        at_once: int = AT_ONCE,
        together: int = TOGETHER,
        measure_again: Callable[[], CostCurve] | None = None,
    ) -> None:
        if not 0 <= longest <= LONGEST:
            raise InvalidValue(f"draft length {longest}", f"0 to {LONGEST}; 0 is plain decoding")
        if idle < 1:
            raise InvalidValue(f"idle={idle}", "at least 1")
        self.costs = costs
        self.longest = longest
        self.acceptance = Acceptance()
        self._draft_seconds = defaultdict[str, Seconds](Seconds)  # of a token, by drafter
        self._asking_seconds = defaultdict[str, Seconds](Seconds)  # of a proposal
        # A drawn token that is not verified says nothing of the next, so such drafters are costly whatever they cost.
        self._drawers = set[str]()  # drafters that have drawn tokens,
        self._finders = set[int]()  # requests for which they have found some
        for name, each in (draft_seconds or {}).items():
            self._draft_seconds[name], self._asking_seconds[name] = Seconds(each), Seconds(longest * each)
        self._renewal = Renewal(measure_again)
        self._width = Width(longest)
        self._drafting = DraftSeconds()
        self._promises = _Promises()
        self._drafted = 0  # rounds that asked for proposals
        self._asked: list[int] = []  # tokens that this round's drafter was asked for, by request
        self._since = 0  # rounds since it was last asked
        self._idle_after, self._idle = idle, 0  # rounds in a row that verified nothing of what was proposed
        self._rest = RestSeconds()
        self._elapsed = 0.0
        self._probed = 0.0
        self._off: dict[int, _Refused] = {}
        self._later = Later[tuple[RoundRecord, Seq[int], int]](at_once, together)
        # Decisions until more is learnt: the same question has the same answer.
        self._choices: dict[Seq[int], _Choice] = {}
        self._worth: dict[Seq[object], Seq[int]] = {}

    # -- the protocol ------------------------------------------------------------------------------------

    @property
    def width(self) -> int:
        """See `schedule.base.Steady`."""
        return self._width.now if self.costs.switch else 0

    def lengths(self, slots: Seq[Slot]) -> list[int]:
        self._renewal.join(slot.id for slot in slots)
        lengths = self._lengths(slots)
        self._asked = lengths
        return lengths

    def _lengths(self, slots: Seq[Slot]) -> list[int]:
        caps = [min(self.longest, slot.room) for slot in slots]
        costly = [i for i, slot in enumerate(slots) if caps[i] and not self._cheap(slot)]
        if not costly:
            # What a drafter costs that is hardly ever right is asking it.
            return caps if self._idle < self._idle_after or self._idle % SELDOM == 0 else [0] * len(slots)
        if self._drafted < EVIDENCE and self.costs.refine and not self.costs.switch:
            # Where a change is dear every width has to be worth it.
            first = 1 if self._drafted % 2 else FIRST_TRY
            return [min(cap, first) if i in costly else cap for i, cap in enumerate(caps)]
        context = max(slot.length for slot in slots)
        key = (*caps, -1, *costly, context.bit_length())
        choice = None if self.costs.switch else self._choices.get(key)  # widths learn in every round
        if choice is None:
            choice = self._choices[key] = self._choose(slots, caps, costly, context)
        lengths = [choice.lengths[i] if i in costly else caps[i] for i in range(len(slots))]
        if not any(lengths[i] for i in costly):
            lengths[costly[0]] = self._probe(choice, context, len(slots))
        return lengths

    def _choose(self, slots: Seq[Slot], caps: Seq[int], costly: Seq[int], context: int) -> _Choice:
        """What to draft for the requests whose drafters are costly."""
        per_token = max(self._draft_seconds[slots[i].drafter].expected for i in costly)
        survivals = [
            self.acceptance.survivals(slots[i].drafter, POOLED, self._known_cap(slots[i], caps[i]))
            if i in costly
            else []
            for i in range(len(slots))
        ]
        drafting = self._drafts(per_token)
        if self.costs.switch:
            most = self._next_width(survivals, self._with_width(len(slots), context, per_token)) - 1
            lengths = tuple(min(most, cap) for cap in caps)
        else:
            lengths = best_block(
                survivals, lambda rows, longest: self._round(rows, context, len(slots)) + drafting(longest)
            ).lengths
        return _Choice(lengths, survivals[costly[0]][0], drafting(1))

    def admit(self, slots: Seq[Slot], proposals: Seq[Proposal]) -> list[int]:
        # What a costly drafter drafted is paid for and was decided before: its rows are verified. So are tokens that
        # were drawn: how many there are may depend on them (a block ends after EOS), and whether one is verified must
        # not. The case "adaptive, stepped rows" of the proof is about that.
        weighed = [
            not p.tokens or (self._cheap(slot) and p.q is None) for slot, p in zip(slots, proposals, strict=True)
        ]
        context = max((slot.length for slot in slots), default=0)
        best = self._best(slots, proposals, context) if any(weighed) else ()
        admitted = [
            best[i] if may_be_cut else len(p.tokens)
            for i, (may_be_cut, p) in enumerate(zip(weighed, proposals, strict=True))
        ]
        for slot, p, n in zip(slots, proposals, admitted, strict=True):
            self._explain(slot, p, n, context, len(slots))
        if self.costs.switch:
            self._promises.made = sum(sum(row[:n]) for row, n in zip(self._survivals(proposals), admitted, strict=True))
        return admitted

    def _best(self, slots: Seq[Slot], proposals: Seq[Proposal], context: int) -> Seq[int]:
        """How much of each proposal is worth its rows."""
        if self.costs.switch:
            if all(self._cheap(slot) or not slot.room for slot in slots):  # otherwise `lengths` has decided
                kept = self._promises.kept
                hoped = [[kept * a for a in row] for row in self._survivals(proposals)]
                self._next_width(hoped, self._with_width(len(slots), context), leap=True)
            return [min(len(p.tokens), self._width.now - 1) for p in proposals]
        key = (*((p.drafter, p.stratum, len(p.tokens)) for p in proposals), context.bit_length())
        if key not in self._worth:
            self._worth[key] = best_rows(
                self._survivals(proposals), lambda rows: self._round(rows, context, len(slots))
            ).lengths
        return self._worth[key]

    def _survivals(self, proposals: Seq[Proposal]) -> list[list[float]]:
        return [self.acceptance.survivals(p.drafter, p.stratum, len(p.tokens)) if p.tokens else [] for p in proposals]

    def observe(self, record: RoundRecord) -> None:
        proposed = any(p.tokens for p in record.proposals)
        if any(record.admitted):
            self._promises.settle(sum(record.accepted))
            self._idle = 0
        elif proposed or self._idle >= self._idle_after:
            self._idle += 1
        self._since += 1
        for slot, p in zip(record.slots, record.proposals, strict=True):
            if p.q is not None:
                self._drawers.add(slot.drafter)
            elif p.tokens:
                self._finders.add(slot.id)
        if not proposed and record.read_prompt:
            self._asked = []  # a drafter that reads the target has nothing to go by before that
        asked = any(self._asked)
        self._later.append((record, self._asked, self._since))
        now = self.costs.switch or (asked and (self._since > 1 or self._drafted < EVIDENCE))
        if now or self._later.due(len(record.slots)):
            self._catch_up()
        if asked:
            self._since = 0

    def _catch_up(self) -> None:
        for record, asked, since in self._later.take():
            learn_pass(self.costs, record, self.width)
            if any(asked) or any(p.tokens for p in record.proposals):
                self._learn_acceptance(record, asked, since)
            self._learn_seconds(record, asked, since)
        self._choices.clear()
        self._worth.clear()

    def off_reason(self, id: int) -> str | None:
        refused = self._off.get(id)
        if refused is None:
            return None
        plain, one_more = (self._round(refused.requests + more, refused.context, refused.requests) for more in (0, 1))
        accepted = self.acceptance.estimate(refused.drafter, refused.stratum, 0)
        return (
            f"{refused.drafter}: acceptance {accepted:.2f} does not pay; one more row costs "
            f"{1e3 * (one_more - plain):.2g} ms on a pass of {1e3 * plain:.3g} ms"
            + (f", a change of width {1e3 * self.costs.switch:.2g} ms" if self.costs.switch else "")
        )

    def forget(self, id: int) -> None:
        self._off.pop(id, None)
        self._finders.discard(id)
        self._catch_up()
        self.costs = self._renewal.leave(id, self.costs, self._elapsed)

    # -- seconds -----------------------------------------------------------------------------------------

    def _round(self, rows: int, context: int, requests: int) -> float:
        return self.costs.seconds(rows, context) + self._rest(judged=rows > requests)

    def _next_width(self, survivals: Seq[Seq[float]], seconds: Callable[[int], float], *, leap: bool = False) -> int:
        """Where the last pass read a prompt, or had more or fewer requests, every width is a change: any is free."""
        free = self.costs.changes(len(survivals) * self._width.now)
        return self._width.next(
            by_position(survivals), len(survivals), seconds, self.costs.switch, free=free, leap=leap
        )

    def _with_width(self, requests: int, context: int, per_token: float = 0.0) -> Callable[[int], float]:
        """Seconds of a round by its width."""
        passes, plain, judging = self.costs.at(context), self._rest(judged=False), self._rest(judged=True)
        drafting = self._drafts(per_token)

        def seconds(width: int) -> float:
            return passes(requests * width) + (judging if width > 1 else plain) + drafting(width - 1)

        return seconds

    def _drafts(self, per_token: float) -> Callable[[int], float]:
        """Seconds of drafting so many tokens: a block is dear for its first one. per_token: until seen; 0: free."""

        def seconds(tokens: int) -> float:
            known = self._drafting(tokens) if per_token else 0.0
            return per_token * tokens if known is None else known

        return seconds

    def _cheap(self, slot: Slot) -> bool:
        known = self._asking_seconds[slot.drafter].value
        return (
            known is not None
            and known < CHEAP * self.costs.seconds(1, slot.length)
            and (slot.drafter not in self._drawers or slot.id in self._finders)
        )

    def _known_cap(self, slot: Slot, cap: int) -> int:
        return min(cap, FIRST_TRY) if self._draft_seconds[slot.drafter].value is None else cap

    def _learn_seconds(self, record: RoundRecord, asked: Seq[int], since: int) -> None:
        if not self.costs.refine:
            return
        self._elapsed += record.target_seconds + record.draft_seconds + record.other_seconds
        self._rest.observe(record.other_seconds, judged=any(record.admitted))
        if not any(asked):
            return
        self._drafted += 1
        drafted = max((len(p.tokens) for p in record.proposals), default=0)
        seconds = record.draft_seconds
        if drafted:
            seconds = self._drafting.counted(drafted, seconds, since)
            self._drafting.observe(drafted, seconds)
        name = next(slot.drafter for slot, n in zip(record.slots, asked, strict=True) if n)
        self._draft_seconds[name].observe(seconds / max(drafted, 1))
        self._asking_seconds[name].observe(record.draft_seconds / sum(n > 0 for n in asked))

    def _learn_acceptance(self, record: RoundRecord, asked: Seq[int], since: int) -> None:
        for i, proposal in enumerate(record.proposals):
            verified, accepted = record.admitted[i], record.accepted[i]
            whole = accepted == verified and len(record.emitted[i]) == verified + 1
            if whole and verified < len(proposal.tokens) and proposal.q is None:
                # The token after the admitted ones was drawn from p: had the next point mass been verified, it
                # would have been accepted with exactly the probability that it is equal.
                hit = proposal.tokens[verified] == record.emitted[i][verified]
                verified, accepted = verified + 1, accepted + hit
            self.acceptance.observe(proposal.drafter, proposal.stratum, verified, accepted)
            # Asked for more than it proposed: for the decision to ask, what is not there was not accepted.
            short = i < len(asked) and len(proposal.tokens) < asked[i] and verified >= len(proposal.tokens)
            self.acceptance.observe(record.slots[i].drafter, POOLED, verified + short, accepted, since)

    # -- off ---------------------------------------------------------------------------------------------

    def _probe(self, choice: _Choice, context: int, requests: int) -> int:
        """Tokens to draft for one request although that does not pay: one, if the time lost by probes so far allows it.
        What is expected to be accepted is no loss.
        """
        plain, more = (self._round(requests + rows, context, requests) for rows in (0, 1))
        lost = max(0.0, more - plain + choice.drafting - choice.survival * plain / requests)
        lost += 2 * self.costs.switch  # there and back
        if self._probed + lost > PROBE_SHARE * self._elapsed:
            return 0
        self._probed += lost
        return 1

    def _explain(self, slot: Slot, proposal: Proposal, admitted: int, context: int, requests: int) -> None:
        if admitted:
            self._off.pop(slot.id, None)
            return
        if slot.room == 0 or (not proposal.tokens and self._cheap(slot)):
            return  # no room, or nothing was found this time: that is not a decision
        self._off[slot.id] = _Refused(proposal.drafter or slot.drafter, proposal.stratum, context, requests)


@dataclass(frozen=True, slots=True)
class _Choice:
    """Tokens to draft, by request; and of the first one with a costly drafter how likely its first token is to survive,
    and the seconds of drafting it.
    """

    lengths: Seq[int]
    survival: float
    drafting: float


@dataclass(slots=True)
class _Promises:
    """Accepted tokens that estimates promised, and those that came: what is not known of a stratum is hoped for, and
    a drafter with many strata would be hoped for long.
    """

    made: float = 0.0  # in this round
    promised: float = 0.0
    accepted: float = 0.0

    def settle(self, accepted: int) -> None:
        """The round is over."""
        self.promised = MEMORY * self.promised + self.made
        self.accepted = MEMORY * self.accepted + accepted

    @property
    def kept(self) -> float:
        """The share that came of late, at most 1."""
        return min(1.0, (self.accepted + BELIEF) / (self.promised + BELIEF))


@dataclass(frozen=True, slots=True)
class _Refused:
    """What was not verified, and where: the reason is put into words when somebody asks."""

    drafter: str
    stratum: int
    context: int
    requests: int
