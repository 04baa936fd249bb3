"""The drop-in for transformers: what `model.generate` would have given, with its own config, processors, streamer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import (
    DynamicCache,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LogitsProcessor,
    LogitsProcessorList,
    MaxTimeCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.generation.streamers import BaseStreamer

from draftproof.draft.base import DraftRequest, Proposal, StatelessDrafter
from draftproof.errors import DraftproofError, Unsupported
from draftproof.integrations import transformers as drop_in
from draftproof.integrations.transformers import generate
from draftproof.rows import TargetRows

SIZE = 48
EOS = 5


def tiny(layers: int = 2, seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=SIZE,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.6,
        eos_token_id=EOS,
        pad_token_id=0,
        bos_token_id=1,
    )
    return LlamaForCausalLM(config).eval()


MODEL = tiny()
DRAFTS: dict[str, Any] = {
    "none": "none",
    "lookup": "lookup",
    "suffix": "suffix",
    "model": tiny(1, seed=3),
    "self": MODEL,
}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """A model this small only waits for its threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


PROMPT = torch.tensor([[1, 7, 9, 7, 9, 11]])
BATCH = torch.tensor([[0, 0, 1, 7, 9, 7], [1, 2, 3, 4, 8, 6], [0, 1, 9, 9, 9, 9]])
MASK = (BATCH != 0).long()


def own(ids: torch.Tensor = PROMPT, **options: Any) -> Any:
    return MODEL.generate(ids, max_new_tokens=options.pop("max_new_tokens", 24), **options)


def ours(ids: torch.Tensor = PROMPT, **options: Any) -> Any:
    return own(ids, custom_generate=generate, **options)


class NoRepeat(LogitsProcessor):
    """Forbids the last token, and writes down every history it sees."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.seen += input_ids.tolist()
        return scores.scatter(1, input_ids[:, -1:], -float("inf"))


class Collector(BaseStreamer):
    def __init__(self) -> None:
        self.got: list[list[int]] = []
        self.ended = 0

    def put(self, value: torch.Tensor) -> None:
        self.got.append(value.flatten().tolist())

    def end(self) -> None:
        self.ended += 1


GREEDY: dict[str, dict[str, Any]] = {
    "nothing": {},
    "repetition_penalty": {"repetition_penalty": 1.4},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "bad_words_ids": {"bad_words_ids": [[7], [9, 11], [3]]},
    "min_new_tokens": {"min_new_tokens": 14},
    "min_length": {"min_length": 20},
    "eos_token_id": {"eos_token_id": [7, 12, 30]},
    "suppress_tokens": {"suppress_tokens": [7, 9, 20]},
    "begin_suppress_tokens": {"begin_suppress_tokens": list(range(24))},
    "forced_eos_token_id": {"forced_eos_token_id": EOS},
    "exponential_decay_length_penalty": {"exponential_decay_length_penalty": (4, 1.3)},
    "sequence_bias": {"sequence_bias": {(7,): 3.0, (9, 11): -4.0}},
    "prefix_allowed_tokens_fn": {
        "prefix_allowed_tokens_fn": lambda batch, ids: [(int(ids[-1]) * 5 + batch + j) % SIZE for j in range(4)]
    },
    "renormalize_logits": {"renormalize_logits": True},
}


@pytest.mark.parametrize("name", GREEDY)
def test_greedy_answers_are_those_of_generate_under_every_setting(name: str) -> None:
    options: dict[str, Any] = {"do_sample": False, "max_new_tokens": 16, **GREEDY[name]}
    alone = own(**options)
    padded = own(BATCH, attention_mask=MASK, **options)
    for draft in DRAFTS if name == "nothing" else ("lookup", "model", "self"):
        assert torch.equal(ours(draft=DRAFTS[draft], **options), alone), draft
        assert torch.equal(ours(BATCH, attention_mask=MASK, draft=DRAFTS[draft], **options), padded), draft


SAMPLED: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.7, "top_k": 0},
    "top_k": {"top_k": 5},
    "top_p": {"top_k": 0, "top_p": 0.8},
    "min_p": {"top_k": 0, "min_p": 0.05},
    "typical_p": {"top_k": 0, "typical_p": 0.7},
    "all": {"temperature": 1.3, "top_k": 9, "top_p": 0.9, "min_p": 0.02, "repetition_penalty": 1.2},
}


@pytest.mark.parametrize("options", SAMPLED.values(), ids=SAMPLED)
@pytest.mark.parametrize("verifier", ["token", "block"])
def test_every_p_is_the_softmax_of_the_scores_generate_itself_would_have_sampled_from(
    verifier: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[tuple[int, ...], torch.Tensor] = {}
    inner = TargetRows.p

    def noting(self: TargetRows, i: int) -> Any:
        dist = inner(self, i)
        seen[(*self._sequence.tokens, *self._drafted[:i])] = torch.tensor(dist.dense())
        return dist

    monkeypatch.setattr(TargetRows, "p", noting)
    ours(draft=DRAFTS["model"], do_sample=True, seed=4, verifier=verifier, max_new_tokens=12, **options)
    monkeypatch.undo()
    assert len(seen) >= 8
    for history, p in seen.items():
        scores = own(
            torch.tensor([history]),
            attention_mask=torch.ones(1, len(history), dtype=torch.long),  # a 0 in the answer is no padding
            do_sample=True,
            max_new_tokens=1,
            output_scores=True,
            return_dict_in_generate=True,
            **options,
        ).scores[0]
        assert torch.allclose(p, scores[0].double().softmax(-1), atol=1e-5)  # float32 with and without a cache
        assert torch.equal(p > 0, torch.isfinite(scores[0]))


def test_processors_see_each_history_once_as_plain_decoding_does_drafted_tokens_included() -> None:
    plain, mine = NoRepeat(), NoRepeat()
    want = own(BATCH, attention_mask=MASK, do_sample=False, logits_processor=LogitsProcessorList([plain]))
    got = ours(
        BATCH,
        attention_mask=MASK,
        do_sample=False,
        logits_processor=LogitsProcessorList([mine]),
        draft=DRAFTS["self"],
        verifier="token",
    )
    assert torch.equal(got, want)
    histories = {tuple(h) for h in mine.seen}
    for row in want.tolist():
        end = row.index(EOS, 6) if EOS in row[6:] else len(row) - 1
        for n in range(6, end + 1):
            assert tuple(row[:n]) in histories


def test_sampling_repeats_with_torchs_seed_and_with_its_own() -> None:
    options: dict[str, Any] = {"do_sample": True, "draft": "lookup"}
    answers = []
    for _ in range(2):
        torch.manual_seed(11)
        answers.append(ours(**options))
    assert torch.equal(*answers)
    assert torch.equal(ours(seed=3, **options), ours(seed=3, **options))
    assert not torch.equal(ours(seed=3, **options), ours(seed=4, **options))


def test_coupled_answers_do_not_depend_on_the_drafter_or_its_length() -> None:
    options: dict[str, Any] = {"do_sample": True, "verifier": "coupled", "seed": 9, "top_p": 0.9}
    plain = ours(draft="none", **options)
    for draft in DRAFTS.values():
        for length in (1, 4, 8):
            assert torch.equal(ours(draft=draft, draft_length=length, **options), plain)


def test_several_return_sequences_are_independent_and_ordered_as_generate_orders_them() -> None:
    got = ours(
        BATCH, attention_mask=MASK, do_sample=True, num_return_sequences=3, seed=1, draft="lookup", max_new_tokens=8
    )
    assert got.shape[0] == 9
    assert torch.equal(got[:, :6], BATCH.repeat_interleave(3, 0))
    assert len({tuple(r) for r in got.tolist()}) == 9


def test_a_stopping_criterion_cuts_inside_a_block_at_its_own_token() -> None:
    class EndsWith(StoppingCriteria):
        def __init__(self, token: int) -> None:
            self.token = token

        def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
            return input_ids[:, -1] == self.token

    free = own(do_sample=False, eos_token_id=None, pad_token_id=0)[0, 6:].tolist()
    for token in set(free[2:10]):
        criteria = StoppingCriteriaList([EndsWith(token)])
        want = own(do_sample=False, eos_token_id=None, pad_token_id=0, stopping_criteria=criteria)
        got = ours(
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            stopping_criteria=criteria,
            draft=DRAFTS["self"],
            draft_length=8,
        )
        assert torch.equal(got, want)
    soon = StoppingCriteriaList([MaxTimeCriteria(max_time=0.0)])
    assert ours(draft="lookup", stopping_criteria=soon).shape[1] == 7


def test_the_streamer_gets_prompt_tokens_and_end_exactly_as_from_generate() -> None:
    plain, mine = Collector(), Collector()
    own(streamer=plain, do_sample=False)
    ours(streamer=mine, do_sample=False, draft=DRAFTS["self"])
    assert mine.got == plain.got
    assert mine.ended == plain.ended == 1


def test_max_length_counts_the_padded_prompt_as_generate_does() -> None:
    config = GenerationConfig(max_length=20, do_sample=False, eos_token_id=EOS, pad_token_id=0)
    want = MODEL.generate(BATCH, attention_mask=MASK, generation_config=config)
    got = MODEL.generate(BATCH, attention_mask=MASK, generation_config=config, custom_generate=generate, draft="suffix")
    assert torch.equal(got, want)


def test_return_dict_gives_the_sequences() -> None:
    output = ours(do_sample=False, return_dict_in_generate=True)
    assert torch.equal(output.sequences, own(do_sample=False))


def test_a_drafter_of_ones_own_takes_part() -> None:
    class Mine(StatelessDrafter):
        name = "mine"
        asked = 0

        def propose(self, requests: list[DraftRequest]) -> list[Proposal]:
            self.asked += len(requests)
            return [Proposal([9] * r.limit, drafter=self.name) for r in requests]

    drafter = Mine()
    assert torch.equal(ours(draft=drafter, do_sample=False), own(do_sample=False))
    assert drafter.asked


REFUSED: dict[str, dict[str, Any]] = {
    "num_beams=2": {"num_beams": 2},
    "assistant_model": {"assistant_model": MODEL},
    "prompt_lookup_num_tokens=3": {"prompt_lookup_num_tokens": 3},
    "penalty_alpha=0.6": {"penalty_alpha": 0.6, "top_k": 4},
    "guidance_scale=1.5": {"guidance_scale": 1.5},
    "output_scores=True": {"output_scores": True, "return_dict_in_generate": True},
    "output_logits=True": {"output_logits": True, "return_dict_in_generate": True},
    "output_attentions=True": {"output_attentions": True, "return_dict_in_generate": True},
    "output_hidden_states=True": {"output_hidden_states": True, "return_dict_in_generate": True},
    "encoder_repetition_penalty=1.2": {"encoder_repetition_penalty": 1.2},
    "use_cache=False": {"use_cache": False},
    "cache_implementation='static'": {"cache_implementation": "static"},
    "a (cache|past_key_values)": {"past_key_values": DynamicCache()},
    "streamer for 3 answers": {"streamer": Collector(), "input_ids": BATCH, "attention_mask": MASK},
    "padding that is not on the left": {"input_ids": BATCH.flip(1), "attention_mask": MASK.flip(1)},
    "position_ids of one's own": {"position_ids": torch.arange(2, 8)[None]},
    "the model argument inputs_embeds|inputs_embeds": {
        "inputs_embeds": MODEL.get_input_embeddings()(PROMPT).detach(),
        "input_ids": PROMPT,
    },
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("message", "options"), REFUSED.items(), ids=REFUSED)
def test_what_cannot_be_honoured_is_refused_by_name(message: str, options: dict[str, Any]) -> None:
    ids = options.get("input_ids", PROMPT)
    rest = {k: v for k, v in options.items() if k != "input_ids"}
    with pytest.raises(Unsupported, match=message):
        MODEL.generate(ids, max_new_tokens=4, custom_generate=generate, **rest)


def test_a_model_in_training_mode_is_refused_and_left_as_it_is() -> None:
    model = tiny().train()
    with pytest.raises(Unsupported, match=r"model\.training=True"):
        model.generate(PROMPT, max_new_tokens=2, custom_generate=generate)
    assert model.training


def test_a_wrong_drafter_name_lists_the_known_ones() -> None:
    with pytest.raises(DraftproofError, match="did you mean 'lookup'"):
        ours(draft="lokup")


def test_an_error_in_a_processor_leaves_the_model_usable() -> None:
    class Broken(LogitsProcessor):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        ours(logits_processor=LogitsProcessorList([Broken()]))
    assert torch.equal(ours(do_sample=False), own(do_sample=False))


def test_without_the_frame_of_generate_nothing_is_assumed() -> None:
    assert drop_in._lost_arguments() == {}
