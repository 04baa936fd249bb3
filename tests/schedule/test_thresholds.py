"""Where a block is not worth going on with: the survival for which a token pays, from past rounds alone."""

from __future__ import annotations

import operator
from collections.abc import Sequence as Seq
from itertools import accumulate

import pytest

from draftproof.draft.base import DraftRequest, Proposal, StatelessDrafter
from draftproof.engine import Engine
from draftproof.proof.toys import PROMPT, toy_target
from draftproof.sampling.params import SamplingParams
from draftproof.schedule.base import RoundRecord, Schedule, Slot, Stopping, thresholds_of, worth_drafting
from draftproof.schedule.costs import CostCurve
from draftproof.schedule.fixed import FixedSchedule
from draftproof.schedule.prefix import EVIDENCE, PrefixSchedule

POINTS = {1: 10.0, 2: 10.0, 3: 10.0, 4: 10.0, 5: 11.0, 6: 11.5}
BLOCK, TOKEN = 2.0, 0.25  # seconds of drafting: of a block, and of each of its tokens


def _slots(count: int) -> list[Slot]:
    return [Slot(i, 10, 20, "d") for i in range(count)]


def _play(schedule: Schedule, blocks: Seq[Seq[float]], rounds: int) -> list[tuple[list[int], list[int]]]:
    """Rounds in which every request's block has the next of these confidences; tokens drafted and verified."""
    seen = []
    for i in range(rounds):
        slots = _slots(1)
        thresholds = thresholds_of(schedule, slots)
        confidence = blocks[i % len(blocks)][: schedule.lengths(slots)[0]]
        kept = worth_drafting(list(accumulate(confidence, operator.mul)), thresholds)
        proposal = Proposal([1] * kept, [None] * kept, "d", confidence[:kept])
        (n,) = schedule.admit(slots, [proposal])
        seconds = CostCurve(POINTS).seconds(1 + n)
        draft = (BLOCK + TOKEN * kept) * (kept > 0)
        schedule.observe(RoundRecord(slots, [proposal], [n], [n], [[1] * (n + 1)], 1 + n, seconds, draft, 0.0))
        seen.append(([kept], [n]))
    return seen


def test_a_threshold_is_what_drafting_and_verifying_the_token_costs_at_the_rate_of_late() -> None:
    schedule = PrefixSchedule(CostCurve(POINTS), 5)
    _play(schedule, [[1.0, 1.0, 1.0, 0.1, 0.1]], 200)  # four rows verified, and all of it kept
    rate = 4 / (10 + BLOCK + 3 * TOKEN)
    got = schedule.thresholds(_slots(1))
    # Rows 2 to 4 are free, the fifth takes a second, the sixth 0.5. The first token's block is paid for.
    assert got == pytest.approx([0, *(rate * (TOKEN + rows) for rows in (0, 0, 1, 0.5))], rel=0.05)
    # Two requests share what a pass of more rows and a token for each of them cost.
    assert schedule.thresholds(_slots(2))[1] == pytest.approx(rate * (TOKEN + 1.5) / 2, rel=0.05)


def test_what_rows_cost_is_that_of_the_context_at_hand() -> None:
    """Decisions are kept until more is learnt, for each context of their own."""
    schedule = PrefixSchedule(CostCurve(POINTS), 5)
    _play(schedule, [[1.0, 1.0, 1.0, 0.1, 0.1]], 200)
    slots = [Slot(0, 2000, 20, "d")]
    schedule.observe(RoundRecord(slots, [Proposal(drafter="d")], [0], [0], [[1]], 1, 30.0, 0.0, 0.0))  # three times
    schedule.forget(0)
    short, long = (schedule.thresholds([Slot(0, n, 20, "d")]) for n in (10, 2000))
    assert schedule.thresholds(_slots(1)) == short
    assert long[3] > 1.1 * short[3]


def test_a_block_ends_before_the_first_survival_below_its_threshold() -> None:
    assert [
        worth_drafting([0.9, 0.5, 0.4], t) for t in ((), (0.9,), (0, 0.5, 0.4), (0, 0.6, 0), (0, 0, 0.5), (1.0,))
    ] == [
        3,
        3,
        3,
        1,
        2,
        0,
    ]


def test_blocks_end_where_their_own_confidences_say() -> None:
    sure, unsure = [0.99] * 5, [0.3, 0.05, 0.9, 0.9, 0.9]
    seen = _play(PrefixSchedule(CostCurve(POINTS), 5), [sure, unsure, unsure], 302)
    assert seen[0] == ([5], [5])
    assert seen[-2:] == [([5], [5]), ([1], [1])]


@pytest.mark.parametrize("at_once", [0, 64])
def test_at_first_all_is_drafted_or_half_of_it_to_see_what_a_token_costs(at_once: int) -> None:
    seen = _play(PrefixSchedule(CostCurve(POINTS), 5, at_once=at_once), [[0.2] * 5], EVIDENCE)
    assert [kept for (kept,), _ in seen] == [5, 3] * (EVIDENCE // 2)


def test_a_drafter_without_confidences_gets_the_length_that_past_acceptance_is_worth() -> None:
    """A model that drafts token by token, a quarter of a pass each; its second token is hardly ever right."""
    schedule, asked = PrefixSchedule(CostCurve(POINTS), 5), []
    for i in range(200):
        (n,) = schedule.lengths(_slots(1))
        asked.append(n)
        proposal = Proposal([1] * n, [None] * n, "m")
        (k,) = schedule.admit(_slots(1), [proposal])
        hits = min(k, 1 if i % 5 else 0)
        seconds = CostCurve(POINTS).seconds(1 + k)
        schedule.observe(
            RoundRecord(_slots(1), [proposal], [k], [hits], [[1] * (hits + 1)], 1 + k, seconds, 2.5 * n, 0.0)
        )
    assert asked[:EVIDENCE] == [5, 3] * (EVIDENCE // 2)
    assert set(asked[100:]) == {1}


def test_a_try_that_finds_nothing_is_paid_for_as_well() -> None:
    schedule = PrefixSchedule(CostCurve({1: 10.0, 2: 25.0}), 1)
    asked = []
    for i in range(1000):
        (n,) = schedule.lengths(_slots(1))
        asked.append(n)
        found = n and i < 2 * EVIDENCE
        proposal = Proposal([1], [None], "d", [0.01]) if found else Proposal(drafter="d")
        (k,) = schedule.admit(_slots(1), [proposal])
        target = CostCurve({1: 10.0, 2: 25.0}).seconds(1 + k)
        schedule.observe(RoundRecord(_slots(1), [proposal], [k], [0], [[1]], 1 + k, target, 3.0 * n, 0.0))
    assert sum(asked[3 * EVIDENCE :]) < 15  # of 30 seconds that 0.3 % of all time are: ten


def test_where_a_pass_keeps_its_width_only_drafting_costs() -> None:
    schedule = PrefixSchedule(CostCurve({1: 10.0, 8: 10.0}, switch=4.0), 3)
    for i in range(60):
        (n,) = schedule.lengths(_slots(1))
        drafted = n - i % 2
        proposal = Proposal([1] * drafted, [None] * drafted, "d", [0.9] * drafted)
        admitted = schedule.admit(_slots(1), [proposal])
        draft = BLOCK + TOKEN * drafted
        schedule.observe(
            RoundRecord(_slots(1), [proposal], admitted, admitted, [[1] * (drafted + 1)], 1 + drafted, 10.0, draft, 0.0)
        )
    first, *others = schedule.thresholds(_slots(1))
    assert first == 0
    wanted = [schedule._balance.rate * TOKEN / kept for kept in schedule._trust.kept[1:]]
    assert others == pytest.approx(wanted, rel=0.1)


def test_a_drafter_gets_the_thresholds_of_its_schedule_and_none_from_one_without() -> None:
    seen: list[Seq[float]] = []

    class Spy(StatelessDrafter):
        name = "spy"

        def propose(self, requests: Seq[DraftRequest]) -> list[Proposal]:
            seen.extend(request.thresholds for request in requests)
            return [Proposal(drafter="spy")] * len(requests)

    class Stops(FixedSchedule):
        def thresholds(self, slots: Seq[Slot]) -> Seq[float]:
            return [0.0, 0.5]

    assert isinstance(Stops(2), Stopping)
    for schedule in (Stops(2), FixedSchedule(2)):
        engine = Engine(toy_target(3), drafter=Spy(), schedule=schedule)
        engine.add(list(PROMPT), SamplingParams(max_tokens=4, ignore_eos=True))
        engine.round()
    assert [list(x) for x in seen] == [[0.0, 0.5], []]
