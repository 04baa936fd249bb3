"""The DSpark drafter in the engine: the text is the target's, the context is what was committed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from dspark_kit import BLOCK, VOCAB, checkpoint_of, tiny_module, tiny_tables, tiny_target
from threadpoolctl import threadpool_info, threadpool_limits
from transformers import LlamaForCausalLM

from draftproof.dist import Dist
from draftproof.draft.base import DraftRequest, Proposal
from draftproof.draft.dspark.drafter import DSparkDrafter
from draftproof.draft.dspark.forward import NumpyForward
from draftproof.draft.dspark.heads import Walk
from draftproof.draft.dspark.module import DSparkModule
from draftproof.draft.dspark.openvino_forward import OpenVINOForward
from draftproof.draft.dspark.tap import FeatureTap
from draftproof.engine import Engine
from draftproof.registry import make_verifier
from draftproof.rounds import Settled
from draftproof.sampling.params import SamplingParams
from draftproof.schedule.base import RoundRecord
from draftproof.schedule.costs import CostCurve
from draftproof.schedule.fixed import FixedSchedule
from draftproof.schedule.prefix import PrefixSchedule
from draftproof.target.base import Feed, Rows

PROMPTS = [[1, 2, 3, 4, 5], [7, 7, 1], [11, 0, 23, 2, 2, 2]]


def _engine(model: LlamaForCausalLM, head: str = "markov", verifier: str = "token", **parts: object) -> Engine:
    tap, tables = FeatureTap(tiny_target(model)), tiny_tables(model)
    checkpoint = checkpoint_of(tiny_module(head, spread=0.2))
    # float32 products, so that a context can be compared to three digits
    drafter = DSparkDrafter(checkpoint, tap, tables, forward=NumpyForward(checkpoint, tables.embedding, tables.head))
    return Engine(tap, drafter=drafter, verifier=make_verifier(verifier), **{"schedule": FixedSchedule(BLOCK), **parts})  # type: ignore[arg-type]


def _plain(model: LlamaForCausalLM, params: SamplingParams, verifier: str = "token") -> list[tuple[int, ...]]:
    engine = Engine(tiny_target(model), verifier=make_verifier(verifier))
    return [r.token_ids for r in engine.generate_all(PROMPTS, params)]


@pytest.mark.parametrize("head", ["markov", "rnn", "none"])
@pytest.mark.parametrize("verifier", ["token", "block", "match", "coupled"])
def test_greedy_text_is_that_of_plain_decoding(model: LlamaForCausalLM, head: str, verifier: str) -> None:
    params = SamplingParams(max_tokens=25, temperature=0)
    results = _engine(model, head, verifier).generate_all(PROMPTS, params)
    assert [r.token_ids for r in results] == _plain(model, params)
    assert sum(r.speculation.drafted for r in results) > 20


@pytest.mark.parametrize("verifier", ["match", "coupled"])
def test_sampled_text_of_the_drafter_invariant_modes_is_that_of_plain_decoding(
    model: LlamaForCausalLM, verifier: str
) -> None:
    params = SamplingParams(max_tokens=25, temperature=0.8, seed=3)
    for schedule in (FixedSchedule(BLOCK), PrefixSchedule(CostCurve({1: 1.0, 8: 1.5}, refine=False), BLOCK)):
        results = _engine(model, verifier=verifier, schedule=schedule).generate_all(PROMPTS, params)
        assert [r.token_ids for r in results] == _plain(model, params, verifier)


class _Watch:
    """Checks, after every round, that the drafter's context is what a fresh reading of the text would give."""

    def __init__(self, engine: Engine, model: LlamaForCausalLM) -> None:
        self.engine, self.model, self.rounds = engine, model, 0

    def round(self, record: RoundRecord, settled: list[Settled]) -> None:
        drafter = self.engine.drafter
        assert isinstance(drafter, DSparkDrafter)
        for s in self.engine.live.values():
            if s.finish_reason is not None:
                continue
            tokens = s.tokens[:-1]
            target = tiny_target(self.model)
            handle = target.open()
            target.score([Feed(handle, tokens, rows=1)])
            fresh = drafter._forward.new_cache()
            drafter._forward.extend(fresh, np.concatenate(list(target.hidden(handle)), axis=-1))
            held = drafter._context[s.id]
            assert held.length == len(tokens)
            for i in range(drafter.config.layers):
                for got, expected in zip(held.layer(i), fresh.layer(i), strict=True):
                    np.testing.assert_allclose(got, expected, rtol=2e-3, atol=2e-3)
            self.rounds += 1


def test_the_context_holds_the_committed_tokens_after_every_round(model: LlamaForCausalLM) -> None:
    engine = _engine(model)
    watch = _Watch(engine, model)
    engine.observers.append(watch)  # type: ignore[arg-type]
    engine.generate_all(PROMPTS, SamplingParams(max_tokens=12, seed=1))
    assert watch.rounds > 15


def test_a_commit_of_fewer_tokens_cuts_the_context_back(model: LlamaForCausalLM) -> None:
    engine = _engine(model)
    request = engine.add(PROMPTS[0], SamplingParams(max_tokens=12, seed=1))
    for _ in range(3):
        engine.round()
    drafter = engine.drafter
    assert isinstance(drafter, DSparkDrafter)
    tokens = engine.live[request].tokens
    assert drafter._context[request].length == len(tokens) - 1
    drafter.commit(request, tokens[:4])
    assert drafter._context[request].length == 3


def test_the_first_round_drafts_nothing_and_later_ones_do(model: LlamaForCausalLM) -> None:
    engine = _engine(model)
    request = engine.add(PROMPTS[0], SamplingParams(max_tokens=9, seed=1))
    engine.round()
    assert engine.live[request].tally.drafted == 0
    engine.round()
    assert engine.live[request].tally.drafted > 0


def test_a_request_with_prompt_logprobs_drafts_too(model: LlamaForCausalLM) -> None:
    # Its prompt is scored before the drafter hears of the sequence.
    result = _engine(model).generate(PROMPTS[0], SamplingParams(max_tokens=12, seed=1, prompt_logprobs=0))
    assert result.speculation.drafted > 0


def test_an_interrupted_round_leaves_a_drafter_that_goes_on(
    model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = _engine(model)
    engine.add(PROMPTS[0], SamplingParams(max_tokens=25, temperature=0))
    for _ in range(3):
        engine.round()
    with monkeypatch.context() as patch:
        patch.setattr(engine.verifier, "verify", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            engine.round()
    tokens: list[int] = []
    while engine.live:
        tokens = list(next(iter(engine.live.values())).tokens)
        engine.round()
    expected = [*PROMPTS[0], *_plain(model, SamplingParams(max_tokens=25, temperature=0))[0]]
    assert expected[: len(tokens)] == tokens
    assert len(tokens) > 20


def test_q_is_exactly_zero_outside_the_draft_vocabulary(model: LlamaForCausalLM) -> None:
    engine = _engine(model)
    seen: list[Settled] = []

    class Keep:
        def round(self, record: RoundRecord, settled: list[Settled]) -> None:
            seen.extend(settled)

    engine.observers.append(Keep())  # type: ignore[arg-type]
    engine.generate_all(PROMPTS, SamplingParams(max_tokens=20, temperature=0.7, seed=5))
    outside = [3, 8, 13, 20]
    laws = [q for s in seen for q in s.drafted.q]
    assert len(laws) > 20
    for q in laws:
        assert q.size == VOCAB
        dense = q.dense()
        assert (dense[outside] == 0).all()
        assert dense.sum() == pytest.approx(1)


class _Recording:
    """A sampler at temperature 1 that keeps what was drawn from, and draws the k-th most probable token."""

    def __init__(self) -> None:
        self.drawn: list[Dist] = []

    def distribution(self, rows: Rows, row: int, drafted: list[int], temperature: float | None = None) -> Dist:
        weights = np.exp(rows.values[row].astype(np.float64) - rows.values[row].max())
        return Dist(weights / weights.sum(), ids=rows.ids, size=rows.vocab_size)

    def draw(self, q: Dist, index: int) -> int:
        self.drawn.append(q)
        return q.token_at(int(np.argsort(-q.probs)[index]))


def _ready(module: DSparkModule, model: LlamaForCausalLM, tokens: list[int]) -> DSparkDrafter:
    """A drafter whose sequence 0 holds these tokens, all but the newest scored."""
    tap, tables, checkpoint = FeatureTap(tiny_target(model)), tiny_tables(model), checkpoint_of(module)
    drafter = DSparkDrafter(checkpoint, tap, tables, forward=NumpyForward(checkpoint, tables.embedding, tables.head))
    tap.score([Feed(tap.open(), tokens[:-1], rows=1)])
    drafter.open(0)
    drafter.commit(0, tokens)
    return drafter


@pytest.mark.parametrize("head", ["markov", "rnn", "none"])
def test_q_is_what_the_token_was_drawn_from_and_what_training_computes(head: str, model: LlamaForCausalLM) -> None:
    tables, module, tokens = tiny_tables(model), tiny_module(head, spread=0.2), [1, 5, 9, 2, 17]
    drafter = _ready(module, model, tokens)
    sampler = _Recording()
    proposal = drafter.propose([DraftRequest(0, tokens, 3, BLOCK, sampler)])[0]
    assert proposal.q is not None
    assert proposal.confidence is not None
    assert all(a is b for a, b in zip(proposal.q, sampler.drawn, strict=True))
    target = tiny_target(model)
    handle = target.open()
    target.score([Feed(handle, tokens[:-1], rows=1)])
    features = torch.from_numpy(np.concatenate(list(target.hidden(handle)), axis=-1))[None]
    previous = torch.tensor([[[tokens[-1], *proposal.tokens[:-1]]]])
    with torch.no_grad():
        anchor = torch.from_numpy(tables.embedding)[previous[:, :, 0]]
        hidden = module.blocks(module.context(features), torch.tensor([[4]]), anchor)
        seen = module.previous(previous)
        bias = module.bias(hidden, seen)
        logits = hidden @ torch.from_numpy(tables.head)[module.tensor("vocab")].T
        expected = (logits if bias is None else logits + bias).softmax(-1)[0, 0].numpy()
        confidence = torch.sigmoid(module.confidence(hidden, seen))[0, 0].numpy()
    for k, q in enumerate(proposal.q):
        assert q is not None
        np.testing.assert_allclose(q.dense()[checkpoint_of(module).tensors["vocab"]], expected[k], atol=1e-4)
        assert proposal.confidence[k] == pytest.approx(confidence[k], abs=1e-4)


@pytest.mark.parametrize("head", ["markov", "rnn", "none"])
def test_a_block_ends_before_the_first_token_below_its_threshold_and_is_otherwise_the_same(
    head: str, model: LlamaForCausalLM
) -> None:
    """Whatever threshold stands after the end, and whatever would have been drawn there, changes nothing."""
    tokens = [1, 5, 9, 2, 17]
    drafter = _ready(tiny_module(head, spread=0.2), model, tokens)

    def propose(*thresholds: float) -> Proposal:
        sampler = _Recording()
        (proposal,) = drafter.propose([DraftRequest(0, tokens, 3, BLOCK, sampler, thresholds)])
        assert len(sampler.drawn) == len(proposal.tokens)  # nothing is drawn and dropped
        return proposal

    whole = propose()
    survivals = np.cumprod(whole.confidence or ())
    assert len(whole.tokens) == BLOCK
    for end in range(BLOCK):
        for after in (0.0, 1.0):
            thresholds = [0.0] * end + [survivals[end] * 1.001] + [after] * (BLOCK - end - 1)
            proposal = propose(*thresholds)
            assert list(proposal.tokens) == list(whole.tokens)[:end]
            assert list(proposal.confidence or ()) == list(whole.confidence or ())[:end]
    assert len(propose(*survivals).tokens) == BLOCK  # at the threshold, not below it
    assert len(propose(0.0).tokens) == BLOCK  # fewer thresholds than positions


@pytest.mark.parametrize("head", ["markov", "rnn", "none"])
def test_rows_that_a_sampler_was_given_stay_what_they_were_when_the_next_block_is_made(
    head: str, model: LlamaForCausalLM
) -> None:
    """The runtime writes every block, and every bias, where it wrote the one before."""
    pytest.importorskip("openvino")
    given: list[Rows] = []

    class Keeps(_Recording):
        def distribution(self, rows: Rows, row: int, drafted: list[int], temperature: float | None = None) -> Dist:
            given.append(rows)
            return super().distribution(rows, row, drafted, temperature)

    tap, tables, tokens = FeatureTap(tiny_target(model)), tiny_tables(model), [1, 5, 9, 2, 17]
    drafter = DSparkDrafter(checkpoint_of(tiny_module(head, spread=0.2)), tap, tables)
    assert isinstance(drafter._forward, OpenVINOForward)
    for id, prompt in enumerate((tokens, [3, *tokens])):
        tap.score([Feed(tap.open(), prompt[:-1], rows=1)])
        drafter.open(id)
        drafter.commit(id, prompt)
    drafter.propose([DraftRequest(0, tokens, 3, BLOCK, Keeps())])
    before = [rows.values.copy() for rows in given]
    drafter.propose([DraftRequest(1, [3, *tokens], 3, BLOCK, Keeps())])
    assert not np.array_equal(given[BLOCK].values, before[0])
    assert all(np.array_equal(rows.values, values) for rows, values in zip(given, before, strict=False))


def test_a_head_that_computes_with_numpy_does_so_on_one_blas_thread_beside_openvino_too(
    model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openvino")
    seen: list[int] = []
    read = Walk._read

    def spied(walk: Walk, row: np.ndarray, hidden: np.ndarray) -> np.ndarray:
        seen.extend(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas")
        return read(walk, row, hidden)

    monkeypatch.setattr(Walk, "_read", spied)
    with threadpool_limits(2, user_api="blas"):
        tap, tables = FeatureTap(tiny_target(model)), tiny_tables(model)
        drafter = DSparkDrafter(checkpoint_of(tiny_module("rnn")), tap, tables)
        Engine(tap, drafter=drafter, schedule=FixedSchedule(3)).generate([1, 2, 3], SamplingParams(max_tokens=8))
    assert set(seen) == {1}


def test_drafting_computes_on_one_blas_thread_and_leaves_the_number_as_it_was(
    model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads that NumPy's BLAS leaves spinning take the cores of the target's next pass."""

    def threads() -> set[int]:
        return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}

    seen: list[set[int]] = []
    for name in ("blocks", "extend"):
        inner = getattr(NumpyForward, name)
        monkeypatch.setattr(NumpyForward, name, lambda *a, inner=inner: (seen.append(threads()), inner(*a))[1])
    with threadpool_limits(2, user_api="blas"):
        before = threads()
        tap, tables, checkpoint = FeatureTap(tiny_target(model)), tiny_tables(model), checkpoint_of(tiny_module())
        forward = NumpyForward(checkpoint, tables.embedding, tables.head)
        drafter = DSparkDrafter(checkpoint, tap, tables, forward=forward)
        engine = Engine(tap, drafter=drafter, schedule=FixedSchedule(3))
        engine.generate([1, 2, 3], SamplingParams(max_tokens=8, seed=1))
        assert threads() == before == {2}
    assert len(seen) > 4
    assert set(map(frozenset, seen)) == {frozenset({1})}
