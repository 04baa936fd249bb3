"""Seeds (faults class J): draws depend on seed, sample and position, never on the batch, the round or the slot."""

from __future__ import annotations

from dataclasses import replace

import pytest
from engine_kit import PROMPT, five_drafters, float_model, run

from draftproof.chance import Purpose, SeededChance, Streams
from draftproof.dist import Dist
from draftproof.draft.base import Drafter
from draftproof.engine import Engine
from draftproof.result import FinishEvent
from draftproof.sampling.params import SamplingParams
from draftproof.schedule.fixed import FixedSchedule
from draftproof.target.table import TableTarget
from draftproof.verify import BlockVerifier, CoupledVerifier, Drafted, MatchVerifier, TokenVerifier, Verifier

VERIFIERS = {"token": TokenVerifier(), "block": BlockVerifier(), "match": MatchVerifier(), "coupled": CoupledVerifier()}
PARAMS = SamplingParams(max_tokens=20, seed=7)


def fresh(verifier: Verifier, drafter: Drafter | None = None, length: int = 3) -> Engine:
    return Engine(TableTarget(float_model(5)), drafter=drafter, verifier=verifier, schedule=FixedSchedule(length))


@pytest.mark.parametrize("name", list(five_drafters()))
@pytest.mark.parametrize("verifier", VERIFIERS.values(), ids=VERIFIERS)
def test_the_same_seed_twice_gives_the_same_answer(verifier: Verifier, name: str) -> None:
    build = five_drafters()[name]
    first = fresh(verifier, build()).generate(PROMPT, PARAMS)
    engine = fresh(verifier, build())
    engine.generate(PROMPT, replace(PARAMS, seed=99))  # what ran before does not matter
    again = engine.generate(PROMPT, PARAMS)
    assert again.token_ids == first.token_ids
    assert first.seed == 7


@pytest.mark.parametrize("verifier", VERIFIERS.values(), ids=VERIFIERS)
def test_seeded_and_unseeded_requests_in_one_batch_each_go_their_own_way(verifier: Verifier) -> None:
    build = five_drafters()["model"]
    alone = [fresh(verifier, build()).generate(PROMPT, replace(PARAMS, seed=s)).token_ids for s in (1, 2)]
    for seeds in ([1, None, 2], [None, 1, 2], [1, 2, None]):
        results = fresh(verifier, build()).generate_all([PROMPT] * 3, [replace(PARAMS, seed=s) for s in seeds])
        seeded = {seed: r.token_ids for seed, r in zip(seeds, results, strict=True) if seed is not None}
        assert [seeded[1], seeded[2]] == alone
        unseeded = results[seeds.index(None)]
        assert set(unseeded.token_ids) != {0}  # by chance below 1e-9, see the next test
        assert unseeded.seed not in (1, 2)


def test_an_answer_of_zeros_only_is_too_unlikely_to_come_by_chance() -> None:
    table, chance = float_model(5), 1.0
    for n in range(20):
        chance *= float(table.row((*PROMPT, *[0] * n)).prob(0))
    assert chance < 1e-9


def test_the_answer_at_temperature_zero_does_not_depend_on_the_seed() -> None:
    for verifier in VERIFIERS.values():
        answers = {
            fresh(verifier, five_drafters()["model"]())
            .generate(PROMPT, replace(PARAMS, temperature=0, seed=s))
            .token_ids
            for s in (None, 0, 1, 2**64 - 1)
        }
        assert len(answers) == 1


@pytest.mark.parametrize("name", list(five_drafters()))
def test_a_request_retracted_and_resumed_in_another_slot_goes_on_as_if_nothing_had_happened(name: str) -> None:
    whole = fresh(CoupledVerifier()).generate(PROMPT, PARAMS).token_ids
    engine = fresh(CoupledVerifier(), five_drafters()[name]())
    request = engine.add(PROMPT, PARAMS)
    engine.round()
    engine.round()
    part = engine.cancel(request)
    assert part.finish_reason == "cancelled"
    assert part.token_ids == whole[: len(part.token_ids)]
    engine.add([3, 3], PARAMS)  # another request takes a slot first
    resumed = engine.add(PROMPT, PARAMS, answered=part.token_ids)
    ends = {e.request: e.result for e, _ in run(engine) if isinstance(e, FinishEvent)}
    assert (*part.token_ids, *ends[resumed].token_ids) == whole


def test_two_verifiers_with_the_same_key_decide_alike() -> None:
    drafted = Drafted((0, 1), (Dist.checked([0.5, 0.5]), Dist.checked([0.3, 0.7])))
    rows = type("Rows", (), {"p": lambda self, i: Dist.checked([0.4, 0.6])})()
    for make in (TokenVerifier, BlockVerifier, MatchVerifier, CoupledVerifier):
        for seed in range(20):
            verdicts = [make().verify(drafted, rows, Streams(SeededChance(seed), epoch=5), 5) for _ in range(2)]
            assert verdicts[0] == verdicts[1]


def test_requests_without_a_seed_draw_afresh_and_report_a_seed_that_repeats_them() -> None:
    engine = fresh(TokenVerifier(), five_drafters()["model"]())
    results = [engine.generate(PROMPT, replace(PARAMS, seed=None)) for _ in range(4)]
    assert len({r.token_ids for r in results}) > 1  # all alike by chance: each token agrees with probability below 0.7
    for result in results:
        again = engine.generate(PROMPT, replace(PARAMS, seed=result.seed))
        assert again.token_ids == result.token_ids


@pytest.mark.parametrize("name", list(five_drafters()))
@pytest.mark.parametrize("length", [0, 1, 4, 8])
def test_coupled_and_matched_answers_do_not_depend_on_drafter_length_or_batch(name: str, length: int) -> None:
    for verifier in (CoupledVerifier(), MatchVerifier()):
        plain = [fresh(verifier).generate([0, i], PARAMS).token_ids for i in range(3)]
        batch = fresh(verifier, five_drafters()[name](), length).generate_all([[0, i] for i in range(3)], PARAMS)
        assert [r.token_ids for r in batch] == plain


def test_proposals_and_verification_never_share_a_stream() -> None:
    seen: dict[object, set[Purpose]] = {}

    class Noting(SeededChance):
        def at(self, address):  # type: ignore[no-untyped-def]
            seen.setdefault((address.position, address.epoch), set()).add(address.purpose)
            return super().at(address)

    source = type("Source", (), {"of": lambda self, r, seed: Noting(seed), "forget": lambda self, r: None})()
    for name in ("model", "lookup+model"):
        for verifier in (TokenVerifier(), BlockVerifier()):
            engine = fresh(verifier, five_drafters()[name]())
            engine.chance = source
            engine.generate(PROMPT, PARAMS)
    purposes = set().union(*seen.values())
    assert Purpose.PROPOSAL in purposes
    assert purposes <= {Purpose.PROPOSAL, Purpose.ACCEPT, Purpose.RESIDUAL, Purpose.BONUS}
