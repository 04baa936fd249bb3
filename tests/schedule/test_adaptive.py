"""The adaptive schedule: what it chooses, what it may know, and that it does not lose."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.draft.base import Proposal
from draftproof.errors import InvalidValue
from draftproof.schedule.acceptance import LEAST, Acceptance
from draftproof.schedule.adaptive import EVIDENCE, POOLED, PROBE_SHARE, AdaptiveSchedule
from draftproof.schedule.allocate import best_block, best_rows
from draftproof.schedule.base import RoundRecord, Slot
from draftproof.schedule.costs import CostCurve

survival_rows = st.lists(st.floats(0, 1), max_size=4).map(lambda row: sorted(row, reverse=True))


@given(st.lists(survival_rows, min_size=1, max_size=3), st.lists(st.floats(0.01, 1), min_size=16, max_size=16))
def test_allocation_is_the_best_of_all_prefixes(survivals, steps):
    cumulative = np.cumsum([1.0, *steps])

    def seconds(rows):
        return float(cumulative[rows])

    found = best_rows(survivals, seconds)
    every = []
    for lengths in product(*(range(len(row) + 1) for row in survivals)):
        tokens = len(survivals) + sum(sum(row[:n]) for row, n in zip(survivals, lengths, strict=True))
        every.append(tokens / seconds(len(survivals) + sum(lengths)))
    assert found.rate == pytest.approx(max(every), rel=1e-12)
    assert all(n <= len(row) for n, row in zip(found.lengths, survivals, strict=True))


@given(
    st.lists(survival_rows, min_size=1, max_size=3),
    st.lists(st.floats(0.01, 1), min_size=16, max_size=16),
    st.lists(st.floats(0.01, 3), min_size=4, max_size=4),
)
def test_allocation_is_the_best_also_where_the_longest_block_costs(survivals, steps, drafting):
    cumulative, blocks = np.cumsum([1.0, *steps]), np.cumsum([0.0, *drafting])

    def seconds(rows, longest):
        return float(cumulative[rows] + blocks[longest])

    found = best_block(survivals, seconds)
    every = []
    for lengths in product(*(range(len(row) + 1) for row in survivals)):
        tokens = len(survivals) + sum(sum(row[:n]) for row, n in zip(survivals, lengths, strict=True))
        every.append(tokens / seconds(len(survivals) + sum(lengths), max(lengths)))
    at = seconds(len(survivals) + sum(found.lengths), max(found.lengths))
    made = len(survivals) + sum(sum(row[:n]) for row, n in zip(survivals, found.lengths, strict=True))
    assert made / at == pytest.approx(max(every), rel=1e-12)


def test_equal_survivals_go_by_position_then_by_request():
    # Room for exactly two more rows: both requests get their first token before either gets its second.
    found = best_rows([[0.5, 0.5], [0.5, 0.5]], lambda rows: 1.0 if rows <= 4 else 100.0)
    assert found.lengths == (1, 1)
    found = best_rows([[0.5, 0.5], [0.5, 0.5]], lambda rows: 1.0 if rows <= 3 else 100.0)
    assert found.lengths == (1, 0)


def test_acceptance_is_conditional_on_what_came_before_and_decays():
    acceptance = Acceptance(decay=0.9)
    for rounds in range(1, 200):
        acceptance.observe("d", 0, verified=3, accepted=rounds % 2 + 1)
        # Observations and a prior of 0.6 worth two, each weighing 0.9 of what it did with every newer one.
        seen = [(0.6, 2.0), *((1.0, 1.0) for _ in range(rounds))]
        weights = [weight * 0.9**age for age, (_, weight) in zip(range(rounds, -1, -1), seen, strict=True)]
        first = sum(w * hit for w, (hit, _) in zip(weights, seen, strict=True)) / sum(weights)
        assert acceptance.estimate("d", 0, 0) == pytest.approx(first)
        seen = [(first, 2.0), *((n % 2, 1.0) for n in range(1, rounds + 1))]
        second = sum(w * hit for w, (hit, _) in zip(weights, seen, strict=True)) / sum(weights)
        assert acceptance.estimate("d", 0, 1) == pytest.approx(second)
    assert acceptance.survivals("d", 0, 2) == sorted(acceptance.survivals("d", 0, 2), reverse=True)
    for _ in range(50):
        acceptance.observe("d", 0, verified=3, accepted=3)
    assert acceptance.estimate("d", 0, 1) > 0.7


def test_what_is_always_wrong_comes_to_be_worth_nothing():
    acceptance = Acceptance()
    for _ in range(512):
        acceptance.observe("d", 0, verified=1, accepted=0)
    assert acceptance.estimate("d", 0, 0) < 1e-4


def test_what_was_seen_long_ago_counts_for_less_beside_what_comes_and_is_no_reason_to_hope():
    old, aged = Acceptance(), Acceptance()
    for acceptance in (old, aged):
        for _ in range(300):
            acceptance.observe("d", 0, 1, 0)
    old.observe("d", 0, 1, 0)
    aged.observe("d", 0, 1, 0, rounds=1000)
    assert aged.estimate("d", 0, 0) == pytest.approx(old.estimate("d", 0, 0), abs=0.01)
    for acceptance in (old, aged):
        acceptance.observe("d", 0, 1, 1)
    assert old.estimate("d", 0, 0) < 0.03
    assert aged.estimate("d", 0, 0) == pytest.approx(1 / (LEAST + 2), rel=0.05)


def test_strata_and_drafters_are_kept_apart():
    acceptance = Acceptance()
    for _ in range(50):
        acceptance.observe("a", 2, 1, 0)
        acceptance.observe("a", 5, 1, 1)
    assert acceptance.estimate("a", 2, 0) < 0.1 < 0.9 < acceptance.estimate("a", 5, 0)
    assert acceptance.estimate("b", 2, 0) == pytest.approx(0.6)


@pytest.mark.parametrize("decay", [0.0, 1.5])
def test_a_senseless_decay_is_refused(decay):
    with pytest.raises(InvalidValue):
        Acceptance(decay)


@pytest.mark.parametrize("longest", [-1, 65])
def test_a_senseless_length_is_refused(longest):
    with pytest.raises(InvalidValue):
        AdaptiveSchedule(CostCurve({1: 1.0}), longest)


class Machine:
    """A machine with known costs and a drafter with known acceptance; drives a schedule as the engine does.

    Point-mass proposals of `longest` tokens each round (or of a sampled drafter with a cost per token, and of a block).
    """

    def __init__(self, curve, acceptance, *, draft_seconds=0.0, block_seconds=0.0, sampled=False, longest=8):
        self.curve, self.acceptance, self.draft_seconds, self.sampled = curve, acceptance, draft_seconds, sampled
        self.block_seconds = block_seconds
        self.proposed = 0
        self.schedule = AdaptiveSchedule(CostCurve(curve.points), longest)
        self.random = np.random.default_rng(0)
        self.seconds, self.tokens, self.rounds, self.admitted = 0.0, 0, 0, []

    def round(self):
        slots = [Slot(0, 100 + self.tokens, 64, "d")]
        (length,) = self.schedule.lengths(slots)
        q = [None] * length if not self.sampled else [object()] * length
        proposal = Proposal([7] * length, q if self.sampled else None, "d") if length else Proposal()
        (admitted,) = self.schedule.admit(slots, [proposal])
        self.proposed = length
        accepted = 0
        while accepted < admitted and self.random.random() < self.acceptance:
            accepted += 1
        hit = accepted == admitted and self.random.random() < self.acceptance
        emitted = [7] * accepted + [7 if hit else 8]
        target = self.curve.seconds(1 + admitted)
        draft = self.draft_seconds * length + (self.block_seconds if length else 0.0)
        self.schedule.observe(
            RoundRecord(slots, [proposal], [admitted], [accepted], [emitted], 1 + admitted, target, draft, 0.0)
        )
        self.seconds += target + draft
        self.tokens += accepted + 1
        self.rounds += 1
        self.admitted.append(admitted)

    def run(self, tokens):
        while self.tokens < tokens:
            self.round()
        return self.tokens / self.seconds


CURVE = CostCurve({1: 12.0, 2: 13.5, 4: 17.0, 8: 22.0, 16: 34.0}, refine=False)


def test_an_always_wrong_free_drafter_loses_less_than_three_percent_over_512_tokens():
    machine = Machine(CURVE, 0.0)
    assert machine.run(512) >= 0.97 / 12.0
    assert machine.admitted[-1] == 0
    assert "does not pay" in machine.schedule.off_reason(0)


@pytest.mark.parametrize("draft_seconds", [0.02, 0.1, 0.175, 0.5, 3.0])
@pytest.mark.parametrize("sampled", [False, True])
def test_an_always_wrong_costly_drafter_loses_less_than_three_percent_over_512_tokens(draft_seconds, sampled):
    """Whatever a token costs: 8 tokens a round of a hundredth of a pass each would cost a twelfth of everything."""
    machine = Machine(CURVE, 0.0, draft_seconds=draft_seconds, sampled=sampled)
    assert machine.run(512) >= 0.97 / 12.0
    lost = machine.schedule._probed / machine.schedule._elapsed
    assert lost <= PROBE_SHARE * 1.1


@pytest.mark.parametrize("acceptance", [0.1, 0.3, 0.5, 0.7, 0.9, 0.97])
def test_the_choice_is_close_to_the_best_fixed_length(acceptance):
    """At least 0.95 of the best fixed length's own expectation (Leviathan's closed form), on a long run."""

    def fixed(length):
        tokens = sum(acceptance**k for k in range(length + 1))
        return tokens / CURVE.seconds(1 + length)

    best = max(fixed(length) for length in range(9))
    assert Machine(CURVE, acceptance).run(6000) >= 0.95 * best


@pytest.mark.parametrize(("draft_seconds", "sampled"), [(0.0, False), (0.01, True)])
def test_it_comes_back_when_drafts_become_good_again(draft_seconds, sampled):
    """Drawn tokens that are not verified tell nothing, however cheap they are: one is verified now and then."""
    machine = Machine(CURVE, 0.0, draft_seconds=draft_seconds, sampled=sampled)
    machine.run(200)
    assert machine.admitted[-1] == 0
    machine.acceptance = 0.9
    machine.run(2000 if sampled else 400)
    assert machine.admitted[-1] > 0
    assert machine.schedule.off_reason(0) is None


def test_a_free_drafter_that_is_hardly_ever_right_is_asked_in_one_round_of_four_until_a_proposal_is_verified():
    machine = Machine(CURVE, 0.0)
    machine.run(200)
    proposed = []
    for _ in range(40):
        machine.round()
        proposed.append(machine.proposed)
    assert proposed.count(0) == 30
    machine.acceptance = 0.9
    machine.run(machine.tokens + 400)
    assert machine.admitted[-1] > 0
    slots = [Slot(0, 100, 64, "d")]
    for _ in range(15):  # one proposal that is not verified is no reason to ask less
        assert machine.schedule.lengths(slots) == [8]
        proposal = Proposal([7] * 8, None, "d")
        machine.schedule.observe(RoundRecord(slots, [proposal], [0], [0], [[8]], 1, 12.0, 0.0, 0.0))


def test_a_costly_drafter_that_was_off_is_probed_and_comes_back():
    machine = Machine(CURVE, 0.0, draft_seconds=0.5, sampled=True)
    machine.run(300)
    machine.acceptance = 0.95
    machine.run(5000)
    assert np.mean(machine.admitted[-50:]) > 1


def test_a_drafter_of_blocks_whose_first_token_is_the_dear_one_is_asked_for_as_many_as_pay():
    level = CostCurve({1: 6.0, 5: 6.0, 9: 9.0}, refine=False)
    machine = Machine(level, 0.5, draft_seconds=0.15, block_seconds=1.2, sampled=True)
    machine.run(1000)
    assert np.mean(machine.admitted[-200:]) > 2.7  # 4 makes 0.2484 tokens a second, 3 0.2451, 2 0.2333


def test_admission_does_not_look_at_tokens():
    """Metamorphic: the same past, other drafted values, the same admitted length."""
    for past in range(0, 60, 7):
        lengths = set()
        for token in range(5):
            machine = Machine(CURVE, 0.6)
            for _ in range(past):
                machine.round()
            slots = [Slot(0, 50, 64, "d")]
            (n,) = machine.schedule.lengths(slots)
            (admitted,) = machine.schedule.admit(slots, [Proposal([token] * n, None, "d")])
            lengths.add(admitted)
        assert len(lengths) == 1


def test_of_drawn_tokens_none_is_drawn_that_is_not_verified_and_found_ones_beside_them_are_weighed():
    """Two requests of one cheap drafter, which draws for the first and finds for the second."""
    schedule = AdaptiveSchedule(CostCurve(CURVE.points), 4)
    for _ in range(40):
        slots = [Slot(0, 100, 64, "d"), Slot(1, 100, 64, "d")]
        lengths = schedule.lengths(slots)
        qs = ([object()] * lengths[0], None)
        proposals = [
            Proposal([7] * n, q if n else None, "d", stratum=i)
            for i, (n, q) in enumerate(zip(lengths, qs, strict=True))
        ]
        admitted = schedule.admit(slots, proposals)
        emitted = [[7, 8], [8]]
        accepted = [min(1, admitted[0]), 0]
        schedule.observe(RoundRecord(slots, proposals, admitted, accepted, emitted, 2 + sum(admitted), 12.0, 0.01, 0.0))
        assert lengths[0] == admitted[0]
    assert (lengths[1], admitted[1]) == (4, 0)
    assert schedule.lengths([Slot(1, 100, 64, "d")]) == [4]
    assert schedule.lengths([Slot(2, 100, 64, "d")]) != [4]  # of another request nobody knows; it may draw
    schedule.forget(1)
    assert schedule.lengths([Slot(1, 100, 64, "d")]) != [4]


def test_a_block_that_ends_after_a_drawn_token_is_verified_as_if_it_did_not():
    """Eight tokens pay where one does not. How many there are may depend on one that was drawn: EOS ends a block."""
    for drawn in (True, False):
        schedule = AdaptiveSchedule(CostCurve({1: 1.0, 2: 1.7, 9: 1.7}, refine=False), 8, draft_seconds={"d": 0.0})
        slots = [Slot(0, 100, 64, "d")]
        assert schedule.lengths(slots) == [8]
        whole, short = (Proposal([7] * n, [object()] * n if drawn else None, "d") for n in (8, 1))
        assert schedule.admit(slots, [whole]) == [8]
        assert schedule.admit(slots, [short]) == [1 if drawn else 0]


def test_a_costly_chain_of_drafters_is_judged_by_what_its_members_achieved():
    """Proposals carry the name of the member that made them; the decision before drafting is about the chain."""
    schedule = AdaptiveSchedule(CURVE, 4, draft_seconds={"lookup+model": 4.0})
    slots = [Slot(0, 50, 64, "lookup+model")]
    assert schedule.lengths(slots) != [0]
    for _ in range(30):
        record = RoundRecord(slots, [Proposal([7], [object()], "model")], [1], [0], [[8]], 2, 13.5, 4.0, 0.0)
        schedule.observe(record)
    assert schedule.lengths(slots) == [0]


def test_a_request_without_speculation_does_not_hide_what_drafting_costs():
    """It comes first in the round; the drafter of the other one takes most of a pass for a token."""
    schedule = AdaptiveSchedule(CostCurve(CURVE.points), 4)
    slots = [Slot(0, 50, 0, "none"), Slot(1, 50, 64, "model")]
    drafted = 0
    for i in range(200):
        _, n = schedule.lengths(slots)
        proposal = Proposal([7] * n, [object()] * n, "model") if n else Proposal()
        _, k = schedule.admit(slots, [Proposal(), proposal])
        hit = k and i % 3 == 0
        record = RoundRecord(
            slots, [Proposal(), proposal], [0, k], [0, hit], [[1], [7] * (1 + hit)], 2 + k, 13.0, 8.0 * n, 0.0
        )
        schedule.observe(record)
        drafted += n > 0
    assert drafted < 30


def test_a_stale_curve_is_measured_again_only_when_no_request_is_live():
    fresh = CostCurve({1: 2.0, 4: 8.0})
    schedule = AdaptiveSchedule(CostCurve({1: 1.0, 4: 2.0}), measure_again=lambda: fresh)
    schedule.lengths([Slot(0, 10, 8, "d"), Slot(1, 10, 8, "d")])
    schedule.costs._disagreed = 10**6
    schedule.forget(0)
    assert schedule.costs is not fresh
    schedule.forget(1)
    assert schedule.costs is fresh


def test_what_a_costly_drafter_did_not_find_counts_against_asking_it():
    """A drafter that is right whenever it proposes, which is once in ten rounds, is not worth three rows in each."""
    schedule = AdaptiveSchedule(CURVE, 4, draft_seconds={"d": 0.5})
    slots = [Slot(0, 50, 64, "d")]
    for i in range(200):
        (asked,) = schedule.lengths(slots)
        found = asked and i % 10 == 0
        proposal = Proposal([7] * asked, None, "d") if found else Proposal()
        (n,) = schedule.admit(slots, [proposal])
        schedule.observe(RoundRecord(slots, [proposal], [n], [n], [[7] * (n + 1)], 1 + n, 12.0, 0.5, 0.0))
    assert schedule.lengths(slots) == [0]


@pytest.mark.parametrize("finds", [False, True])
def test_a_costly_drafter_is_judged_after_some_rounds_and_not_by_the_first(finds):
    """Right in two of five rounds, but not in the first four: it pays. One that finds nothing is not asked for long."""
    schedule = AdaptiveSchedule(CostCurve({1: 10.0, 5: 10.0}), 5)
    slots = [Slot(0, 50, 64, "d")]
    asked = []
    for i in range(400):
        (n,) = schedule.lengths(slots)
        asked.append(n)
        proposal = Proposal([7] * n, [object()] * n, "d") if n and finds else Proposal(drafter="d")
        (k,) = schedule.admit(slots, [proposal])
        hit = int(k > 0 and i >= 4 and i % 5 < 2)
        draft = (2.0 + 0.2 * n) * (n > 0)
        schedule.observe(RoundRecord(slots, [proposal], [k], [hit], [[7] * (hit + 1)], 1 + k, 10.0, draft, 0.0))
    assert asked[:EVIDENCE] == [3, 1] * (EVIDENCE // 2)
    if finds:
        assert sum(n > 0 for n in asked) > 390
    else:
        assert sum(n > 0 for n in asked) < EVIDENCE + 20


@pytest.mark.parametrize(("seconds", "asked"), [(0.02, 8), (0.1, 0)])
def test_a_given_cost_of_a_token_counts_for_as_many_as_are_asked_for(seconds, asked):
    """Of a pass of 12: 8 tokens of 0.02 are cheap and go on being proposed, 8 of 0.1 are not; neither is ever right."""
    schedule = AdaptiveSchedule(CURVE, 8, draft_seconds={"d": seconds})
    slots = [Slot(0, 50, 64, "d")]
    for _ in range(60):
        (n,) = schedule.lengths(slots)
        proposal = Proposal([7] * n, None, "d") if n else Proposal()
        (k,) = schedule.admit(slots, [proposal])
        schedule.observe(RoundRecord(slots, [proposal], [k], [0], [[8]], 1 + k, 12.0, 0.0, 0.0))
    assert schedule.lengths(slots) == [asked]


class Even:
    """Numbers spread evenly over [0, 1): no luck."""

    def __init__(self):
        self.count = 0

    def random(self):
        self.count += 1
        return self.count * 0.6180339887 % 1


@pytest.mark.parametrize("rate", [0.1, 0.15, 0.2])
def test_texts_that_have_become_easier_are_noticed_soon(rate):
    """A block takes a third of a pass and is worth less; after 1 000 rounds it is worth more. What is nearly worth it
    is asked often, since that loses little: charged for all of their seconds, tries took 460 to 720 rounds to notice.
    And what the rounds before have shown grows old with every round: where only tries aged it, it took 260 to 325.
    """
    curve = CostCurve({1: 10.0, 9: 10.2}, refine=False)
    machine = Machine(curve, rate, draft_seconds=0.2, block_seconds=3.0, sampled=True, longest=3)
    machine.random, asked = Even(), []
    for i in range(1160):
        machine.acceptance = 0.5 if i >= 1000 else rate
        machine.round()
        asked.append(machine.proposed)
    assert machine.schedule._probed <= PROBE_SHARE * 1.1 * machine.schedule._elapsed
    assert sum(n > 0 for n in asked[200:1000]) < 100
    assert sum(n > 0 for n in asked[-60:]) > 50


def test_a_drafter_with_nothing_to_go_by_before_the_prompt_was_read_was_not_wrong():
    """32 requests join: none of their blocks can be made yet, which says nothing of those to come."""
    schedule = AdaptiveSchedule(CostCurve({1: 6.0, 32: 30.0, 64: 32.0, 96: 48.0}, switch=5.0), 3)
    slots = [Slot(i, 10, 50, "d") for i in range(32)]
    before = schedule.acceptance.survivals("d", POOLED, 3)
    assert any(schedule.lengths(slots))
    nothing = [Proposal(drafter="d")] * 32
    assert schedule.admit(slots, nothing) == [0] * 32
    schedule.observe(RoundRecord(slots, nothing, [0] * 32, [0] * 32, [[0]] * 32, 320, 90.0, 0.3, 0.0))
    assert schedule.acceptance.survivals("d", POOLED, 3) == before
    assert all(schedule.lengths(slots))
    schedule.admit(slots, nothing)  # with nothing new to read it is
    schedule.observe(RoundRecord(slots, nothing, [0] * 32, [0] * 32, [[0]] * 32, 32, 30.0, 0.3, 0.0))
    assert schedule.acceptance.survivals("d", POOLED, 3)[0] < 0.5 * before[0]
