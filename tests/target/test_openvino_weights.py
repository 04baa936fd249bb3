"""Weights in a graph: read, rewritten, made those of the file; and conversions that appear whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

ov = pytest.importorskip("openvino")
import openvino.opset13 as op  # noqa: E402

from draftproof.errors import InvalidValue, ModelFileError, Unsupported  # noqa: E402
from draftproof.target import openvino_store as store  # noqa: E402
from draftproof.target.openvino_store import MODEL, prepare  # noqa: E402
from draftproof.target.openvino_weights import FileMatrix, Weight, _uint4, requantize, restore, weights  # noqa: E402

from . import tiny_ir  # noqa: E402

ROWS, INPUTS, BLOCK = 8, 64, 32


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "openvino"


@pytest.fixture
def ir(tmp_path: Path) -> Path:
    return tiny_ir.save(tiny_ir.tiny(), tmp_path / "tiny")


def graph(weight: Any) -> Any:
    """A graph that multiplies its input by one weight matrix, (outputs, inputs)."""
    x = op.parameter([-1, INPUTS], np.float32, name="x")
    product = op.matmul(x, weight, False, True)
    product.output(0).set_names({"logits"})
    return ov.Model([op.result(product)], [x], "one")


def blocks(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Levels, scales and minima of a matrix in the style of Q4_1: value = scale * level + minimum."""
    levels = rng.integers(0, 16, (ROWS, INPUTS // BLOCK, BLOCK)).astype(np.int32)
    scale = rng.uniform(0.01, 0.1, (ROWS, INPUTS // BLOCK, 1)).astype(np.float16).astype(np.float32)
    minimum = (-rng.uniform(5, 10, scale.shape) * scale).astype(np.float16).astype(np.float32)
    return levels, scale, minimum


def as_read(levels: np.ndarray, scale: np.ndarray, minimum: np.ndarray) -> Any:
    """The graph a reader makes that rounds the minimum to a multiple of the scale."""
    rounded = np.rint(-minimum / scale).astype(np.uint8)
    node = op.subtract(op.convert(_uint4(levels), "f16"), op.convert(op.constant(rounded), "f16"))
    node = op.multiply(node, op.constant(scale.astype(np.float16)))
    node = op.reshape(node, op.constant(np.array([ROWS, INPUTS], np.int64)), False)
    return op.convert(node, "f32")


def only(model: Any) -> Weight:
    (weight,) = weights(model)
    return weight


def product(model: Any) -> np.ndarray:
    """The matrix as the runtime sees it: the product with the unit matrix, (outputs, inputs)."""
    compiled = ov.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0})
    return compiled([np.eye(INPUTS, dtype=np.float32)])[0].T


def test_restoring_gives_the_runtime_the_files_values_in_4_bits() -> None:
    levels, scale, minimum = blocks(np.random.default_rng(0))
    exact = (levels * scale + minimum).reshape(ROWS, INPUTS)
    model = graph(as_read(levels, scale, minimum))
    assert np.abs(product(model) - exact).max() > 1e-3, "the reader's rounding is what is to be undone"
    before = restore(model, [FileMatrix("w", (ROWS, INPUTS), lambda n: exact[:n])])
    assert before["w"] > 1e-3
    assert only(model).source.get_element_type() == ov.Type.u4
    assert np.abs(product(model) - exact).max() < 1e-6


def test_restoring_finds_rows_whose_rotary_halves_the_file_interleaves() -> None:
    levels, scale, minimum = blocks(np.random.default_rng(1))
    graphs = (levels * scale + minimum).reshape(ROWS, INPUTS)
    stored = graphs.reshape(2, 2, ROWS // 4, INPUTS).swapaxes(1, 2).reshape(ROWS, INPUTS)
    model = graph(as_read(levels, scale, minimum))
    restore(model, [FileMatrix("q", (ROWS, INPUTS), lambda n: stored[:n], head_rows=ROWS // 2)])
    assert np.abs(product(model) - graphs).max() < 1e-6


def test_restoring_falls_back_to_plain_values_where_the_levels_do_not_fit() -> None:
    rng = np.random.default_rng(2)
    levels, scale, minimum = blocks(rng)
    exact = (levels * scale + minimum).reshape(ROWS, INPUTS) + rng.normal(0, 0.01, (ROWS, INPUTS)).astype(np.float32)
    model = graph(as_read(levels, scale, minimum))
    restore(model, [FileMatrix("w", (ROWS, INPUTS), lambda n: exact[:n])])
    assert np.abs(product(model) - exact).max() < 1e-6


def test_a_matrix_that_is_not_in_the_file_is_refused() -> None:
    rng = np.random.default_rng(3)
    other = rng.normal(size=(ROWS, INPUTS)).astype(np.float32)
    with pytest.raises(ModelFileError, match="8 x 64 matrix"):
        restore(graph(as_read(*blocks(rng))), [FileMatrix("w", (ROWS, INPUTS), lambda n: other[:n])])


@pytest.mark.parametrize(("format", "steps"), [("float16", 2.0**-11), ("int8", 0.5 / 127), ("int4", 0.5 * 2 / 15)])
def test_a_rewritten_weight_is_off_by_at_most_half_a_step(format: Any, steps: float) -> None:
    """Largest error relative to the largest value: half a unit in the last place, or half a level."""
    exact = np.random.default_rng(4).uniform(-1, 1, (ROWS, INPUTS)).astype(np.float32)
    x = op.parameter([-1, INPUTS], np.float32, name="x")
    hidden = op.matmul(x, op.constant(exact), False, True)
    out = op.matmul(hidden, op.constant(np.eye(11, ROWS, dtype=np.float32)), False, True)
    out.output(0).set_names({"logits"})
    model = ov.Model([op.result(out)], [x], "two")
    requantize(model, format)
    found = next(w for w in weights(model) if w.shape == (ROWS, INPUTS))
    error = np.abs(found.values() - exact).max()
    assert 0 < error <= steps * np.abs(exact).max() * 1.0001
    assert np.abs(product(model)[:ROWS] - found.values()).max() < 1e-6


def test_int4_keeps_the_head_in_8_bits() -> None:
    exact = np.random.default_rng(5).uniform(-1, 1, (ROWS, INPUTS)).astype(np.float32)
    model = graph(op.constant(exact))
    requantize(model, "int4")
    assert only(model).source.get_element_type() == ov.Type.i8


def test_an_unknown_weight_format_is_refused(ir: Path) -> None:
    with pytest.raises(InvalidValue, match="weights='int3'"):
        prepare(ir, weights="int3")  # type: ignore[arg-type]


def test_a_conversion_is_done_once(cache: Path, ir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = prepare(ir, weights="int8")
    monkeypatch.setattr(store, "requantize", lambda *_: pytest.fail("converted again"))
    assert prepare(ir, weights="int8") == first
    assert first.folder.parent == cache
    assert prepare(ir).folder == ir


def test_an_interrupted_conversion_leaves_nothing_and_is_redone(
    cache: Path, ir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(store, "requantize", interrupted)
        with pytest.raises(KeyboardInterrupt):
            prepare(ir, weights="int8")
    assert list(cache.iterdir()) == []
    assert (prepare(ir, weights="int8").folder / MODEL).is_file()


@pytest.mark.parametrize("damage", ["truncated", "removed", "no manifest"])
def test_a_half_written_conversion_is_detected_and_redone(cache: Path, ir: Path, damage: str) -> None:
    folder = prepare(ir, weights="int8").folder
    bin_file = (folder / MODEL).with_suffix(".bin")
    whole = bin_file.read_bytes()
    if damage == "truncated":
        bin_file.write_bytes(whole[:100])
    elif damage == "removed":
        bin_file.unlink()
    else:
        (folder / "draftproof.json").unlink()
        bin_file.write_bytes(whole[:100])
    assert prepare(ir, weights="int8").folder == folder
    assert bin_file.read_bytes() == whole


@pytest.mark.model
def test_the_conversion_of_smollm2_holds_the_values_of_its_file_in_its_own_bits() -> None:
    gguf = pytest.importorskip("gguf")
    from draftproof.models.store import resolve

    tensors = {t.name: t for t in gguf.GGUFReader(resolve("smollm2", kind="gguf").path).tensors}
    model = ov.Core().read_model(prepare("smollm2").folder / MODEL)
    found = list(weights(model))
    assert len(found) == 211
    for index, name in ((0, "token_embd.weight"), (3, "blk.0.attn_v.weight"), (210, "blk.29.ffn_down.weight")):
        exact = gguf.quants.dequantize(tensors[name].data, tensors[name].tensor_type)
        error = np.linalg.norm(found[index].values() - exact) / np.linalg.norm(exact)
        assert error < 1e-6, name
    assert not [w for w in found if w.source.get_element_type() not in (ov.Type.u4, ov.Type.u8)]


def test_a_damaged_gguf_is_refused_and_leaves_nothing(cache: Path, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    pytest.importorskip("openvino_genai")
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(ModelFileError, match="truncated or damaged"):
        prepare(bad)
    assert list(cache.iterdir()) == []


def test_a_gguf_of_another_family_is_refused(cache: Path, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    pytest.importorskip("openvino_genai")
    writer = gguf.GGUFWriter(tmp_path / "mamba.gguf", "mamba")
    writer.add_tensor("token_embd.weight", np.zeros((8, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(Unsupported, match="architecture mamba"):
        prepare(tmp_path / "mamba.gguf")
    assert list(cache.iterdir()) == []
