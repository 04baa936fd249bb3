"""Joined products: the same rows from fewer products, however matrices are stored; the rest of a graph stays."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

ov = pytest.importorskip("openvino")

import openvino.opset13 as op  # noqa: E402

from draftproof.target.openvino_graph import prepare_graph  # noqa: E402
from draftproof.target.openvino_join import join_products  # noqa: E402
from draftproof.target.openvino_weights import _int4, _plain, _scaled, _uint4, requantize, rounded  # noqa: E402

from . import tiny_ir  # noqa: E402

PLAIN = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1, "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
INPUTS = 32


def kinds(model: Any) -> Counter[str]:
    return Counter(node.get_type_name() for node in model.get_ordered_ops())


def compute(model: Any, x: np.ndarray) -> list[np.ndarray]:
    answers = ov.Core().compile_model(model, "CPU", PLAIN)({"x": x})
    return [answers[i].copy() for i in range(len(model.outputs))]


def products(*outputs: int, after: str = "reshape", matrices: list[Any] | None = None) -> Any:
    """A graph of products of one input, one for each number of outputs."""
    rng = np.random.default_rng(0)
    x = op.parameter([-1, INPUTS], np.float32, name="x")
    x.output(0).set_names({"x"})
    stored = matrices or [op.constant(rng.normal(0, 1, (n, INPUTS)).astype(np.float32)) for n in outputs]
    results = []
    for matrix in stored:
        product = op.matmul(x, matrix, False, True)
        if after == "swish":
            product = op.swish(product)
        elif after == "bias":
            product = op.add(product, op.constant(np.ones(outputs[0], np.float32)))
        results.append(op.result(product))
    return ov.Model(results, [x], "products")


X = np.random.default_rng(1).normal(0, 1, (5, INPUTS)).astype(np.float32)


@pytest.mark.parametrize("outputs", [(8, 8, 8), (24, 8, 8), (3, 5)], ids=str)
def test_products_of_one_input_become_one_with_the_same_results_in_their_places(outputs: tuple[int, ...]) -> None:
    expected = compute(products(*outputs), X)
    model = products(*outputs)
    assert join_products(model) == 1
    assert kinds(model)["MatMul"] == 1
    found = compute(model, X)
    assert [a.shape for a in found] == [(5, n) for n in outputs]
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("form", ["float16", "int8", "int4", "int4 without reshape"])
def test_matrices_in_every_format_keep_their_own_values(form: str) -> None:
    rng = np.random.default_rng(3)
    values = [(scale * rng.normal(0, 1, (n, INPUTS))).astype(np.float32) for n, scale in ((6, 1), (4, 20), (2, 0.1))]

    def stored(matrix: np.ndarray) -> Any:
        if form == "float16":
            return _plain(matrix.astype(np.float16)).get_node()
        if form == "int8":
            return rounded(matrix).get_node()
        node = _int4(matrix).get_node()
        if form == "int4":
            return node
        levels, zero, scale = _uint4(rng.integers(0, 16, matrix.shape)), matrix[:, :1], matrix[:, 1:2]
        return _scaled(levels, zero, scale, matrix.shape).get_node()

    model = products(6, 4, 2, matrices=[stored(matrix) for matrix in values])
    expected = compute(model, X)
    assert join_products(model) == 1
    assert kinds(model)["MatMul"] == 1
    for a, b in zip(compute(model, X), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("weights", ["float16", "int8", "int4"])
def test_a_models_queries_keys_and_values_are_joined_in_every_weight_format(weights: str) -> None:
    model = tiny_ir.tiny(layers=3)
    requantize(model, weights)  # type: ignore[arg-type]
    prepare_graph(model, "tiny")
    before = kinds(model)
    constants = {n.get_element_type() for n in model.get_ordered_ops() if n.get_type_name() == "Constant"}
    assert join_products(model) == 3
    assert kinds(model)["MatMul"] == before["MatMul"] - 6
    assert kinds(model)["VariadicSplit"] == 3
    after = {n.get_element_type() for n in model.get_ordered_ops() if n.get_type_name() == "Constant"}
    assert after == constants  # nothing was unpacked


@pytest.mark.parametrize("after", ["swish", "bias"])
def test_products_that_a_runtime_fuses_with_what_follows_stay_as_they_are(after: str) -> None:
    model = products(8, 8, after=after)
    assert join_products(model) == 0
    assert kinds(model)["MatMul"] == 2


def test_matrices_stored_in_different_ways_stay_as_they_are() -> None:
    wide = op.constant(np.ones((8, INPUTS), np.float32))
    half = op.convert(op.constant(np.ones((8, INPUTS), np.float16)), "f32")
    scaled = op.multiply(half, op.constant(np.ones((8, 1), np.float32)))
    one_scale = op.multiply(half, op.constant(np.ones((1, 1), np.float32)))
    for matrices in ([wide, half], [half, scaled], [scaled, one_scale]):
        assert join_products(products(8, 8, matrices=matrices)) == 0


def test_rows_of_4_bits_that_end_within_a_byte_stay_as_they_are() -> None:
    def odd() -> Any:
        tensor = ov.Tensor(ov.Type.u4, ov.Shape([1, 3]))
        return op.convert(op.constant(tensor), "f32")

    x = op.parameter([-1, 3], np.float32, name="x")
    model = ov.Model([op.result(op.matmul(x, odd(), False, True)) for _ in range(2)], [x], "odd")
    assert join_products(model) == 0


def test_products_of_different_inputs_stay_as_they_are() -> None:
    x, y = (op.parameter([-1, INPUTS], np.float32, name=name) for name in "xy")
    matrix = op.constant(np.ones((8, INPUTS), np.float32))
    model = ov.Model([op.result(op.matmul(each, matrix, False, True)) for each in (x, y)], [x, y], "two")
    assert join_products(model) == 0
