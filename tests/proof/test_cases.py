"""The production engine's joint law on the toy models: the cases of `draftproof prove`, and that they can fail."""

from collections import Counter
from fractions import Fraction

import pytest

from draftproof.draft.scripted import ScriptedDrafter
from draftproof.engine import Engine
from draftproof.proof import cases, toys
from draftproof.proof.engine_law import EngineProcess, engine_law, freeze
from draftproof.proof.enumeration import every_branch
from draftproof.sampling.params import SamplingParams
from draftproof.schedule.fixed import FixedSchedule
from draftproof.verify.token import TokenVerifier

ALL = list(cases.engine_cases())


def test_the_cases_cover_every_combination_of_parts_and_sizes():
    names = {(c.verifier, c.drafter, c.schedule, c.vocab_size, c.length) for c in ALL if c.requests == 1}
    wanted = {
        (v, d, s, size, length)
        for v in cases.VERIFIERS
        for d in toys.DRAFTERS
        for s in cases.SCHEDULES
        for size in cases.VOCABULARIES
        for length in cases.LENGTHS
    }
    assert wanted <= names
    assert Counter(c.requests for c in ALL)[2] == len(cases.VERIFIERS) * len(toys.DRAFTERS) * len(cases.SCHEDULES)


def test_toy_rows_have_zeros_equal_rows_and_eos_everywhere():
    prefixes = [(0, 1, 0), (0, 1, 0, 1), (0, 1, 0, 2), (0, 1, 0, 0), (0, 1, 0, 2, 1), (0, 1, 0, 1, 1)]
    rows = {salt: [toys.toy_row(p, 4, salt) for p in prefixes] for salt in "pq"}
    assert any(0 in row for row in rows["p"])
    assert any(0 in row for row in rows["q"])
    assert any(a == b for a, b in zip(rows["p"], rows["q"], strict=True))
    assert any(a != b for a, b in zip(rows["p"], rows["q"], strict=True))
    assert all(row[-1] > 0 for row in rows["p"])


@pytest.mark.parametrize("case", [c for c in ALL if c.vocab_size == 3 and c.length in (0, 3)], ids=lambda c: c.name)
def test_engine_law_equals_the_targets_exactly(case):
    outcome = case.run()
    assert outcome.error == 0
    assert isinstance(outcome.error, Fraction)
    assert outcome.difference is None
    assert outcome.answers >= 3 or case.temperature == 0


def test_merging_equal_states_changes_nothing():
    """The merged law equals the law of whole runs, branch by branch without merging."""

    def build():
        return Engine(
            toys.toy_target(2), drafter=toys.DRAFTERS["model"](2), verifier=TokenVerifier(), schedule=FixedSchedule(2)
        )

    params = SamplingParams(max_tokens=3)
    merged = engine_law(build, [(toys.PROMPT, params)])
    process = EngineProcess(build, [(toys.PROMPT, params)])

    def whole_run(chance):
        state = process.start()
        while process.outcome(state) is None:
            state = process.step(state, chance)
        return process.outcome(state)

    unmerged = Counter()
    for answer, probability, _ in every_branch(whole_run):
        unmerged[answer] += probability
    assert dict(unmerged) == merged


def test_a_drafter_with_hidden_state_is_not_merged_away():
    """State in any attribute of a drafter is part of the key: a drafter that counts its calls keeps paths apart."""

    class Counting(ScriptedDrafter):
        def __init__(self):
            super().__init__(lambda history, drafted: 0)
            self.calls = 0

        def __deepcopy__(self, memo):
            copy = Counting()
            copy.calls = self.calls
            return copy

    a, b = Counting(), Counting()
    b.calls = 1
    assert freeze(a) != freeze(b)


def test_a_difference_names_the_first_answer_with_both_probabilities():
    half, third = Fraction(1, 2), Fraction(1, 3)
    outcome = cases.compare(
        "x", {((0,),): half, ((1,),): half}, {((0,),): half, ((1,),): third, ((2,),): 1 - half - third}, 0
    )
    assert outcome.error == third / 2
    assert outcome.difference == cases.Difference((1,), half, third)
