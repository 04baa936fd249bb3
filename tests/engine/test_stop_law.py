"""Stops do not change the law: the enumerated engine with stop ids and stop strings at every place of a block."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest
from engine_kit import PROMPT, letters, model, says

from draftproof.draft.base import Drafter
from draftproof.draft.model import ModelDrafter
from draftproof.draft.scripted import ScriptedDrafter
from draftproof.engine import Engine
from draftproof.proof.engine_law import engine_law, target_law
from draftproof.sampling.params import SamplingParams
from draftproof.schedule.fixed import FixedSchedule
from draftproof.target.table import TableTarget
from draftproof.verify import BlockVerifier, CoupledVerifier, MatchVerifier, TokenVerifier, Verifier

SIZE = 3
VERIFIERS = {"token": TokenVerifier(), "block": BlockVerifier(), "match": MatchVerifier(), "coupled": CoupledVerifier()}
DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "model": lambda: ModelDrafter(TableTarget(model(SIZE, salt=2))),
    "points": lambda: says([0, 2, 1, 2, 0]),
    "always the stop": lambda: ScriptedDrafter(lambda history, drafted: 2),
}


def law_of(verifier: Verifier, drafter: Callable[[], Drafter], params: SamplingParams, length: int, **options: object):  # type: ignore[no-untyped-def]
    law = engine_law(
        lambda: Engine(
            TableTarget(model(SIZE), **options),
            drafter=drafter(),
            verifier=verifier,
            schedule=FixedSchedule(length),
            tokenizer=letters(),
        ),
        [(PROMPT, params)],
    )
    return {answer[0]: p for answer, p in law.items()}


@pytest.mark.parametrize("drafter", DRAFTERS.values(), ids=DRAFTERS)
@pytest.mark.parametrize("verifier", VERIFIERS.values(), ids=VERIFIERS)
def test_stop_ids_and_eos_at_every_place_of_a_block_leave_the_law_exact(
    verifier: Verifier, drafter: Callable[[], Drafter]
) -> None:
    for length in (1, 2, 3):
        params = SamplingParams(max_tokens=4, stop_ids=[2])
        want = target_law(model(SIZE), PROMPT, params, frozenset([1, 2]))
        assert law_of(verifier, drafter, params, length, eos_ids=[1]) == want


@pytest.mark.parametrize("drafter", DRAFTERS.values(), ids=DRAFTERS)
@pytest.mark.parametrize("verifier", VERIFIERS.values(), ids=VERIFIERS)
@pytest.mark.parametrize(("stop", "least"), [(("ab",), 0), (("c", "aa"), 0), (("bc", "a"), 2)])
def test_stop_strings_cut_the_law_where_they_end_and_nowhere_else(
    verifier: Verifier, drafter: Callable[[], Drafter], stop: tuple[str, ...], least: int
) -> None:
    free = target_law(model(SIZE), PROMPT, SamplingParams(max_tokens=4), frozenset())
    want: dict[tuple[int, ...], Fraction] = {}
    for answer, p in free.items():
        text = letters().decode(answer)
        ends = [n for n in range(least + 1, 5) if any(text[:n].endswith(s) for s in stop)]
        kept = answer[: ends[0]] if ends else answer
        want[kept] = want.get(kept, Fraction(0)) + Fraction(p)
    params = SamplingParams(max_tokens=4, stop=stop, min_tokens=least)
    assert law_of(verifier, drafter, params, 3) == want
