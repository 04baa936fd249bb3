"""Where a change of a pass's width is dear: what width is chosen, what that gains, and that it does not look ahead."""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from time import perf_counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.bench.calls import Log, RecordingTarget, Replay
from draftproof.draft.base import Proposal
from draftproof.draft.scripted import ScriptedDrafter
from draftproof.engine import Engine
from draftproof.proof.toys import toy_target
from draftproof.sampling.params import SamplingParams
from draftproof.schedule.adaptive import AdaptiveSchedule
from draftproof.schedule.base import RoundRecord, Slot, Steady
from draftproof.schedule.costs import CostCurve
from draftproof.schedule.fixed import RECENT, FixedSchedule
from draftproof.schedule.prefix import PrefixSchedule
from draftproof.schedule.width import HORIZON, Width, by_position
from draftproof.target.base import Feed, Rows

POINTS = {1: 7.0, 2: 7.1, 4: 7.5, 8: 8.3, 9: 8.6}  # ms, as measured with 8-bit activations
SWITCH = 4.5


def _seconds(width: int) -> float:
    return CostCurve(POINTS, refine=False).seconds(width)


class Machine:
    """A machine on which a pass of another width than the last costs SWITCH more; drives a schedule as the engine does.

    In a share of the rounds (found) the drafter proposes `length` point masses, each accepted with a probability.
    """

    def __init__(self, schedule: FixedSchedule | AdaptiveSchedule, acceptance: float, found: float) -> None:
        self.schedule, self.acceptance, self.found = schedule, acceptance, found
        self.random = np.random.default_rng(0)
        self.seconds, self.tokens, self.last, self.widths = 0.0, 0, 1, list[int]()

    def run(self, tokens: int) -> float:
        while self.tokens < tokens:
            self.round()
        return self.tokens / self.seconds

    def round(self) -> None:
        slots = [Slot(0, 100 + self.tokens, 64, "d")]
        (length,) = self.schedule.lengths(slots)
        made = length if self.random.random() < self.found else 0
        proposal = Proposal([7] * made, None, "d") if made else Proposal()
        (admitted,) = self.schedule.admit(slots, [proposal])
        accepted = 0
        while accepted < admitted and self.random.random() < self.acceptance:
            accepted += 1
        hit = made > admitted and accepted == admitted and self.random.random() < self.acceptance
        width = max(1 + admitted, self.schedule.width)
        target = _seconds(width) + SWITCH * (width != self.last)
        emitted = [7] * accepted + [7 if hit else 8]
        self.schedule.observe(
            RoundRecord(slots, [proposal], [admitted], [accepted], [emitted], 1 + admitted, target, 0.0, 0.0)
        )
        self.last = width
        self.seconds += target
        self.tokens += accepted + 1
        self.widths.append(width)


def _adaptive(longest: int = 8) -> AdaptiveSchedule:
    return AdaptiveSchedule(CostCurve(POINTS, switch=SWITCH), longest, draft_seconds={"d": 0.0})


@pytest.mark.parametrize("found", [0.1, 0.5, 1.0])
def test_an_always_wrong_drafter_loses_less_than_three_percent_over_512_tokens(found: float) -> None:
    machine = Machine(_adaptive(), 0.0, found)
    assert machine.run(512) >= 0.97 / POINTS[1]
    assert machine.widths[-1] <= 2


@pytest.mark.parametrize("found", [0.05, 0.2, 0.6, 1.0])
@pytest.mark.parametrize("acceptance", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_it_comes_close_to_the_best_width_and_does_not_fall_behind_plain_decoding(
    acceptance: float, found: float
) -> None:
    def kept(width: int) -> float:
        tokens = 1 + found * sum(acceptance**k for k in range(1, width))
        return tokens / _seconds(width)

    got = Machine(_adaptive(), acceptance, found).run(6000)
    assert got >= 0.95 * max(kept(width) for width in range(1, 10))
    assert got >= 0.97 * kept(1)


def test_without_widths_varying_drafts_cost_what_they_bring() -> None:
    """Why this exists: lengths chosen round by round pay for a change in nearly every round."""
    forgetful = AdaptiveSchedule(CostCurve(POINTS), 8, draft_seconds={"d": 0.0})
    steady, varying = Machine(_adaptive(), 0.6, 0.5), Machine(forgetful, 0.6, 0.5)
    assert steady.run(3000) > 1.2 * varying.run(3000)


def test_why_it_is_off_names_the_price_of_a_change() -> None:
    points = {1: 7.0, 2: 9.0, 8: 20.0}
    schedule = AdaptiveSchedule(CostCurve(points, refine=False, switch=4.5), 8, draft_seconds={"d": 0.0})
    slots = [Slot(0, 50, 64, "d")]
    for _ in range(60):
        (n,) = schedule.lengths(slots)
        (k,) = schedule.admit(slots, [Proposal([1] * n, None, "d")])
        schedule.observe(RoundRecord(slots, [Proposal([1] * n, None, "d")], [k], [0], [[2]], 1 + k, 7.0, 0.0, 0.0))
    assert k == 0
    assert "one more row costs 2e+03 ms on a pass of 7e+03 ms, a change of width 4.5e+03 ms" in str(
        schedule.off_reason(0)
    )


def test_it_comes_back_when_drafts_become_good_again() -> None:
    machine = Machine(_adaptive(), 0.0, 0.8)
    machine.run(300)
    assert machine.widths[-1] <= 2
    machine.acceptance = 0.9
    machine.run(600)
    assert machine.widths[-1] > 4


def test_a_change_has_to_repay_itself_in_the_rounds_that_are_known() -> None:
    gain = [0.2]  # 2 wide: 1.2 tokens a round
    seconds: Callable[[int], float] = lambda width: 1.0 + 0.05 * width  # noqa: E731 - one line, used thrice
    assert Width(1).next(gain, 1, seconds, 0.0) == 2
    dear = Width(1)
    grown = [dear.next(gain, 1, seconds, 1.0) for _ in range(3 * HORIZON)]
    first = grown.index(2)  # 1 - 1.1 / (1.2 * 1.05) of a round's 1.05 is gained in each: 1.0 needs 8 rounds and more
    assert 7 <= first <= 12
    assert set(grown[first:]) == {2}
    dearer = Width(1)
    grown = [dearer.next(gain, 1, seconds, 0.15 * HORIZON) for _ in range(3 * HORIZON)]
    # Not repaid in HORIZON rounds, but as much is lost after 2.4 / 0.133 of them.
    assert 17 <= grown.index(2) <= 20
    loses = Width(1)
    assert {loses.next([0.04], 1, seconds, 0.01) for _ in range(200)} == {1}  # 1.04 tokens in 1.048 of the time


def test_one_promising_proposal_widens_at_once_and_a_poor_one_does_not() -> None:
    def after(survival: float) -> int:
        width = Width(8)
        for _ in range(HORIZON):
            width.next([], 1, _seconds, SWITCH, leap=True)
        return width.next([survival**k for k in range(1, 9)], 1, _seconds, SWITCH, leap=True)

    assert after(0.95) == 9
    assert after(0.3) == 1


def test_where_the_pass_is_a_change_anyway_the_better_width_is_taken_at_once() -> None:
    for free in (False, True):
        width = Width(8)
        width.next([0.9, 0.8, 0.7], 1, _seconds, 50.0)
        assert width.next([0.9, 0.8, 0.7], 1, _seconds, 50.0, free=free) == (4 if free else 1)
    # What one round promises must repay the way back alone, where the way there costs nothing: here 1.4 tokens of 7 ms
    # for 1.3 ms more, between one change and two.
    for free in (False, True):
        width = Width(8)
        for _ in range(8 * HORIZON):
            width.next([], 1, _seconds, SWITCH, leap=True)
        widest = width.next([0.6**k for k in range(1, 9)], 1, _seconds, SWITCH, free=free, leap=True)
        assert (widest > 4) == free


@pytest.mark.parametrize("form", ["adaptive", "causal", "budget"])
def test_after_a_pass_that_read_a_prompt_or_had_other_requests_a_change_is_not_waited_for(form: str) -> None:
    def widths(prompt: int, requests: int) -> tuple[int, int]:
        """After rounds in which drafts were accepted, and after one more whose pass had another shape."""
        costs = CostCurve(POINTS, switch=50.0)
        schedule: AdaptiveSchedule | PrefixSchedule = (
            AdaptiveSchedule(costs, 8, draft_seconds={"d": 0.0})
            if form == "adaptive"
            else PrefixSchedule(costs, 8, form="causal" if form == "causal" else "budget", draft_seconds=0.0)
        )

        def round_of(count: int, prompt: int = 0) -> int:
            slots = [Slot(i, 100, 64, "d") for i in range(count)]
            proposals = [Proposal([7] * n, None, "d", [0.95] * n) if n else Proposal() for n in schedule.lengths(slots)]
            admitted = schedule.admit(slots, proposals)
            emitted = [[7] * (k + 1) for k in admitted]
            rows = count + sum(admitted) + prompt
            seconds = _seconds(max(rows, schedule.width))
            schedule.observe(RoundRecord(slots, proposals, admitted, admitted, emitted, rows, seconds, 0.0, 0.0))
            return schedule.width

        before = [round_of(1) for _ in range(3)][-1]
        round_of(requests, prompt)
        return before, round_of(requests)

    kept, stays = widths(0, 1)
    assert stays == kept
    assert widths(50, 1)[1] > kept
    if form == "adaptive":  # it decides as a round begins, and sees who is there
        assert widths(0, 2)[1] > kept


survival_rows = st.lists(st.floats(0, 1), max_size=4).map(lambda row: sorted(row, reverse=True))


@given(
    st.lists(st.lists(survival_rows, min_size=1, max_size=3), min_size=1, max_size=12),
    st.floats(0, 6),
    st.sets(st.integers(0, 11)),
)
def test_the_width_is_the_one_of_its_obvious_twin(
    rounds: list[list[list[float]]], switch: float, free_rounds: set[int]
) -> None:
    width = Width(4)
    memory = 1 - 1 / HORIZON
    past: list[list[float]] = []
    now, lost = 1, 0.0
    for number, survivals in enumerate(rounds):
        free = number in free_rounds  # the pass is a change whatever is decided
        got = width.next(by_position(survivals), len(survivals), _seconds, switch, free=free)
        past.append([0.0, *(sum(1 + sum(row[: w - 1]) for row in survivals) for w in range(1, 6))])
        weights = [memory**age for age in range(len(past) - 1, -1, -1)]
        tokens = [sum(g * made[w] for g, made in zip(weights, past, strict=True)) for w in range(6)]
        rates = [0.0, *(tokens[w] / _seconds(w) for w in range(1, 6))]
        best = max(range(1, 6), key=lambda w: (rates[w], -w))
        if now > 1 or past[-1][5] > len(survivals):  # with nothing proposed there is no more reason than before
            each = (1 - rates[now] / rates[best]) * _seconds(now)
            lost += each
            gained = max(each * sum(weights), lost)
            price = 0.0 if free else switch
            if abs(gained - price) < 1e-9:
                return  # a tie that rounding decides
            if gained > price:
                now, lost = best, 0.0
        if abs(rates[got] - rates[now]) > 1e-12:
            assert got == now
        now = got


def test_admission_does_not_look_at_tokens_or_live_confidences() -> None:
    """Metamorphic: the same past, other drafted tokens and confidences, the same admitted lengths and width."""
    for make in (_adaptive, lambda: PrefixSchedule(CostCurve(POINTS, switch=SWITCH), 5, draft_seconds=0.5)):
        for past in range(0, 40, 5):
            seen = set()
            for other in range(4):
                schedule = make()
                for i in range(past):
                    n = schedule.lengths([Slot(0, 50, 64, "d")])[0]
                    proposal = Proposal([1] * n, None, "d", [0.7] * n) if n else Proposal()
                    (k,) = schedule.admit([Slot(0, 50, 64, "d")], [proposal])
                    accepted = i % (k + 1)
                    record = RoundRecord(
                        [Slot(0, 50, 64, "d")],
                        [proposal],
                        [k],
                        [accepted],
                        [[1] * (accepted + 1)],
                        1 + k,
                        8.0,
                        0.5,
                        0.1,
                    )
                    schedule.observe(record)
                slots = [Slot(0, 50, 64, "d"), Slot(1, 50, 64, "d")]
                n = min(schedule.lengths(slots))
                proposals = [Proposal([other + 1] * n, None, "d", [other / 4] * n) if n else Proposal()] * 2
                seen.add((tuple(schedule.admit(slots, proposals)), schedule.width))
            assert len(seen) == 1, (make, past)


def test_a_drafter_whose_confidences_promise_too_little_is_switched_off_and_tried_again() -> None:
    schedule = PrefixSchedule(CostCurve(POINTS, switch=SWITCH), 5, draft_seconds=2.0)
    slots = [Slot(0, 50, 64, "d")]
    tried = 0
    for _ in range(2000):
        (n,) = schedule.lengths(slots)
        tried += n > 0
        confidence = [0.2] * n
        proposal = Proposal([1] * n, None, "d", confidence) if n else Proposal()
        (k,) = schedule.admit(slots, [proposal])
        seconds = _seconds(max(1 + k, schedule.width))
        schedule.observe(RoundRecord(slots, [proposal], [k], [0], [[2]], 1 + k, seconds, 2.0 * (n > 0), 0.0))
    assert schedule.width == 1
    assert "does not pay" in str(schedule.off_reason(0))
    # The first rounds until it is off, then a try costs 11 of some 14 000 ms: a hundredth of the time is a dozen.
    assert 5 < tried < 40


def test_a_fixed_schedule_keeps_the_width_of_its_last_rounds() -> None:
    schedule = FixedSchedule(4)
    assert isinstance(schedule, Steady)
    slots = [Slot(0, 50, 64, "d")]
    assert schedule.width == 1
    for admitted in (4, *[0] * (RECENT - 1)):
        schedule.observe(RoundRecord(slots, [Proposal()], [admitted], [0], [[1]], 1 + admitted, 1.0, 0.0, 0.0))
        assert schedule.width == 5
    schedule.observe(RoundRecord(slots, [Proposal()], [0], [0], [[1]], 1, 1.0, 0.0, 0.0))
    assert schedule.width == 1


def test_a_curve_that_is_given_keeps_the_prefix_schedule_off_the_clock() -> None:
    """Proofs and simulations: the same rounds, other seconds, the same decisions."""

    def decisions(draft_seconds: float) -> list[int]:
        schedule = PrefixSchedule(CostCurve(POINTS, refine=False, switch=SWITCH), 8)
        slots, admitted = [Slot(0, 50, 64, "d")], []
        for _ in range(30):
            (n,) = schedule.lengths(slots)
            proposal = Proposal([1] * n, [None] * n, "d", [0.8] * n) if n else Proposal(drafter="d")
            (k,) = schedule.admit(slots, [proposal])
            schedule.observe(RoundRecord(slots, [proposal], [k], [k], [[1] * (k + 1)], 1 + k, 9.0, draft_seconds, 9.0))
            admitted.append(k)
        return admitted

    assert decisions(0.001) == decisions(1000.0)


def test_where_changes_cost_nothing_no_width_is_kept() -> None:
    assert AdaptiveSchedule(CostCurve(POINTS), 8).width == 0
    assert PrefixSchedule(CostCurve(POINTS), 8).width == 0


class _Bare:
    """A schedule that knows nothing of widths, as others may have written it."""

    name = "bare"

    def __init__(self, inner: FixedSchedule) -> None:
        self.lengths, self.admit, self.observe = inner.lengths, inner.admit, inner.observe
        self.off_reason, self.forget = inner.off_reason, inner.forget


def test_the_engine_tells_the_target_the_width_of_a_schedule_that_keeps_one() -> None:
    def widths(schedule: FixedSchedule | _Bare) -> list[tuple[int, int]]:
        target = toy_target(3)
        seen = []
        plain = target.score

        def score(feeds: Seq[Feed]) -> list[Rows]:
            seen.extend((feed.rows, feed.width) for feed in feeds)
            return plain(feeds)

        target.score = score  # type: ignore[method-assign]
        drafter = ScriptedDrafter(lambda history, drafted: 0 if len(drafted) < len(history) % 3 else None)
        engine = Engine(target, drafter=drafter, schedule=schedule)
        engine.generate([0, 1, 0], SamplingParams(max_tokens=8, temperature=0, ignore_eos=True))
        return seen

    kept = widths(FixedSchedule(2))
    rows = [1, *(rows for rows, _ in kept)]
    assert [width for _, width in kept] == [max(rows[: i + 1]) for i in range(len(kept))]
    assert set(rows) == {1, 2, 3}
    assert {width for _, width in widths(_Bare(FixedSchedule(2)))} == {0}


def test_replayed_calls_have_the_widths_of_the_run() -> None:
    target, seen = toy_target(3), list[int]()
    plain = target.score

    def score(feeds: Seq[Feed]) -> list[Rows]:
        seen.extend(feed.width for feed in feeds)
        return plain(feeds)

    target.score = score  # type: ignore[method-assign]
    recording = RecordingTarget(target, perf_counter)
    recording.log = log = Log(perf_counter)
    handle = recording.open()
    recording.score([Feed(handle, [0, 1], 1, width=5)])
    recording.close(handle)
    replay = Replay(log)
    replay.catch_up()
    replay.close()
    assert seen == [5, 5]


@pytest.mark.parametrize("rounds", [1, 100])
def test_a_rare_look_counts_for_the_rounds_since_the_last_one(rounds: int) -> None:
    """A tenth of a token a round is little beside a change of five rounds; in a hundred of them it is twice as much."""
    width = Width(1)
    width.next([0.1], 1, lambda width: 1.0, 5.0, rounds=rounds)
    assert width.now == (2 if rounds == 100 else 1)
