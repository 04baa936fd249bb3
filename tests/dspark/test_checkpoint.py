"""A checkpoint is whole and belongs to its target, or it is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from dspark_kit import VOCAB, checkpoint_of, tiny_config, tiny_module, tiny_tables, tiny_target
from safetensors.numpy import load_file, save_file
from transformers import LlamaForCausalLM

from draftproof.draft.dspark import checkpoint as checkpoints
from draftproof.draft.dspark.checkpoint import FACTS, TENSORS, Checkpoint
from draftproof.draft.dspark.config import DSparkConfig
from draftproof.draft.dspark.drafter import DSparkDrafter
from draftproof.draft.dspark.tap import FeatureTap
from draftproof.errors import InvalidValue, ModelError, ModelFileError, ModelNotFound, Unsupported
from draftproof.proof.toys import toy_target
from draftproof.target.base import narrow_tokens


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    checkpoint = checkpoint_of(tiny_module(spread=0.1))
    checkpoints.save(Checkpoint(checkpoint.config, checkpoint.tensors, (1.5, 0.5, 1.0), {"steps": 7}), tmp_path)
    return tmp_path


def _tensors(folder: Path, change: Callable[[dict[str, np.ndarray]], None]) -> None:
    tensors = load_file(folder / TENSORS)
    change(tensors)
    save_file(tensors, folder / TENSORS)


def _facts(folder: Path, change: Callable[[dict[str, object]], None]) -> None:
    facts = json.loads((folder / FACTS).read_text())
    change(facts)
    (folder / FACTS).write_text(json.dumps(facts))


def test_a_checkpoint_comes_back_as_it_was_saved(folder: Path) -> None:
    before, after = checkpoint_of(tiny_module(spread=0.1)), checkpoints.load(folder)
    assert after.config == before.config
    assert after.temperatures == (1.5, 0.5, 1.0)
    assert after.record == {"steps": 7}
    for name, values in before.tensors.items():
        np.testing.assert_allclose(after.tensors[name], values, rtol=1e-3, atol=1e-4)  # float16


def _drop(t: dict[str, np.ndarray]) -> None:
    del t["layers.1.gate"]


def _shape(t: dict[str, np.ndarray]) -> None:
    t["mask"] = np.zeros(7, np.float16)


def _nan(t: dict[str, np.ndarray]) -> None:
    t["context.proj"][0, 0] = np.nan


def _far(t: dict[str, np.ndarray]) -> None:
    t["vocab"][-1] = VOCAB


def _twice(t: dict[str, np.ndarray]) -> None:
    t["vocab"][1] = t["vocab"][0]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (_drop, "lacks layers.1.gate"),
        (_shape, "mask has shape"),
        (_nan, "NaN"),
        (_far, "map holds"),
        (_twice, "ascending"),
    ],
)
def test_bad_tensors_are_named(folder: Path, change: Callable[[dict[str, np.ndarray]], None], match: str) -> None:
    _tensors(folder, change)
    with pytest.raises(ModelFileError, match=match):
        checkpoints.load(folder)


def test_a_block_size_that_is_not_the_calibrations_is_refused(folder: Path) -> None:
    _facts(folder, lambda facts: facts["config"].update(block=4))  # type: ignore[attr-defined]
    with pytest.raises(InvalidValue, match="3 calibration temperatures for blocks of 4"):
        checkpoints.load(folder)


def test_bad_facts_are_named(folder: Path) -> None:
    _facts(folder, lambda facts: facts["config"].pop("heads"))  # type: ignore[attr-defined]
    with pytest.raises(ModelFileError, match="heads"):
        checkpoints.load(folder)
    (folder / FACTS).write_text("{")
    with pytest.raises(ModelFileError, match="cannot read"):
        checkpoints.load(folder)


def test_cut_off_weights_are_refused(folder: Path) -> None:
    data = (folder / TENSORS).read_bytes()
    (folder / TENSORS).write_bytes(data[: len(data) // 2])
    with pytest.raises(ModelFileError, match="cannot read"):
        checkpoints.load(folder)


def test_a_folder_without_a_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no DSpark checkpoint"):
        checkpoints.load(tmp_path)


def test_weights_beyond_float16_are_not_saved(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(tiny_module())
    checkpoint.tensors["norm"][0] = 1e6
    with np.errstate(over="ignore"), pytest.raises(ModelFileError, match="norm"):
        checkpoints.save(checkpoint, tmp_path)


def test_a_checkpoint_of_another_target_is_refused(model: LlamaForCausalLM) -> None:
    checkpoint = checkpoint_of(tiny_module(target_fingerprint="someone-else"))
    with pytest.raises(ModelFileError, match="another target"):
        DSparkDrafter(checkpoint, FeatureTap(tiny_target(model)), tiny_tables(model))


def test_a_target_without_hidden_states_is_refused() -> None:
    with pytest.raises(Unsupported, match="hidden states"):
        FeatureTap(toy_target(3))


def test_a_tap_has_the_narrow_passes_of_its_target(model: LlamaForCausalLM) -> None:
    target = tiny_target(model)
    assert narrow_tokens(FeatureTap(target), 99) == 99
    target.narrow = 5  # type: ignore[attr-defined]
    assert narrow_tokens(FeatureTap(target), 99) == 5


@pytest.mark.parametrize(
    "change",
    [
        {"block": 0},
        {"block": 65},
        {"head": "lstm"},
        {"rank": 0},
        {"draft_vocab": VOCAB + 1},
        {"feature_layers": (2, 1)},
        {"feature_layers": ()},
        {"feature_layers": (1, 9)},
        {"kv_heads": 3},
        {"hidden": True},
        {"rope_theta": 0.0},
    ],
)
def test_a_config_refuses_bad_values(change: dict[str, object]) -> None:
    with pytest.raises(InvalidValue):
        tiny_config(**change)


def test_a_config_survives_json() -> None:
    config = tiny_config("rnn")
    assert DSparkConfig.from_dict(json.loads(json.dumps(config.as_dict()))) == config
    with pytest.raises(ModelError):
        DSparkConfig.from_dict({**config.as_dict(), "extra": 1})
