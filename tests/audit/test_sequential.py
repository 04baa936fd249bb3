"""The sequential test: its e-value is fair exactly, it stays quiet on right engines and finds wrong ones."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from audit_tables import SIZE, Markov, softmax

from draftproof.dist import Dist
from draftproof.draft.scripted import ScriptedDrafter
from draftproof.engine import Engine
from draftproof.errors import InvalidValue
from draftproof.proof import mutants
from draftproof.proof.bets import Bets
from draftproof.proof.enumeration import every_branch
from draftproof.proof.sequential import SequentialTest, watches_of
from draftproof.proof.wealth import WATCHES, Watch
from draftproof.sampling.params import SamplingParams
from draftproof.schedule.fixed import FixedSchedule
from draftproof.target.table import TableModel, TableTarget
from draftproof.verify import BlockVerifier, CoupledVerifier, MatchVerifier, TokenVerifier
from draftproof.verify.base import Origin, Verifier


def _tokens(p: np.ndarray) -> list[int]:
    return np.flatnonzero(p).tolist()


@pytest.mark.parametrize("seed", [1, 2])
def test_over_all_texts_the_e_value_averages_at_most_one(seed: int) -> None:
    # Every text of four tokens over three ids, with its exact probability; the null's expectation, not a sample of it.
    random = np.random.default_rng(seed)
    p = softmax(2 * random.standard_normal((3, 3)))
    q = softmax(2 * random.standard_normal((3, 3)))
    total = 0.0
    for text in itertools.product(range(3), repeat=4):
        test, weight, last = SequentialTest(), 1.0, 0
        for token in text:
            test.update(token, p[last], q=q[last], history=[0, last])
            weight *= p[last, token]
            last = token
        total += weight * math.exp(test.log_e)
    assert 0.9 < total <= 1 + 1e-9


def test_tokens_that_cannot_be_told_apart_keep_the_e_value_fair() -> None:
    # Ids 1 and 2 have one text: the test is told "1 or 2". Leaving them out instead would not be fair.
    random = np.random.default_rng(4)
    p = softmax(2 * random.standard_normal((4, 4)))
    total = left_out = 0.0
    for text in itertools.product(range(4), repeat=3):
        told, skipping, weight, last = SequentialTest(), SequentialTest(), 1.0, 0
        for token in text:
            bets = Bets.place(p[last], history=[0, last])
            told.settle(bets, [1, 2] if token in (1, 2) else token)
            if token not in (1, 2):
                skipping.settle(bets, token)
            weight *= p[last, token]
            last = token
        total += weight * math.exp(told.log_e)
        left_out += weight * math.exp(skipping.log_e)
    assert 0.9 < total <= 1 + 1e-9
    assert left_out > 1.001


def _expected_e_of_the_engine(verifier: Verifier, watch_acceptance: bool) -> float:
    """E[e] over every random branch of the engine, for an answer of three tokens drafted two at a time."""
    p, q = np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.5, 0.3])
    model = TableModel(lambda prefix: np.roll(p, prefix[-1]), 3)
    total = 0.0

    def answer(chance):  # type: ignore[no-untyped-def]
        engine = Engine(
            TableTarget(model),
            drafter=ScriptedDrafter(lambda history, drafted: Dist(np.roll(q, (*history, *drafted)[-1]))),
            verifier=verifier,
            schedule=FixedSchedule(2),
            chance=chance,
        )
        return engine.generate([0], SamplingParams(max_tokens=3, seed=0))

    for result, weight, _ in every_branch(answer):
        test, previous, last = SequentialTest(), None, 0
        for token, origin in zip(result.token_ids, result.origins, strict=True):
            shown = origin
            if watch_acceptance and origin is Origin.RESIDUAL:
                shown = Origin.BONUS  # "the token was rejected" as a kind of position: what must not be used
            drafted = origin in (Origin.ACCEPTED, Origin.RESIDUAL)
            test.update(
                token, np.roll(p, last), q=np.roll(q, last) if drafted else None, origin=shown, previous=previous
            )
            previous, last = origin, token
        total += float(weight) * math.exp(test.log_e)
    return total


@pytest.mark.parametrize("verifier", [TokenVerifier(), BlockVerifier(), MatchVerifier()], ids=lambda v: v.name)
def test_what_the_position_was_may_be_used_with_every_verifier(verifier: Verifier) -> None:
    assert 0.9 < _expected_e_of_the_engine(verifier, watch_acceptance=False) <= 1 + 1e-9


def test_whether_the_token_was_accepted_may_not_be_used() -> None:
    assert _expected_e_of_the_engine(TokenVerifier(), watch_acceptance=True) > 1.001


def test_origins_are_only_used_for_what_their_position_was() -> None:
    assert watches_of(Origin.ACCEPTED, None) == watches_of(Origin.RESIDUAL, None)
    assert [WATCHES[i] for i in watches_of(Origin.BONUS, Origin.RESIDUAL)] == [
        Watch.ALL,
        Watch.BONUS,
        Watch.AFTER_REJECTION,
    ]


@pytest.mark.parametrize(
    "verifier", [TokenVerifier(), BlockVerifier(), MatchVerifier(), CoupledVerifier()], ids=lambda v: v.name
)
def test_right_engines_raise_no_alarm(verifier: Verifier) -> None:
    # Level 1e-3, ten answers: more than one alarm has probability below 5e-5 under the null.
    tests = [Markov().audit(verifier, tokens=400, seed=seed, level=1e-3) for seed in range(10)]
    assert sum(test.rejected for test in tests) <= 1


FAULTS = {
    # fault: (how many tokens it may take, parts of the engine)
    "replacement from p": (2000, {"verifier": mutants.ReplacementFromP()}),
    "softmaxed residual": (2000, {"verifier": mutants.SoftmaxedResidual()}),
    "inverted ratio": (2000, {"verifier": mutants.InvertedRatio()}),
    "residual reversed": (2000, {"verifier": mutants.ResidualReversed()}),
    "accept if likelier": (2000, {"verifier": mutants.AcceptIfLikelier()}),
    "accept if typical": (2000, {"verifier": mutants.AcceptIfTypical()}),
    "bonus from the previous row": (2000, {"verifier": mutants.BonusFromPreviousRow()}),
    "bonus too cold": (5000, {"verifier": mutants.BonusTooCold()}),
    "second candidate judged against p": (2000, {"verifier": mutants.SiblingsStaleResidual()}),
    "argmax draft with soft q": (2000, {"drafter": mutants.ArgmaxWithSoftQ}),
    "draft cut to two with raw q": (2000, {"drafter": mutants.TruncatedWithRawQ}),
    "draft colder than reported": (2000, {"drafter": mutants.ColderThanReported}),
    "residual minus drafted only": (10000, {"verifier": mutants.ResidualMinusDraftedOnly()}),
    "match, then redraw": (5000, {"verifier": mutants.MatchThenRedraw()}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str) -> None:
    # e >= 1e6 for the first seed tried. The medians of five runs, and each fault's bias, are in docs/audit.md.
    tokens, parts = FAULTS[name]
    markov = Markov()
    verifier = parts.get("verifier", TokenVerifier())
    drafter = parts["drafter"](markov.script) if "drafter" in parts else None
    test = markov.audit(verifier, tokens=tokens, seed=0, level=1e-6, drafter=drafter)
    assert test.rejected, test.result()


def test_the_bound_on_the_bias_is_below_the_bias_and_above_zero() -> None:
    # p plus 0.1 on token 0 at every position: the bias is exactly 0.1 * (1 - p(0)) in total variation.
    random = np.random.default_rng(0)
    p = softmax(random.standard_normal(SIZE))
    wrong = 0.9 * p
    wrong[0] += 0.1
    test = SequentialTest(level=1e-3)
    bets = Bets.place(p)
    for token in random.choice(SIZE, size=4000, p=wrong):
        test.settle(bets, int(token))
    result = test.result()
    true = 0.5 * np.abs(wrong - p).sum()
    assert result.rejected
    assert 0.5 * true < result.bias_at_least < true


def test_a_bias_of_the_size_said_to_be_detectable_is_detected() -> None:
    random = np.random.default_rng(3)
    p = softmax(random.standard_normal(SIZE))
    bets = Bets.place(p)
    quiet = SequentialTest(level=1e-3)
    for token in random.choice(SIZE, size=2000, p=p):
        quiet.settle(bets, int(token))
    shift = quiet.result().detectable["the argmax"]
    wrong = p * (1 - shift / (1 - p.max()))
    wrong[p.argmax()] = p.max() + shift
    found = 0
    for _ in range(10):
        test = SequentialTest(level=1e-3)
        for token in random.choice(SIZE, size=2000, p=wrong):
            test.settle(bets, int(token))
        found += test.rejected
    assert found >= 7  # each with probability 0.9 or more: fewer than 7 has probability 0.013


def test_a_token_the_target_rules_out_refutes_at_once() -> None:
    test = SequentialTest()
    test.update(0, [1.0, 0.0])
    test.update(1, [1.0, 0.0])
    result = test.result()
    assert result.rejected_at == 2
    assert result.impossible == 1
    assert result.e_value == math.inf
    assert json.loads(json.dumps(result.to_json(), allow_nan=False))["log10_e"] == "inf"


def test_rounding_of_the_reference_is_not_mistaken_for_bias_when_it_is_allowed_for() -> None:
    # An engine whose own p is off by up to 0.05 in the logarithm, always toward the argmax: the worst a noise can do.
    random = np.random.default_rng(0)
    p = softmax(random.standard_normal(SIZE))
    own = p * np.exp(np.where(p == p.max(), 0.05, -0.02))
    own /= own.sum()
    noise = float(np.abs(np.log(own) - np.log(p)).max())
    bets = Bets.place(p)
    allowed, strict = SequentialTest(noise=noise), SequentialTest()
    for token in random.choice(SIZE, size=20000, p=own):
        allowed.settle(bets, int(token))
        strict.settle(bets, int(token))
    assert strict.rejected
    assert not allowed.rejected
    assert allowed.result().bias_at_least == 0


def test_the_result_says_what_would_have_been_found() -> None:
    test = Markov().audit(TokenVerifier(), tokens=200, seed=0, level=1e-3)
    text = str(test.result())
    assert "would have been found" in text
    assert "lossless" not in text
    assert "passed" not in text


@pytest.mark.parametrize("values", [{"level": 0}, {"level": 1}, {"noise": -0.1}, {"noise": float("nan")}])
def test_bad_values_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(InvalidValue):
        SequentialTest(**values)


@pytest.mark.parametrize("impossible_at", [None, 71])
@pytest.mark.parametrize("count", [1, 31, 32, 33, 150])
def test_tokens_taken_in_together_give_what_they_give_one_by_one(count: int, impossible_at: int | None) -> None:
    random = np.random.default_rng(count)
    p = softmax(random.standard_normal((5, SIZE)))
    p[:, 3] = 0
    p /= p.sum(axis=1, keepdims=True)
    own = p**3 / (p**3).sum(axis=1, keepdims=True)  # sharper, so that the level is reached somewhere
    origins = [None, *Origin]
    together, single = SequentialTest(level=0.01, seed=1), SequentialTest(level=0.01, seed=1)
    last = 0
    for i in range(count):
        token = 3 if i == impossible_at else int(random.choice(SIZE, p=own[last % 5]))
        q = None if i % 3 else p[(last + 1) % 5]
        bets = Bets.place(p[last % 5], q=q, history=[0, last])
        origin, previous = (origins[int(k)] for k in random.integers(0, len(origins), 2))
        noise = float(random.choice([0.0, 0.02]))
        told: int | list[int] = [token, 5] if i % 11 == 4 and token != 5 else token
        for test in (together, single):
            test.settle(bets, told, origin=origin, previous=previous, noise=noise)
        assert single.log_e > -math.inf  # asking takes the token in
        assert together.n == single.n == i + 1
        last = token
    one, all_at_once = single.result(), together.result()
    assert all_at_once.log10_e == pytest.approx(one.log10_e, abs=1e-9)
    assert all_at_once.log10_e_max == pytest.approx(one.log10_e_max, abs=1e-9)
    assert all_at_once.rejected_at == one.rejected_at
    assert count < 150 or one.rejected_at is not None
    assert [n for n, _ in all_at_once.path] == [n for n, _ in one.path]
    np.testing.assert_allclose([e for _, e in all_at_once.path], [e for _, e in one.path], atol=1e-9)
    assert [g.bet for g in all_at_once.grew] == [g.bet for g in one.grew]
    for mine, theirs in zip(all_at_once.bounds, one.bounds, strict=True):
        assert (mine.watch, mine.positions) == (theirs.watch, theirs.positions)
        assert mine.at_least == pytest.approx(theirs.at_least, abs=1e-9)
    assert all_at_once.pit == one.pit
    assert all_at_once.impossible == one.impossible == int(impossible_at is not None and count > 71)
