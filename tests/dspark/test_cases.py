"""The enumerated engine with the toy DSpark drafter is exact, and would not be with a schedule that looks ahead."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from functools import partial

import pytest

from draftproof.draft.base import DraftRequest, Proposal
from draftproof.engine import Engine
from draftproof.proof import dspark_cases as dspark_cases_module
from draftproof.proof.cases import product
from draftproof.proof.dspark_cases import JAGGED, SCHEDULES, DSparkCase, ToyDSpark, dspark_cases
from draftproof.proof.engine_law import engine_law, target_law
from draftproof.proof.faults import retrospective
from draftproof.proof.toys import PROMPT, toy_model, toy_target
from draftproof.rounds import Settled
from draftproof.sampling.params import SamplingParams
from draftproof.schedule.admission import fill
from draftproof.schedule.allocate import best_rows
from draftproof.schedule.base import RoundRecord, Schedule, Slot
from draftproof.schedule.costs import CostCurve
from draftproof.schedule.prefix import PrefixSchedule


@pytest.mark.parametrize("case", list(dspark_cases()), ids=lambda case: case.name)
def test_every_case_is_exact(case: DSparkCase) -> None:
    outcome = case.run()
    assert outcome.error == 0, outcome.difference
    assert isinstance(outcome.error, Fraction)


class _DropsBeforeTheUnsure(ToyDSpark):
    """Ends a block where the next confidence is low, and drops the token drawn last, which made it so."""

    def _one(self, request: DraftRequest) -> Proposal:
        whole = super()._one(dataclasses.replace(request, thresholds=()))
        for k, threshold in enumerate(request.thresholds[: len(whole.tokens)]):
            if k and (whole.confidence or [])[k] < threshold:
                return whole.cut(k - 1)
        return whole


@pytest.mark.parametrize("requests", [1, 2])
def test_a_drafter_that_drops_a_token_for_what_follows_it_is_caught(
    requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the cases whose blocks end by thresholds prove something."""
    monkeypatch.setattr(dspark_cases_module, "ToyDSpark", _DropsBeforeTheUnsure)
    assert DSparkCase("token", "fixed, blocks end", 2, 2, requests=requests).run().error != 0


class _LooksAhead(PrefixSchedule):
    """Searches past dips with the confidences of the round itself."""

    def admit(self, slots: list[Slot], proposals: list[Proposal]) -> list[int]:  # type: ignore[override]
        survivals = [list(self._survivals(p)) for p in proposals]
        return list(best_rows(survivals, self._round(len(slots), 0, 0.1)).lengths)


class _BudgetOfThisRound(PrefixSchedule):
    """Takes the budget from the confidences of the very blocks it cuts."""

    def admit(self, slots: list[Slot], proposals: list[Proposal]) -> list[int]:  # type: ignore[override]
        survivals = [list(self._survivals(p)) for p in proposals]
        best = best_rows(survivals, self._round(len(slots), 0, 0.1))
        return fill([iter(s) for s in survivals], sum(best.lengths))


@pytest.mark.parametrize("fault", [_LooksAhead, _BudgetOfThisRound])
def test_a_schedule_that_looks_ahead_is_caught(fault: type[PrefixSchedule]) -> None:
    """On the toy drafter: no case needs to be made for it."""
    wrong = 0
    for vocab_size in (2, 3):
        params = SamplingParams(max_tokens=4)

        def build(vocab_size: int = vocab_size) -> Engine:
            schedule = fault(CostCurve(JAGGED, refine=False), 3, draft_seconds=0.1)
            return Engine(toy_target(vocab_size), drafter=ToyDSpark(vocab_size), schedule=schedule)

        right = product([target_law(toy_model(vocab_size), PROMPT, params, frozenset([vocab_size - 1]))])
        wrong += engine_law(build, [(PROMPT, params)]) != right
    assert wrong


def test_the_papers_retrospective_schedule_gives_085_015() -> None:
    caught = retrospective().run()
    assert [float(x) for x in caught.first_token[:2]] == pytest.approx([0.85, 0.15])
    assert caught.caught


class _Lengths:
    def __init__(self) -> None:
        self.seen: set[tuple[int, int]] = set()

    def round(self, record: RoundRecord, settled: list[Settled]) -> None:
        self.seen.update((len(p.tokens), n) for p, n in zip(record.proposals, record.admitted, strict=True))


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name.startswith("prefix")])
def test_the_schedules_really_cut_blocks(name: str) -> None:
    """Otherwise the cases above would prove a fixed schedule again."""
    make: partial[Schedule] = partial(SCHEDULES[name], 3)
    watch = _Lengths()
    for seed in range(40):
        engine = Engine(toy_target(3), drafter=ToyDSpark(3), schedule=make())
        engine.observers.append(watch)  # type: ignore[arg-type]
        engine.generate_all([[0, 1, 0], [1, 1]], SamplingParams(max_tokens=8, seed=seed))
    if name == "prefix, dear changes":  # drafts no more than it verifies, in widths that change
        assert {n for _, n in watch.seen} >= {0, 1, 2, 3}, watch.seen
    elif name.endswith("blocks end"):  # by the drafter, so that less is left to cut
        assert {length for length, _ in watch.seen} >= {0, 1, 2}, watch.seen
    else:
        assert any(0 < n < length for length, n in watch.seen), watch.seen
    assert len({n for _, n in watch.seen}) >= 2, watch.seen
