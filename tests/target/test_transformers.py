"""The Hugging Face target: rows after any feeds and rollbacks are those of a fresh prefill.

Tiny random-weight models stand for the families; float32, so 1e-4 separates rounding from any fault.
The reference is the model's own forward over the whole sequence without a cache.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest

torch = pytest.importorskip("torch")
tf = pytest.importorskip("transformers")

from draftproof.errors import BadLogits, InvalidValue, Unsupported  # noqa: E402
from draftproof.target.base import Feed, LogitRows, Target  # noqa: E402
from draftproof.target.transformers import CHUNK, WIDE, TransformersTarget  # noqa: E402

VOCAB = 61
WINDOW = 8
TINY = 1e-4

SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 2048,
    "initializer_range": 0.5,  # large weights: logits that differ visibly between contexts
    "pad_token_id": 0,
}
MIXED = ["sliding_attention", "sliding_attention", "full_attention"]
GPT2 = {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "initializer_range": 0.5}

FAMILIES: dict[str, Callable[[], object]] = {
    "llama": lambda: tf.LlamaConfig(**SMALL),
    "gpt2": lambda: tf.GPT2Config(**GPT2),
    "qwen2": lambda: tf.Qwen2Config(**SMALL),
    "qwen3": lambda: tf.Qwen3Config(**SMALL),
    "mistral, window": lambda: tf.MistralConfig(**SMALL, sliding_window=WINDOW),
    "gemma2, window, softcap": lambda: tf.Gemma2Config(**SMALL, sliding_window=WINDOW, layer_types=MIXED),
    "gemma3, window": lambda: tf.Gemma3TextConfig(**SMALL, sliding_window=WINDOW, layer_types=MIXED),
    "phi3, window": lambda: tf.Phi3Config(**SMALL, sliding_window=WINDOW),
    "opt": lambda: tf.OPTConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        ffn_dim=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        init_std=0.5,
        max_position_embeddings=256,
        word_embed_proj_dim=32,
    ),
    "bloom, alibi": lambda: tf.BloomConfig(
        vocab_size=VOCAB, hidden_size=32, n_layer=2, n_head=4, initializer_range=0.5
    ),
}
ONE_BY_ONE = {"bloom, alibi"}


def build(family: str, attention: str | None = None) -> object:
    torch.manual_seed(0)
    model = tf.AutoModelForCausalLM.from_config(FAMILIES[family](), attn_implementation=attention)
    return model.eval()


def fresh(model: object, tokens: list[int]) -> np.ndarray:
    """Rows of every position from one forward pass without a cache: (len(tokens), vocab)."""
    with torch.inference_mode():
        return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].float().numpy()


def difference(rows: LogitRows, expected: np.ndarray) -> float:
    assert rows.values.dtype == np.float32
    assert rows.values.shape == expected.shape
    return float(np.abs(rows.values - expected).max())


@dataclass
class Walk:
    """Random feeds, rollbacks, joins and leaves on one target; the tokens each sequence should hold."""

    target: TransformersTarget
    dice: random.Random
    most: int
    held: dict[int, list[int]] = field(default_factory=dict)

    def step(self) -> Iterator[tuple[LogitRows, list[int], int]]:
        if len(self.held) < 4 and self.dice.random() < 0.4:
            self.held[self.target.open()] = []
        if len(self.held) > 1 and self.dice.random() < 0.1:
            gone = self.dice.choice(list(self.held))
            self.target.close(gone)
            del self.held[gone]
        for handle, tokens in self.held.items():
            if self.dice.random() < 0.5:
                keep = self.dice.randint(max(0, len(tokens) - 2 * WINDOW), len(tokens))
                self.target.rollback(handle, keep)
                del tokens[keep:]
        feeds = []
        for handle, tokens in self.dice.sample(list(self.held.items()), len(self.held)):
            if self.dice.random() < 0.8 and len(tokens) < self.most:
                new = [self.dice.randrange(VOCAB) for _ in range(self.dice.choice([1, 1, 2, 5, 9]))]
                tokens += new
                feeds.append(Feed(handle, new, self.dice.randint(1, len(new))))
        for feed, rows in zip(feeds, self.target.score(feeds), strict=True):
            assert isinstance(rows, LogitRows)
            assert self.target.length(feed.handle) == len(self.held[feed.handle])
            yield rows, self.held[feed.handle], feed.rows


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_after_any_feeds_and_rollbacks_equal_a_fresh_prefill(family: str) -> None:
    model = build(family)
    target = TransformersTarget(model)
    assert isinstance(target, Target)
    walk = Walk(target, random.Random(family), most=6 * WINDOW)
    worst, checked, longest = 0.0, 0, 0
    for _ in range(60):
        for rows, tokens, wanted in walk.step():
            worst = max(worst, difference(rows, fresh(model, tokens)[-wanted:]))
            checked, longest = checked + 1, max(longest, len(tokens))
    assert worst < TINY
    assert checked > 60
    assert longest > 3 * WINDOW
    assert target.one_pass is (family not in ONE_BY_ONE)


@pytest.mark.parametrize("family", ["llama", "gemma3, window", "gemma2, window, softcap"])
def test_eager_attention_takes_the_same_masks(family: str) -> None:
    model = build(family, "eager")
    walk = Walk(TransformersTarget(model), random.Random(1), most=6 * WINDOW)
    for _ in range(25):
        for rows, tokens, wanted in walk.step():
            assert difference(rows, fresh(model, tokens)[-wanted:]) < TINY
    assert walk.target.one_pass


@pytest.mark.parametrize("family", FAMILIES)
def test_a_rejected_draft_leaves_no_trace_on_either_side_of_the_window(family: str) -> None:
    model = build(family)
    dice = random.Random(2)
    for length in (WINDOW - 3, WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW):
        prompt = [dice.randrange(VOCAB) for _ in range(length)]
        target = TransformersTarget(model)
        handle = target.open()
        target.score([Feed(handle, prompt, 1)])
        for rejected in (1, 4, WINDOW + 2):
            target.score([Feed(handle, [dice.randrange(VOCAB) for _ in range(rejected)], rejected)])
            target.rollback(handle, length)
            (rows,) = target.score([Feed(handle, [7], 1)])
            target.rollback(handle, length)
            assert difference(rows, fresh(model, [*prompt, 7])[-1:]) < TINY


def test_a_batch_gives_what_each_sequence_gives_alone() -> None:
    model = build("gemma3, window")
    dice = random.Random(3)
    prompts = [[dice.randrange(VOCAB) for _ in range(n)] for n in (3, 30, 11, 1)]
    drafts = [[dice.randrange(VOCAB) for _ in range(n)] for n in (5, 1, 3, 8)]

    def rows(which: list[int]) -> list[np.ndarray]:
        target = TransformersTarget(model)
        handles = {i: target.open() for i in which}
        target.score([Feed(handles[i], prompts[i], 1) for i in which])
        out = target.score([Feed(handles[i], drafts[i], len(drafts[i])) for i in which])
        return [r.values for r in out]

    for i, together in enumerate(rows([0, 1, 2, 3])):
        assert np.abs(together - rows([i])[0]).max() < TINY


def test_one_forward_pass_scores_a_ragged_batch_and_the_head_sees_only_wanted_rows() -> None:
    model = build("llama")
    target = TransformersTarget(model)
    handles = [target.open() for _ in range(3)]
    target.score([Feed(h, [1, 2, 3][: i + 1], 1) for i, h in enumerate(handles)])
    passes: list[int] = []
    heads: list[int] = []
    model.model.register_forward_hook(lambda *_: passes.append(1))
    model.lm_head.register_forward_hook(lambda _m, args, _o: heads.append(args[0].numel() // args[0].shape[-1]))
    target.score([Feed(handles[2], [4, 5, 6, 7], 2), Feed(handles[0], [8], 1), Feed(handles[1], [9] * 6, 3)])
    assert len(passes) == 1
    assert heads == [6]


def test_a_long_prompt_in_chunks_equals_one_pass_and_its_wanted_rows_may_span_chunks() -> None:
    model = build("gemma3, window")
    dice = random.Random(4)
    tokens = [dice.randrange(VOCAB) for _ in range(2 * CHUNK + 77)]
    expected = fresh(model, tokens)
    for wanted in (1, 78, CHUNK + 100, len(tokens)):
        target = TransformersTarget(model)
        other, handle = target.open(), target.open()
        short, rows = target.score([Feed(other, [1, 2, 3], 2), Feed(handle, tokens, wanted)])
        assert difference(rows, expected[-wanted:]) < TINY
        assert difference(short, fresh(model, [1, 2, 3])[-2:]) < TINY


def test_memory_of_a_long_prompt_is_bounded_by_the_chunk() -> None:
    model = build("llama")
    target = TransformersTarget(model)
    widths: list[int] = []
    model.model.register_forward_pre_hook(lambda _m, _a, kw: widths.append(kw["input_ids"].shape[1]), with_kwargs=True)
    target.score([Feed(target.open(), [1] * (CHUNK + WIDE), 1)])
    assert widths == [CHUNK, WIDE]


def test_a_slot_given_back_is_reused_without_a_trace() -> None:
    model = build("mistral, window")
    target = TransformersTarget(model)
    kept = target.open()
    target.score([Feed(kept, [5, 6], 1)])
    first = target.open()
    target.score([Feed(first, list(range(1, 40)), 1)])
    target.close(first)
    again = target.open()
    a, b = target.score([Feed(again, [9, 8], 2), Feed(kept, [7, 7, 7], 3)])
    assert difference(a, fresh(model, [9, 8])) < TINY
    assert difference(b, fresh(model, [5, 6, 7, 7, 7])[-3:]) < TINY


def test_ids_beyond_the_tokenizer_are_impossible() -> None:
    target = TransformersTarget(build("llama"), vocab_size=50)
    handle = target.open()
    (rows,) = target.score([Feed(handle, [1, 2], 2)])
    assert target.vocab_size == 50
    assert rows.values.shape == (2, 50)
    with pytest.raises(InvalidValue, match="ids are 0 to 49"):
        target.score([Feed(handle, [50], 1)])
    with pytest.raises(InvalidValue):
        target.score([Feed(handle, [-1], 1)])
    assert target.length(handle) == 2


@pytest.mark.parametrize(("bad", "name"), [(float("nan"), "NaN"), (float("inf"), r"\+inf")])
def test_bad_logits_are_raised_at_their_position_and_row(bad: float, name: str) -> None:
    model = build("llama")
    target = TransformersTarget(model)
    first, second = target.open(), target.open()
    target.score([Feed(first, [5] * 2, 1), Feed(second, [5] * 3, 1)])

    def spoil(_module: object, _args: object, logits: torch.Tensor) -> torch.Tensor:
        return logits.index_put((torch.tensor(2), torch.tensor(17)), torch.tensor(bad))

    hook = model.lm_head.register_forward_hook(spoil)
    with pytest.raises(BadLogits, match=f"{name} at position 6, row 1 of"):
        target.score([Feed(first, [1, 2, 3], 1), Feed(second, [6, 7, 8, 9], 3)])
    hook.remove()
    assert (target.length(first), target.length(second)) == (2, 3)


def test_a_pass_that_broke_leaves_no_trace_in_the_cache() -> None:
    model = build("llama")
    target = TransformersTarget(model)
    kept, broken = target.open(), target.open()
    target.score([Feed(kept, [1, 2, 3], 1), Feed(broken, [4], 1)])
    weight = model.model.embed_tokens.weight
    good = weight[60].clone()
    for feed in (Feed(broken, [6, 60, 7], 1), Feed(broken, [60] + [6] * (CHUNK + 5), 1)):
        with torch.no_grad():
            weight[60] = float("nan")
        with pytest.raises(BadLogits):
            target.score([Feed(kept, [5], 1), feed])
        with torch.no_grad():
            weight[60] = good
        assert (target.length(kept), target.length(broken)) == (3, 1)
        a, b = target.score([Feed(kept, [5, 5, 5, 5, 5], 1), Feed(broken, [6], 1)])
        assert difference(a, fresh(model, [1, 2, 3, 5, 5, 5, 5, 5])[-1:]) < TINY
        assert difference(b, fresh(model, [4, 6])[-1:]) < TINY
        target.rollback(kept, 3)
        target.rollback(broken, 1)


def test_misuse_is_refused_before_anything_changes() -> None:
    target = TransformersTarget(build("gpt2"))
    handle = target.open()
    target.score([Feed(handle, [1, 2, 3], 1)])
    with pytest.raises(InvalidValue, match="context of 256"):
        target.score([Feed(handle, [1] * 254, 1)])
    with pytest.raises(InvalidValue, match="twice"):
        target.score([Feed(handle, [1], 1), Feed(handle, [2], 1)])
    with pytest.raises(InvalidValue, match="0 to 3"):
        target.rollback(handle, 4)
    with pytest.raises(InvalidValue, match="0 to 3"):
        target.rollback(handle, -1)
    target.score([Feed(handle, [1] * 253, 1)])  # exactly full, on learned positions
    target.close(handle)
    with pytest.raises(InvalidValue, match="not open"):
        target.close(handle)
    assert target.score([]) == []


def test_a_full_context_next_to_a_longer_feed_stays_inside_learned_positions() -> None:
    model = build("gpt2")
    target = TransformersTarget(model)
    full, other = target.open(), target.open()
    tokens = [i % VOCAB for i in range(255)]
    target.score([Feed(full, tokens, 1), Feed(other, [1], 1)])
    a, b = target.score([Feed(full, [3], 1), Feed(other, [4, 5, 6, 7, 8], 5)])
    assert difference(a, fresh(model, [*tokens, 3])[-1:]) < TINY
    assert difference(b, fresh(model, [1, 4, 5, 6, 7, 8])[-5:]) < TINY


def test_hidden_states_are_those_of_the_new_tokens() -> None:
    model = build("qwen3")
    target = TransformersTarget(model, hidden_layers=(1, 3))
    a, b = target.open(), target.open()
    with pytest.raises(InvalidValue):
        target.hidden(a)
    target.score([Feed(a, [1, 2, 3, 4], 1), Feed(b, [i % VOCAB for i in range(CHUNK + 9)], 1)])
    target.score([Feed(a, [5, 6], 1)])
    with torch.inference_mode():
        short = model(input_ids=torch.tensor([[1, 2, 3, 4, 5, 6]]), output_hidden_states=True).hidden_states
        long = model(
            input_ids=torch.tensor([[i % VOCAB for i in range(CHUNK + 9)]]), output_hidden_states=True
        ).hidden_states
    for handle, states, new in ((a, short, 2), (b, long, CHUNK + 9)):
        got = target.hidden(handle)
        assert got.shape == (2, new, 32)
        for i, layer in enumerate((1, 3)):
            assert np.abs(got[i] - states[layer][0, -new:].numpy()).max() < TINY
    with pytest.raises(Unsupported, match="hidden"):
        TransformersTarget(model).hidden(0)


QWEN3_NEXT = {**SMALL, "layer_types": ["linear_attention", "linear_attention", "full_attention"], "num_experts": 2}
REFUSED: dict[str, Callable[[], object]] = {
    "mamba": lambda: tf.MambaConfig(vocab_size=VOCAB, hidden_size=16, num_hidden_layers=2, state_size=4),
    "qwen3_next": lambda: tf.Qwen3NextConfig(**QWEN3_NEXT),
    "recurrent_gemma": lambda: tf.RecurrentGemmaConfig(
        vocab_size=VOCAB, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48, lru_width=32
    ),
    "lfm2": lambda: tf.Lfm2Config(
        **{k: v for k, v in SMALL.items() if k != "head_dim"}, layer_types=["conv", "full_attention", "conv"]
    ),
    "rwkv": lambda: tf.RwkvConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_models_that_cannot_roll_back_are_refused_by_name(kind: str) -> None:
    model = tf.AutoModelForCausalLM.from_config(REFUSED[kind]())
    with pytest.raises(Unsupported, match=kind):
        TransformersTarget(model)


def test_encoder_decoders_and_models_that_look_ahead_are_refused_by_name() -> None:
    t5 = tf.T5ForConditionalGeneration(
        tf.T5Config(vocab_size=VOCAB, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2)
    )
    with pytest.raises(Unsupported, match="t5"):
        TransformersTarget(t5)
    ahead = tf.Gemma3ForCausalLM(
        tf.Gemma3TextConfig(**SMALL, sliding_window=WINDOW, layer_types=MIXED, use_bidirectional_attention=True)
    )
    with pytest.raises(Unsupported, match="gemma3_text"):
        TransformersTarget(ahead)


def test_context_stops_where_longrope_would_change_cached_angles() -> None:
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 128}
    rope |= {"long_factor": [2.0] * 4, "short_factor": [1.0] * 4, "factor": 16.0}
    config = tf.Phi3Config(**SMALL, rope_parameters=rope, original_max_position_embeddings=128)
    target = TransformersTarget(tf.AutoModelForCausalLM.from_config(config))
    assert target.context_limit == 128
