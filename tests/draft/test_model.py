"""The model drafter and the chain, on tables."""

from fractions import Fraction

import numpy as np
import pytest

from draftproof.dist import Dist
from draftproof.draft.base import DraftRequest
from draftproof.draft.chain import ChainDrafter
from draftproof.draft.lookup import LookupDrafter
from draftproof.draft.model import ModelDrafter
from draftproof.draft.none import NoDrafter
from draftproof.errors import BadLogits, InvalidValue, VocabularyMismatch
from draftproof.proof.toys import toy_row, toy_target
from draftproof.sampling.controls import Controls
from draftproof.sampling.params import SamplingParams
from draftproof.target.base import LogitRows
from draftproof.target.table import TableModel, TableTarget


class Sampler:
    """Draws the most probable token, and keeps what it was given."""

    def __init__(self, params=None):
        self.controls = Controls(params or SamplingParams(), 3)
        self.seen = []

    def distribution(self, rows, row, drafted, temperature=None):
        self.seen.append((tuple(drafted), temperature))
        return self.controls.distribution(rows, row, drafted, temperature)

    def draw(self, q, index):
        return q.top(1)[0][0]


def request(tokens, limit, id=0, sampler=None):
    return DraftRequest(id, tokens, len(tokens), limit, sampler or Sampler())


def test_q_is_the_row_each_token_was_drawn_from():
    drafter = ModelDrafter(toy_target(3, "q"))
    drafter.open(0)
    (proposal,) = drafter.propose([request([0, 1, 0], 3)])
    history = [0, 1, 0]
    for token, q in zip(proposal.tokens, proposal.q, strict=True):
        assert list(q.dense()) == toy_row(history, 3, "q")
        history.append(token)


@pytest.mark.parametrize("accepted", [0, 1, 2, 3])
def test_after_a_round_the_cache_holds_what_was_committed_and_rows_equal_a_fresh_prefill(accepted):
    drafter = ModelDrafter(toy_target(3, "q"))
    drafter.open(0)
    (proposal,) = drafter.propose([request([0, 1, 0], 3)])
    committed = [0, 1, 0, *proposal.tokens[:accepted], 2]
    drafter.commit(0, committed)
    assert drafter.model._caches[drafter._handles[0]] == committed[: min(len(committed) - 1, 3 + 2)]
    (after,) = drafter.propose([request(committed, 1)])
    fresh = ModelDrafter(toy_target(3, "q"))
    fresh.open(0)
    (wanted,) = fresh.propose([request(committed, 1)])
    assert list(after.q[0].dense()) == list(wanted.q[0].dense())


def test_sequences_with_different_limits_draft_in_step():
    drafter = ModelDrafter(toy_target(3, "q"))
    for id in (0, 1, 2):
        drafter.open(id)
    requests = [request([0, 1], 3, 0), request([1, 1, 0], 1, 1), request([2, 0], 2, 2)]
    proposals = drafter.propose(requests)
    assert [len(p.tokens) for p in proposals] == [3, 1, 2]
    for r, proposal in zip(requests, proposals, strict=True):
        alone = ModelDrafter(toy_target(3, "q"))
        alone.open(0)
        assert alone.propose([request(r.tokens, r.limit)])[0].tokens == proposal.tokens


def test_the_drafters_own_temperature_is_part_of_q():
    table = TableModel({(): [0.2, 0.3, 0.5]}, 3)
    drafter = ModelDrafter(TableTarget(table), temperature=0.5)
    drafter.open(0)
    sampler = Sampler(SamplingParams(temperature=1.0))
    (proposal,) = drafter.propose([request([0], 1, sampler=sampler)])
    squares = np.array([0.04, 0.09, 0.25])
    assert proposal.q[0].dense() == pytest.approx(squares / squares.sum())
    assert sampler.seen == [((), 0.5)]


def test_controls_see_the_drafted_prefix():
    drafter = ModelDrafter(toy_target(3, "q"))
    drafter.open(0)
    sampler = Sampler()
    (proposal,) = drafter.propose([request([0, 1, 0], 3, sampler=sampler)])
    assert [d for d, _ in sampler.seen] == [tuple(proposal.tokens[:k]) for k in range(3)]


def test_a_full_draft_context_ends_proposals_and_costs_nothing_more():
    drafter = ModelDrafter(TableTarget(toy_target(3, "q").model, context_limit=5))
    drafter.open(0)
    (proposal,) = drafter.propose([request([0, 1, 0], 8)])
    assert len(proposal.tokens) == 3
    drafter.commit(0, [0, 1, 0, 1, 1, 1, 1])
    (nothing,) = drafter.propose([request([0, 1, 0, 1, 1, 1, 1], 8)])
    assert nothing.tokens == []


def test_another_vocabulary_is_refused():
    with pytest.raises(VocabularyMismatch, match="4 tokens"):
        ModelDrafter(toy_target(4)).check_vocabulary(toy_target(3))


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_a_senseless_draft_temperature_is_refused(bad):
    with pytest.raises(InvalidValue):
        ModelDrafter(toy_target(3), temperature=bad)


def test_broken_draft_logits_name_position_and_row():
    class Broken(TableTarget):
        def score(self, feeds):
            return [LogitRows(np.full((f.rows, 3), np.nan)) for f in feeds]

    drafter = ModelDrafter(Broken(toy_target(3).model))
    drafter.open(0)
    with pytest.raises(BadLogits, match="NaN at position 2, row 0"):
        drafter.propose([request([0, 1], 2)])


def test_the_chain_asks_in_order_and_tells_every_drafter_what_was_committed():
    model = ModelDrafter(toy_target(3, "q"))
    chain = ChainDrafter([LookupDrafter(2, 2), model])
    assert chain.name == f"lookup+{model.name}"
    for id in (0, 1):
        chain.open(id)
    found, drafted = chain.propose([request([0, 1, 2, 0, 1], 1, 0), request([0, 1, 2], 1, 1)])
    assert found.drafter == "lookup"
    assert list(found.tokens) == [2]
    assert drafted.drafter == model.name
    chain.commit(0, [0, 1, 2, 0, 1, 2])
    chain.commit(1, [0, 1, 2, 0])
    assert model.model.length(model._handles[1]) == 3
    for id in (0, 1):
        chain.close(id)


def test_an_empty_chain_is_refused():
    with pytest.raises(InvalidValue):
        ChainDrafter([])


def test_the_chain_of_drafters_that_find_nothing_is_an_empty_proposal():
    chain = ChainDrafter([NoDrafter(), LookupDrafter(2, 2)])
    chain.open(0)
    assert list(chain.propose([request([0, 1], 2)])[0].tokens) == []


def test_fraction_rows_stay_fractions():
    drafter = ModelDrafter(toy_target(3, "q"))
    drafter.open(0)
    (proposal,) = drafter.propose([request([0, 1, 0], 1)])
    assert isinstance(proposal.q[0], Dist)
    assert all(isinstance(v, Fraction) for v in proposal.q[0].probs)
