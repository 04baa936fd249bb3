"""The weights inside an OpenVINO graph: read them, write them in another format, make them the file's own.

What it is for: three things done to a graph before it is compiled. `restore` gives a graph that
openvino-genai built from a GGUF file that file's exact values (the reader rounds the minimum of every
block of Q4_1 or Q4_K to a multiple of its scale, which is an 8 percent error; the CPU plugin takes the
unrounded minimum as a float zero point at the same speed). `requantize` rewrites all weights as float16,
int8 (one scale per output row) or int4 (scale and minimum per 32 inputs). A matrix used twice (embedding
and head) stays one matrix. What it does not do: choose a format, or touch vectors (norms, biases).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from draftproof.errors import ModelFileError, Unsupported

Node = Any
Model = Any
Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]

Format = Literal["int4", "int8", "float16"]

BLOCK = 32
"""Inputs that share a scale in int4."""

_LOW_BIT = {"u4": 4, "i4": 4, "u8": 8, "i8": 8}
_SAME = 1e-6
"""Relative difference below which two matrices are the same up to float32 rounding."""
_SAMPLE_ROWS = 64
_RELATED = 0.3
"""Relative difference below which a matrix of the graph is recognised as one of the file."""


@dataclass(frozen=True, slots=True)
class Weight:
    """One matrix of the graph: the port it is read from, shape (outputs, inputs), and its quantized form.

    `levels` (outputs, blocks, inputs of a block) are the stored integers, None for plain floats; the
    stored value is (levels - zero) * scale.
    """

    port: Any
    shape: tuple[int, int]
    source: Node
    levels: Ints | None
    zero: Floats
    scale: Floats

    def values(self) -> Floats:
        """The matrix in float32, shape (outputs, inputs)."""
        if self.levels is None:
            return np.asarray(self.source.data, np.float32).reshape(self.shape)
        return ((self.levels.astype(np.float32) - self.zero) * self.scale).reshape(self.shape)

    def replace(self, port: Any) -> None:
        """Every reader of this matrix reads `port` instead."""
        for reader in list(self.port.get_target_inputs()):
            reader.replace_source_output(port)


def weights(model: Model) -> Iterator[Weight]:
    """Every matrix that a MatMul or an embedding (Gather) of the graph reads, each once."""
    seen: set[str] = set()
    for node in model.get_ordered_ops():
        kind = node.get_type_name()
        if kind not in ("MatMul", "Gather"):
            continue
        port = node.input_value(1 if kind == "MatMul" else 0)
        name = port.get_node().get_friendly_name()
        weight = None if name in seen else _read(port)
        if weight is None:
            continue
        seen.add(name)
        if kind == "MatMul" and not node.get_attributes()["transpose_b"]:
            raise Unsupported(
                f"the weight {name} is stored inputs first", "use weights='file', or export with optimum-intel"
            )
        yield weight


def _read(port: Any) -> Weight | None:
    """The matrix behind a port: Constant [- zero] * scale through Convert and Reshape; None if computed."""
    node = port.get_node()
    scale: Floats = np.ones(1, np.float32)
    zero: Floats = np.zeros(1, np.float32)
    while node.get_type_name() in ("Convert", "Reshape", "Multiply", "Subtract"):
        kind = node.get_type_name()
        if kind in ("Multiply", "Subtract"):
            operand = _constant(node.input_value(1).get_node())
            if operand is None:
                return None
            if kind == "Multiply":
                scale = scale * operand
            else:
                zero = operand
        node = node.input_value(0).get_node()
    size = port.partial_shape
    if node.get_type_name() != "Constant" or len(size) != 2 or not size.is_static:
        return None
    shape = (size[0].get_length(), size[1].get_length())
    low_bit = node.get_element_type().get_type_name() in _LOW_BIT
    return Weight(port, shape, node, _unpacked(node) if low_bit else None, zero, scale)


def _constant(node: Node) -> Floats | None:
    while node.get_type_name() == "Convert":
        node = node.input_value(0).get_node()
    if node.get_type_name() != "Constant":
        return None
    if node.get_element_type().get_type_name() in _LOW_BIT:
        return _unpacked(node).astype(np.float32)
    return np.asarray(node.data, np.float32)


def _unpacked(node: Node) -> Ints:
    """Integers of a low-bit constant in its own shape; 4-bit ones lie two in a byte, the lower half first."""
    kind, shape = node.get_element_type().get_type_name(), tuple(node.shape)
    if _LOW_BIT[kind] == 8:
        return np.asarray(node.data).astype(np.int32).reshape(shape)
    packed = np.asarray(node.data).reshape(-1).view(np.uint8)
    values = np.stack([packed & 15, packed >> 4], axis=1).reshape(-1)[: int(np.prod(shape))].astype(np.int32)
    return (np.where(values > 7, values - 16, values) if kind == "i4" else values).reshape(shape)


def requantize(model: Model, format: Format) -> None:
    """Write every weight of the graph in another format, in place; all three round the values.

    In int4 the embedding and the head stay int8: 4 bits there cost more than in all layers together.
    """
    vocab_size = model.output("logits").partial_shape[-1].get_length()
    for weight in list(weights(model)):
        values = weight.values()
        if format == "float16":
            weight.replace(_plain(values.astype(np.float16)))
        elif format == "int8" or weight.shape[0] == vocab_size or weight.shape[1] % BLOCK:
            weight.replace(rounded(values))
        else:
            weight.replace(_int4(values))
    model.validate_nodes_and_infer_types()


def rounded(values: Floats) -> Any:
    """The graph's form of a matrix (outputs, inputs) in 8 bits, one scale per output."""
    import openvino.opset13 as op

    scale = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
    scale[scale == 0] = 1
    levels = np.rint(values / scale).astype(np.int8)
    return _scaled(op.constant(levels), None, scale, (values.shape[0], values.shape[1]))


def _int4(values: Floats) -> Any:
    blocks = values.reshape(values.shape[0], -1, BLOCK)
    low, high = blocks.min(axis=2, keepdims=True), blocks.max(axis=2, keepdims=True)
    scale = (high - low) / np.float32(15)
    scale[scale == 0] = 1
    levels = np.clip(np.rint((blocks - low) / scale), 0, 15).astype(np.int32)
    return _scaled(_uint4(levels), -low / scale, scale, values.shape)


def _plain(values: npt.NDArray[Any]) -> Any:
    import openvino.opset13 as op

    constant = op.constant(values)
    return constant.output(0) if values.dtype == np.float32 else op.convert(constant, "f32").output(0)


def _uint4(levels: Ints) -> Node:
    """A constant of unsigned 4-bit integers, two in a byte, the lower half first."""
    import openvino as ov
    import openvino.opset13 as op

    # A tensor that owns its memory: a constant made from a view of ours would outlive it.
    tensor = ov.Tensor(ov.Type.u4, ov.Shape(list(levels.shape)))
    pairs = levels.reshape(-1, 2).astype(np.uint8)
    tensor.data.reshape(-1).view(np.uint8)[:] = pairs[:, 0] | pairs[:, 1] << 4
    return op.constant(tensor)


def _scaled(levels: Node, zero: Floats | None, scale: Floats, shape: tuple[int, ...]) -> Any:
    """The graph's form of (levels - zero) * scale; `levels` is a constant of this shape."""
    import openvino.opset13 as op

    node = op.convert(levels, "f32")
    if zero is not None:
        node = op.subtract(node, op.constant(zero.astype(np.float32)))
    node = op.multiply(node, op.constant(scale.astype(np.float32)))
    if len(levels.shape) != len(shape):
        node = op.reshape(node, op.constant(np.array(shape, np.int64)), False)
    return node.output(0)


@dataclass(frozen=True, slots=True)
class FileMatrix:
    """A matrix of the model file: its name, shape (outputs, inputs), and the way to its first n rows.

    `head_rows`: rows of one attention head, where the file interleaves rotary halves and the graph may not.
    """

    name: str
    shape: tuple[int, int]
    load: Callable[[int], Floats]
    head_rows: int | None = None

    def values(self, rows: int, interleaved: bool) -> Floats:
        """The first `rows` rows (whole heads) in the graph's row order, float32."""
        values = self.load(rows)
        if not interleaved or self.head_rows is None:
            return values
        heads = values.reshape(-1, self.head_rows // 2, 2, values.shape[1])
        return heads.swapaxes(1, 2).reshape(values.shape)


@dataclass(frozen=True, slots=True)
class _Sample:
    """The first rows of a matrix of the file, enough to recognise it."""

    matrix: FileMatrix
    interleaved: bool
    values: Floats


def restore(model: Model, file: Iterable[FileMatrix]) -> dict[str, float]:
    """Give every matrix of the graph the file's own values, in place; the cheapest exact form is chosen.

    Kept as it is where it already equals the file; else the graph's integers with a float zero point and
    scale per block, where they reproduce the file; else float16, or float32 if float16 would round.
    Returns the relative error each matrix had before. Raises ModelFileError for a matrix that is not
    in the file.
    """
    samples: dict[tuple[int, int], list[_Sample]] = {}
    for matrix in file:
        rows = min(matrix.head_rows or _SAMPLE_ROWS, matrix.shape[0])
        for interleaved in (False, True) if matrix.head_rows else (False,):
            sample = _Sample(matrix, interleaved, matrix.values(rows, interleaved))
            samples.setdefault(matrix.shape, []).append(sample)
    before: dict[str, float] = {}
    for weight in list(weights(model)):
        values = weight.values()
        found = _recognise(weight.shape, values, samples.get(weight.shape, []))
        exact = found.matrix.values(weight.shape[0], found.interleaved)
        error = _distance(values, exact)
        before[found.matrix.name] = error
        if error > _SAME:
            weight.replace(_exact_form(weight, exact))
    model.validate_nodes_and_infer_types()
    return before


def _recognise(shape: tuple[int, int], values: Floats, samples: list[_Sample]) -> _Sample:
    ranked = sorted(((_distance(values[: len(s.values)], s.values), i) for i, s in enumerate(samples)))
    if not ranked or ranked[0][0] > _RELATED:
        raise ModelFileError(
            f"a {shape[0]} x {shape[1]} matrix of the converted graph is not in the GGUF file",
            "openvino-genai reads this architecture differently; use the transformers target",
        )
    return samples[ranked[0][1]]


def _distance(a: Floats, b: Floats) -> float:
    return float(np.linalg.norm(a - b) / (np.linalg.norm(b) or 1.0))


def _exact_form(weight: Weight, exact: Floats) -> Any:
    if weight.levels is not None and weight.levels.ndim == 3:
        levels = weight.levels.astype(np.float64)
        blocks = exact.reshape(levels.shape).astype(np.float64)
        # Per block the file's values are an affine function of its integers: two of them fix it.
        low = np.expand_dims(levels.argmin(axis=2), 2)
        high = np.expand_dims(levels.argmax(axis=2), 2)
        run = np.take_along_axis(levels, high, 2) - np.take_along_axis(levels, low, 2)
        rise = np.take_along_axis(blocks, high, 2) - np.take_along_axis(blocks, low, 2)
        scale = np.where((run > 0) & (rise != 0), rise / np.where(run > 0, run, 1), 1.0)
        zero = np.mean(levels - blocks / scale, axis=2, keepdims=True)
        small = (zero.astype(np.float32), scale.astype(np.float32))
        rebuilt = (levels.astype(np.float32) - small[0]) * small[1]
        if _distance(rebuilt.reshape(exact.shape), exact) <= _SAME:
            return _scaled(weight.source, small[0], small[1], weight.shape)
    half = exact.astype(np.float16)
    return _plain(half if _distance(half.astype(np.float32), exact) <= _SAME else exact)
