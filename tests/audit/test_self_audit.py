"""The self-audit: a right engine shows nothing, a target that forgets to roll back shows up in all three kinds."""

from __future__ import annotations

import json

import numpy as np
import pytest
from audit_tables import SIZE, Markov

from draftproof.audit.equality import compare_decoding
from draftproof.audit.scoring import run_engine, target_distributions
from draftproof.audit.self_audit import SelfAudit, SelfAuditPlan, audit_self
from draftproof.draft.model import ModelDrafter
from draftproof.draft.scripted import ScriptedDrafter
from draftproof.engine import Engine
from draftproof.errors import InvalidValue
from draftproof.proof.mutants import StaleCacheTarget
from draftproof.sampling.params import SamplingParams
from draftproof.target.base import Feed, LogitRows, Rows
from draftproof.target.noise import RowNoise, measure_noise
from draftproof.target.table import TableModel, TableTarget
from draftproof.verify import CoupledVerifier, TokenVerifier

PROMPTS = [[0, 1], [3, 2], [5, 5]]
PLAN = SelfAuditPlan(verifiers=("token", "coupled"), tokens=600, answer=50, draft_length=3, seeds=2)


def _audit(target: TableTarget) -> SelfAudit:
    return audit_self(target, {"scripted": lambda: ScriptedDrafter(Markov().script)}, PROMPTS, PLAN)


def test_a_right_engine_shows_no_difference_and_no_bias() -> None:
    audit = _audit(TableTarget(Markov().model()))
    assert audit.ok
    assert [e.faults for e in audit.equalities] == [0, 0]
    assert [e.tokens for e in audit.equalities] == [300, 150]
    assert all(s.result.n >= 600 for s in audit.sampled)
    assert audit.sampled[0].tokens_per_round > 1.5
    json.dumps(audit.to_json(), allow_nan=False)


def test_a_cache_that_keeps_rejected_tokens_shows_in_every_kind_of_evidence() -> None:
    audit = _audit(StaleCacheTarget(Markov().model()))
    assert not audit.ok
    assert all(e.faults > 0 for e in audit.equalities)
    assert all(s.result.rejected for s in audit.sampled)


def test_p_comes_from_the_text_alone_and_not_from_the_pass_that_made_it() -> None:
    markov = Markov()
    engine = Engine(TableTarget(markov.model()), drafter=ScriptedDrafter(markov.script), verifier=TokenVerifier())
    # Longer than one scoring pass, with a control that looks at the answer so far.
    params = SamplingParams(max_tokens=300, temperature=0.5, frequency_penalty=0.01, seed=1)
    [answer] = run_engine(engine, [[0, 1]], [params])
    text = [0, 1, *answer.tokens]
    counts = np.zeros(SIZE)
    for i, p in enumerate(target_distributions(engine.target, answer, params)):
        logits = np.log(markov.p[text[i], text[i + 1]]) - 0.01 * counts
        right = np.exp(2 * logits)
        np.testing.assert_allclose(p.dense(), right / right.sum())
        counts[text[i + 2]] += 1
    assert i == 299
    drafted = [q is not None for q in answer.q]
    assert drafted == [origin in ("accepted", "residual") for origin in answer.origins]


class Noisy(TableTarget):
    """Logits that depend on the width of the pass, by 1e-3 at most: what kernels do."""

    def score(self, feeds: list[Feed]) -> list[Rows]:  # type: ignore[override]
        noisy = []
        for feed, rows in zip(feeds, super().score(feeds), strict=True):
            random = np.random.default_rng(len(feed.tokens))
            values = np.log(rows.values) + 1e-3 * random.uniform(-1, 1, rows.values.shape)
            noisy.append(LogitRows(values))
        return noisy


def test_row_noise_is_measured_and_explains_near_ties_but_not_faults() -> None:
    # Every row has two tokens within 1e-4 of each other: greedy decoding is decided by rounding, everywhere.
    row = np.array([0.3, 0.3 * (1 + 1e-4), 0.2, 0.2 - 3e-5])
    model = TableModel({(): row / row.sum()}, 4)
    noise = measure_noise(Noisy(model), [0] * 40, 2)
    assert 5e-4 < noise.logit <= 2e-3
    draft = TableTarget(TableModel({(): [0.4, 0.3, 0.2, 0.1]}, 4))
    params = [SamplingParams(max_tokens=30, temperature=0.0, seed=i) for i in range(3)]

    def compare(noise: RowNoise) -> tuple[int, int]:
        on = Engine(Noisy(model), drafter=ModelDrafter(draft))
        found = compare_decoding("greedy", on, Engine(Noisy(model)), [[0], [0, 1], [1]], params, noise)
        return len(found.differences), found.faults

    assert compare(noise)[0] > 0
    assert compare(noise)[1] == 0
    assert compare(RowNoise(0.0, 0.0, 1))[1] > 0  # with no noise allowed the same differences are faults


def test_a_coupled_difference_is_held_against_the_race_it_would_have_to_win() -> None:
    row = np.array([0.3, 0.3, 0.2, 0.2])
    model = TableModel({(): row}, 4)
    params = [SamplingParams(max_tokens=300, seed=i) for i in range(10)]
    on = Engine(Noisy(model), drafter=ModelDrafter(TableTarget(model)), verifier=CoupledVerifier())
    off = Engine(TableTarget(model), verifier=CoupledVerifier())
    noise = measure_noise(Noisy(model), [0] * 40, 2)
    found = compare_decoding("coupled", on, off, [[0]] * 10, params, noise)
    assert found.differences
    assert found.faults == 0
    assert all(0 < d.margin < 2e-3 for d in found.differences)


@pytest.mark.parametrize("bad", [{"tokens": 0}, {"level": 1.0}, {"temperatures": (0.0,)}, {"verifiers": ()}])
def test_a_plan_that_shows_nothing_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises(InvalidValue):
        SelfAuditPlan(**bad)  # type: ignore[arg-type]
