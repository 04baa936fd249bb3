"""The prefix schedule decides on what was revealed and on nothing else."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.draft.base import Proposal
from draftproof.errors import BadProposal, InvalidValue
from draftproof.schedule.allocate import best_rows
from draftproof.schedule.base import RoundRecord, Slot
from draftproof.schedule.costs import CostCurve
from draftproof.schedule.prefix import EVIDENCE, PROBE_SHARE, Form, PrefixSchedule
from draftproof.schedule.trust import BELIEF

CURVES = [{1: 1.0, 2: 1.2, 4: 1.5}, {1: 1.0, 2: 2.0, 3: 2.05, 4: 2.1, 5: 4.0, 8: 4.2}, {1: 1.0}]
CONFIDENCE = st.sampled_from([0.0, 0.25, 0.5, 0.8, 0.9, 1.0])
BLOCKS = st.lists(st.lists(CONFIDENCE, max_size=5), min_size=1, max_size=4)


def _proposal(confidence: list[float], token: int = 0) -> Proposal:
    return Proposal([token] * len(confidence), None, "toy", confidence)


def _slots(count: int) -> list[Slot]:
    return [Slot(i, 10, 8, "toy") for i in range(count)]


def _schedule(
    curve: dict[int, float], form: Form = "causal", history: list[list[float]] | None = None
) -> PrefixSchedule:
    schedule = PrefixSchedule(CostCurve(curve, refine=False), 8, form=form, draft_seconds=0.1)
    for confidence in history or []:
        n = len(confidence)
        schedule.observe(
            RoundRecord(_slots(1), [_proposal(confidence)], [n], [n], [[0] * (n + 1)], n + 1, 1.0, 0.1, 0.0)
        )
    return schedule


@settings(max_examples=300, deadline=None)
@given(
    blocks=BLOCKS,
    other=BLOCKS,
    curve=st.sampled_from(CURVES),
    form=st.sampled_from(["causal", "budget"]),
    history=st.lists(st.lists(CONFIDENCE, min_size=1, max_size=5), max_size=3),
)
def test_unrevealed_confidences_and_tokens_move_nothing(
    blocks: list[list[float]],
    other: list[list[float]],
    curve: dict[int, float],
    form: Form,
    history: list[list[float]],
) -> None:
    """Admitting n tokens reveals the confidences of positions 0..n; everything after them is perturbed."""
    schedule = _schedule(curve, form, history)
    slots = _slots(len(blocks))
    admitted = schedule.admit(slots, [_proposal(block) for block in blocks])
    perturbed = []
    for i, (block, n) in enumerate(zip(blocks, admitted, strict=True)):
        unrevealed = other[i % len(other)]
        # Longer or shorter, other confidences and other tokens after the first one that was not admitted.
        tail = unrevealed if n < len(block) else []
        perturbed.append(
            Proposal([*([0] * (n + 1)), *([9] * len(tail))][: n + 1 + len(tail)], None, "toy", [*block[: n + 1], *tail])
            if n < len(block)
            else _proposal(block)
        )
    assert schedule.admit(slots, perturbed) == admitted


@settings(max_examples=200, deadline=None)
@given(blocks=BLOCKS, curve=st.sampled_from(CURVES))
def test_the_causal_form_stops_at_the_first_token_that_does_not_raise_the_rate(
    blocks: list[list[float]], curve: dict[int, float]
) -> None:
    """Its obvious twin: sort everything, walk until the first one that does not raise tokens per second."""
    costs = CostCurve(curve, refine=False)
    entries = []
    for r, block in enumerate(blocks):
        alive = 1.0
        for k, c in enumerate(block):
            alive *= c
            entries.append((-alive, k, r))
    lengths, tokens, rows = [0] * len(blocks), float(len(blocks)), len(blocks)
    for negative, k, r in sorted(entries):
        if not (tokens - negative) / (costs.seconds(rows + 1) + 0.1) > tokens / (costs.seconds(rows) + 0.1):
            break
        tokens, rows, lengths[r] = tokens - negative, rows + 1, k + 1
    assert _schedule(curve).admit(_slots(len(blocks)), [_proposal(b) for b in blocks]) == lengths


@settings(max_examples=200, deadline=None)
@given(blocks=BLOCKS, points=st.lists(st.floats(0.05, 1.0), min_size=24, max_size=24))
def test_on_costs_that_rise_ever_faster_it_is_the_best_of_all_prefixes(
    blocks: list[list[float]], points: list[float]
) -> None:
    seconds, total = {}, 1.0
    for rows, step in enumerate(sorted(points), start=1):
        seconds[rows] = total
        total += step
    costs = CostCurve(seconds, refine=False)
    survivals = []
    for block in blocks:
        alive, row = 1.0, []
        for c in block:
            alive *= c
            row.append(alive)
        survivals.append(row)
    best = best_rows(survivals, lambda rows: costs.seconds(rows) + 0.1)
    lengths = _schedule(seconds).admit(_slots(len(blocks)), [_proposal(b) for b in blocks])
    tokens = len(blocks) + sum(sum(s[:n]) for s, n in zip(survivals, lengths, strict=True))
    assert tokens / (costs.seconds(len(blocks) + sum(lengths)) + 0.1) == pytest.approx(best.rate)


def test_promises_count_as_much_as_of_late_was_kept_of_them() -> None:
    """Two rows that cost a fifth of a round each, at survivals .5 and .4: verified by a drafter that keeps its
    promises, not by one that kept a third of them; and blocks of the latter end sooner.
    """
    thresholds = []
    for accepted, verified in (([1, 0], [2]), ([1, 0, 0, 0, 0, 0], [0])):
        schedule = PrefixSchedule(CostCurve({1: 1.0, 9: 2.6}, refine=False), 4, draft_seconds=0.05)
        for i in range(400):
            n = accepted[i % len(accepted)]
            proposal = _proposal([0.5])
            schedule.observe(RoundRecord(_slots(1), [proposal], [1], [n], [[0] * (n + 1)], 2, 1.2, 0.05, 0.0))
        assert schedule.admit(_slots(1), [_proposal([0.5, 0.8])]) == verified
        thresholds.append(schedule.thresholds(_slots(1))[1])
    assert thresholds[1] > 2 * thresholds[0]


def test_a_try_of_one_request_counts_once_for_what_is_kept_of_promises() -> None:
    """It stands for all requests where drafting is weighed; one block was promised and one was verified."""
    schedule = _schedule({1: 1.0, 9: 1.2})
    schedule._tried = 1
    proposals = [Proposal(drafter="toy"), _proposal([0.5]), Proposal(drafter="toy")]
    record = RoundRecord(_slots(3), proposals, [0, 1, 0], [0, 1, 0], [[0], [0, 0], [0]], 4, 1.0, 0.1, 0.0)
    schedule.observe(record)
    assert schedule._trust.promised[0] == pytest.approx(BELIEF + 0.5, rel=0.01)


def test_a_later_token_is_never_believed_more_than_the_one_before_it() -> None:
    """Its survival includes that of the other, whatever share of promises was kept at either place."""
    schedule = _schedule({1: 1.0})
    schedule._trust.kept[:] = [0.5, 1.2, 0.5, 0.5, 0.5]
    assert list(schedule._believed(_proposal([0.5, 1.0, 0.5]))) == pytest.approx([0.25, 0.25, 0.125])


def test_equal_survivals_are_taken_by_position_then_by_request() -> None:
    budget = _schedule({1: 1.0}, "budget")
    budget._rows_per_request = 1.0
    half = [0.5, 1.0, 1.0]
    assert budget.admit(_slots(2), [_proposal(half), _proposal(half)]) == [1, 1]
    budget._rows_per_request = 1.5
    assert budget.admit(_slots(2), [_proposal(half), _proposal(half)]) == [2, 1]


def test_saturated_confidences() -> None:
    schedule = _schedule({1: 1.0, 2: 1.1, 9: 1.8})
    assert schedule.admit(_slots(1), [_proposal([1.0] * 5)]) == [5]
    assert schedule.admit(_slots(1), [_proposal([0.0, 1.0, 1.0])]) == [0]
    assert schedule.admit(_slots(1), [_proposal([1.0, 0.0, 1.0])]) == [1]


def test_fractions_stay_fractions_in_comparisons() -> None:
    third = Fraction(1, 3)
    proposals = [Proposal([0], None, "toy", [third]), Proposal([0], None, "toy", [1 / 3])]
    budget = _schedule({1: 1.0}, "budget")
    budget._rows_per_request = 0.5
    # 1/3 as a float is a little less than one third.
    assert budget.admit(_slots(2), proposals) == [1, 0]
    assert budget.admit(_slots(2), proposals[::-1]) == [0, 1]


def test_the_budget_comes_from_earlier_rounds_alone() -> None:
    sure, hopeless = [1.0, 1.0, 1.0], [0.0, 0.0, 0.0]
    cheap = {1: 1.0, 2: 1.1, 9: 1.8}
    assert _schedule(cheap, "budget", [sure]).admit(_slots(1), [_proposal(hopeless)]) == [3]
    assert _schedule(cheap, "budget", [hopeless]).admit(_slots(1), [_proposal(sure)]) == [0]


def test_a_confidence_that_is_no_probability_is_refused_when_it_is_revealed() -> None:
    schedule = _schedule({1: 1.0, 9: 1.1})
    with pytest.raises(BadProposal, match=r"confidence 1\.5 at position 1"):
        schedule.admit(_slots(1), [_proposal([0.9, 1.5])])
    with pytest.raises(BadProposal, match="confidence nan"):
        schedule.admit(_slots(1), [_proposal([float("nan")])])
    assert _schedule({1: 1.0}).admit(_slots(1), [_proposal([0.1, 1.5])]) == [0]  # never revealed, never looked at


def test_a_drafter_that_does_not_pay_is_switched_off_with_its_figures() -> None:
    schedule = PrefixSchedule(CostCurve({1: 1.0, 9: 5.0}, refine=False), 4, draft_seconds=0.5)
    asked = []
    for _ in range(EVIDENCE + 1):
        asked += schedule.lengths(_slots(1))
        proposal = _proposal([0.1] * asked[-1])
        admitted = schedule.admit(_slots(1), [proposal])
        schedule.observe(RoundRecord(_slots(1), [proposal], admitted, [0], [[0]], 1, 1.0, 0.5, 0.0))
    assert asked == [4, 2] * (EVIDENCE // 2) + [0]
    assert schedule.lengths(_slots(1)) == [0]
    assert "does not pay: 0.667 tokens a second with it, 1 without" in (schedule.off_reason(0) or "")
    schedule.forget(0)
    assert schedule.off_reason(0) is None


@pytest.mark.parametrize("requests", [1, 4])
def test_it_is_tried_again_within_a_share_of_all_time_by_one_request_after_the_other(requests: int) -> None:
    schedule = PrefixSchedule(CostCurve({1: 1.0, 40: 5.0}), 4, draft_seconds=0.5)
    slots, tried = _slots(requests), []
    for _ in range(1500):
        lengths = schedule.lengths(slots)
        if schedule._drafted >= EVIDENCE and any(lengths):
            tried.append(lengths)
        proposals = [_proposal([0.1] * n) for n in lengths]
        admitted = schedule.admit(slots, proposals)
        seconds = 0.5 * sum(n > 0 for n in lengths) / requests
        rows = requests + sum(admitted)
        target = CostCurve({1: 1.0, 40: 5.0}).seconds(rows)
        emitted = [[0]] * requests
        schedule.observe(RoundRecord(slots, proposals, admitted, [0] * requests, emitted, rows, target, seconds, 0.0))
    allowed = PROBE_SHARE * 1500 * target * requests / 0.5
    assert 0.9 * allowed - 1 <= len(tried) <= allowed + 1
    assert all(sum(n > 0 for n in lengths) == 1 for lengths in tried)
    assert {lengths.index(4) for lengths in tried} == set(range(requests))


def test_a_try_changes_no_pass_where_a_change_is_dear_and_confidences_tell_enough() -> None:
    """Off at first, for blocks without hope; then blocks become good, which is seen without verifying one."""
    curve = CostCurve({1: 1.0, 9: 1.1}, switch=0.5)
    schedule, slots, confidence, widths = PrefixSchedule(curve, 4, draft_seconds=0.6), _slots(2), 0.05, []
    for i in range(8000):
        confidence = 0.05 if i < 1000 else 0.9
        lengths = schedule.lengths(slots)
        proposals = [_proposal([confidence] * n) for n in lengths]
        admitted = schedule.admit(slots, proposals)
        if schedule.width == 1:
            assert admitted == [0, 0]
        emitted = [[0] * (n + 1) for n in admitted]
        seconds = 0.3 * sum(n > 0 for n in lengths)
        rows = 2 + sum(admitted)
        schedule.observe(RoundRecord(slots, proposals, admitted, admitted, emitted, rows, 1.0, seconds, 0.0))
        widths.append(schedule.width)
    assert set(widths[500:1000]) == {1}
    assert widths[-1] == 5
    assert schedule._tries < 20
    # A drafter without confidences has to be verified.
    silent = PrefixSchedule(CostCurve({1: 1.0}, switch=0.5), 4)
    silent._width.now = 1
    assert silent.admit(_slots(1), [Proposal([1, 1], drafter="silent")]) == [1]


@pytest.mark.parametrize(
    "bad", [{"longest": -1}, {"longest": 65}, {"form": "greedy"}, {"draft_seconds": -1.0}, {"evidence": -1}]
)
def test_bad_values_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(InvalidValue):
        PrefixSchedule(CostCurve({1: 1.0}), **bad)  # type: ignore[arg-type]


def _play(schedule: PrefixSchedule, confidence: float, accepted: list[int]) -> list[bool]:
    """Rounds of one request whose blocks have one token; whether each was drafted. Accepted: of the drafted rounds."""
    drafted, outcomes = [], iter(accepted)
    for _ in accepted:
        n = schedule.lengths(_slots(1))[0]
        proposal = _proposal([confidence] * min(n, 1))
        admitted = schedule.admit(_slots(1), [proposal])
        hits = [next(outcomes) if admitted[0] else 0]
        record = RoundRecord(
            _slots(1), [proposal], admitted, hits, [[0] * (hits[0] + 1)], 1 + admitted[0], 1.0, 0.1, 0.0
        )
        schedule.observe(record)
        drafted.append(n > 0)
    return drafted


def test_confidences_that_are_not_kept_switch_the_drafter_off() -> None:
    """0.9 promised, nothing ever accepted: off within 40 rounds, whatever the confidences go on to say.

    It costs a fifth of each; believing less would switch calibrated drafters off that pay a little.
    """
    schedule = PrefixSchedule(CostCurve({1: 1.0, 2: 1.1}, refine=False), 1, draft_seconds=0.1)
    drafted = _play(schedule, 0.9, [0] * 60)
    assert not any(drafted[40:])
    assert "does not pay" in (schedule.off_reason(0) or "")


def test_an_unlucky_start_does_not_keep_a_calibrated_drafter_off_where_changes_are_dear() -> None:
    """Nothing of the first blocks was accepted, so their promises count for little, and what is off is not verified.
    Tries go on being seen, the memory of it fades, and what one change costs is soon lost by staying: on again.
    """
    schedule, slots = PrefixSchedule(CostCurve({1: 10.0, 9: 10.2}, switch=4.0), 4), _slots(1)
    on = []
    for i in range(8000):
        lengths = schedule.lengths(slots)
        proposals = [_proposal([0.4] * n) for n in lengths]
        admitted = schedule.admit(slots, proposals)
        accepted = [int(n > 0 and i > 200 and i % 5 < 2) for n in admitted]
        emitted = [[0] * (n + 1) for n in accepted]
        seconds = (2.0 + 0.2 * lengths[0]) * (lengths[0] > 0)
        record = RoundRecord(slots, proposals, admitted, accepted, emitted, 1 + admitted[0], 10.0, seconds, 0.0)
        schedule.observe(record)
        on.append(schedule.width > 1)
    assert not any(on[100:200])
    assert all(on[-4000:])


def test_a_drafter_that_pays_a_little_is_not_switched_off_by_a_run_of_bad_luck() -> None:
    """0.4 promised and kept: 1.4 tokens in 1.3 seconds; then eight misses in a row."""
    schedule = PrefixSchedule(CostCurve({1: 1.0, 2: 1.2}, refine=False), 1, draft_seconds=0.1)
    usual = [1, 0, 1, 0, 0] * 40
    assert all(_play(schedule, 0.4, [*usual, *([0] * 8), *usual]))


def _decode(schedule: PrefixSchedule, confidence: float, seconds: float, accepted: Callable[[int], bool]) -> list[bool]:
    """A request of 1 000 rounds of 10 s, drafting takes `seconds`; in which rounds the drafter was on."""
    slots, on = _slots(1), []
    for i in range(1000):
        n = schedule.lengths(slots)[0]
        proposal = _proposal([confidence] * n)
        admitted = schedule.admit(slots, [proposal])
        hits = [int(n > 0 and accepted(i))]
        emitted = [[0] * (hits[0] + 1)]
        drafting = seconds * (n > 0)
        schedule.observe(RoundRecord(slots, [proposal], admitted, hits, emitted, 1 + n, 10.0, drafting, 0.0))
        on.append(schedule._on)
        assert n == 0 or schedule.off_reason(0) is None  # what is drafted is not said to be off
    return on


@pytest.mark.parametrize(("confidence", "seconds"), [(0.5, 2.0), (0.5, 3.0), (0.4, 3.0)])
def test_texts_that_have_become_easier_are_noticed_soon(confidence: float, seconds: float) -> None:
    """Nothing is kept of what is promised, so the drafter is off; then every other token comes, and being off costs a
    sixth. What rounds of long ago have shown ages with those that drafted nothing.
    """
    schedule = PrefixSchedule(CostCurve({1: 10.0, 9: 10.2}), 1)
    on = _decode(schedule, confidence, seconds, lambda i: i > 300 and i % 2 == 0)
    assert not any(on[40:300])
    assert all(on[600:])


def test_a_drafter_that_nearly_pays_is_tried_more_often_and_one_without_hope_seldom() -> None:
    """Of ten promises 0, or one and a half, are kept: drafting costs a sixth of all time, or 4 %."""
    tries = {}
    for kept, accepted in ((0, lambda i: False), (15, lambda i: i % 100 in range(3, 100, 7))):
        schedule = PrefixSchedule(CostCurve({1: 10.0, 9: 10.2}), 1)
        on = _decode(schedule, 0.5, 2.0, accepted)
        assert sum(on[100:]) < 300
        tries[kept] = schedule._tries
        assert schedule._probed <= PROBE_SHARE * schedule._elapsed + 2.0
    assert tries[0] < 50
    assert tries[15] > 1.2 * tries[0]


def test_a_drafter_that_has_been_wrong_for_ever_leaves_thresholds_that_are_numbers() -> None:
    schedule = PrefixSchedule(CostCurve({1: 10.0, 9: 10.2}, refine=False), 4, draft_seconds=2.0, evidence=0)
    for _ in range(20_000):
        schedule._trust.observe([0.3, 0.2, 0.1, 0.1], [], rounds=100)
    assert all(0 < kept < 1e-3 for kept in schedule._trust.kept[:1])
    assert all(0 <= least < float("inf") for least in schedule.thresholds(_slots(1)))
