"""A tiny llama as target, the drafter that belongs to it, and what the tests of DSpark share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from draftproof.draft.dspark.checkpoint import Checkpoint
from draftproof.draft.dspark.config import DSparkConfig
from draftproof.draft.dspark.hidden import TargetFacts, TargetTables
from draftproof.draft.dspark.module import DSparkModule
from draftproof.target.transformers import TransformersTarget
from draftproof.train.batches import Batches
from draftproof.train.corpus import Text
from draftproof.train.features import store_texts
from draftproof.train.rows import RowMaker
from draftproof.train.store import FeatureStore
from draftproof.train.trainer import Trainer, TrainingPlan

VOCAB, HIDDEN, LAYERS = 24, 32, 3
FEATURE_LAYERS = (1, 3)
BLOCK = 3


def tiny_model() -> LlamaForCausalLM:
    """Random weights, with a head sharp enough that its rows are neither flat nor certain."""
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,
        tie_word_embeddings=False,
        eos_token_id=None,
        bos_token_id=None,
        pad_token_id=None,
    )
    model = LlamaForCausalLM(config).eval()
    model.lm_head.weight.data.mul_(1.5)
    return model


def tiny_target(model: LlamaForCausalLM) -> TransformersTarget:
    return TransformersTarget(model, name="tiny", eos_ids=frozenset(), hidden_layers=FEATURE_LAYERS)


def tiny_tables(model: LlamaForCausalLM) -> TargetTables:
    facts = TargetFacts("tiny-weights", LAYERS, VOCAB, HIDDEN, 4, 2, 8, 48, 10_000.0, 1e-6)
    return TargetTables(
        facts, model.get_input_embeddings().weight.detach().numpy(), model.lm_head.weight.detach().numpy()
    )


def tiny_config(head: str = "markov", **changes: object) -> DSparkConfig:
    values: dict[str, object] = {
        "target_fingerprint": "tiny-weights",
        "target_layers": LAYERS,
        "target_vocab": VOCAB,
        "feature_layers": FEATURE_LAYERS,
        "hidden": HIDDEN,
        "layers": 2,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 8,
        "mlp": 48,
        "block": BLOCK,
        "draft_vocab": VOCAB - 4,
        "head": head,
        "rank": 0 if head == "none" else 8,
        "norm_eps": 1e-6,
    }
    return DSparkConfig(**{**values, **changes})  # type: ignore[arg-type]


def tiny_module(head: str = "markov", *, seed: int = 1, spread: float = 0.0, **changes: object) -> DSparkModule:
    """A fresh drafter; `spread` moves every parameter off its start, so that nothing is 0 by initialisation."""
    module = DSparkModule(tiny_config(head, **changes), seed=seed)
    module.tensor("vocab").copy_(torch.tensor(sorted(set(range(VOCAB)) - {3, 8, 13, 20})[: module.config.draft_vocab]))
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.data += spread * torch.randn(parameter.shape, generator=generator)
    return module


def checkpoint_of(module: DSparkModule) -> Checkpoint:
    tensors = {name: module.tensor(name).detach().numpy().copy() for name in module.config.shapes()}
    return Checkpoint(module.config, tensors, (1.0,) * module.config.block)


def tiny_texts(model: LlamaForCausalLM, count: int, length: int, *, temperature: float, seed: int = 0) -> list[Text]:
    """Texts the tiny target writes, drawn by numpy."""
    source = np.random.default_rng(seed)
    texts = []
    for _ in range(count):
        tokens = source.integers(0, VOCAB, 4).tolist()
        while len(tokens) < 4 + length:
            with torch.no_grad():
                logits = model(torch.tensor([tokens])).logits[0, -1].double().numpy()
            if temperature == 0:
                tokens.append(int(logits.argmax()))
            else:
                weights = np.exp((logits - logits.max()) / temperature)
                tokens.append(int(source.choice(VOCAB, p=weights / weights.sum())))
        texts.append(Text(tuple(tokens), 4, temperature))
    return texts


def tiny_store(folder: Path, model: LlamaForCausalLM, texts: list[Text]) -> FeatureStore:
    store = FeatureStore.create(folder, width=HIDDEN * len(FEATURE_LAYERS), facts={"eos_ids": []})
    store_texts(store, texts, tiny_target(model), tiny_tables(model).head)
    return store


def tiny_maker(module: DSparkModule, model: LlamaForCausalLM, *, dtype: torch.dtype = torch.float32) -> RowMaker:
    tables = tiny_tables(model)
    return RowMaker(module, torch.from_numpy(tables.embedding), torch.from_numpy(tables.head), dtype=dtype)


def tiny_trainer(
    module: DSparkModule, model: LlamaForCausalLM, store: FeatureStore, folder: Path, *, steps: int, **plan: float
) -> Trainer:
    batches = Batches(store, store.entries, sequences=8, anchors=16, block=module.config.block, seed=3)
    return Trainer(tiny_maker(module, model), batches, TrainingPlan(steps=steps, **plan), folder)  # type: ignore[arg-type]
