"""Matrix products that read the same input, joined into one: fewer and larger products in a pass.

What it is for: queries, keys and values are three products of one input. Each costs a fixed time to start (on two cores
12 us of a pass of 6 ms, ninety times), whatever its size; the rows of a matrix stand for themselves, so the three
matrices may lie below each other and be multiplied at once.

Guarantees: every output is the product it was: the same numbers in another matrix, in their own type. Where matrices
are stored in different ways, or their products go straight into an elementwise operation (which runtimes fuse into the
product), the graph stays as it is. What it does not do: join products of different inputs, or with biases.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np

from draftproof.target.openvino_graph import Model, Node

_STEPS = ("Convert", "Subtract", "Multiply", "Reshape")
"""What may lie between a stored matrix and its product."""
_FUSED = ("Add", "Multiply", "Subtract", "Divide", "Swish", "Sigmoid", "Gelu", "Relu", "Tanh", "Clamp", "SoftPlus")


def join_products(model: Model) -> int:
    """Join the products of a graph, in place; how many groups of them there were."""
    groups: dict[tuple[str, int], list[Node]] = {}
    for node in model.get_ordered_ops():
        if node.get_type_name() == "MatMul":
            source = node.input_value(0)
            groups.setdefault((source.get_node().get_name(), source.get_index()), []).append(node)
    joined = sum(len(group) > 1 and _join(group) for group in groups.values())
    if joined:
        model.validate_nodes_and_infer_types()
    return joined


def _join(products: Seq[Node]) -> bool:
    import openvino.opset13 as op

    if not all(_alone(node) for node in products):
        return False
    ports = [node.input_value(1) for node in products]
    outputs = [int(port.partial_shape[0].get_length()) for port in ports]
    matrix = _stacked([port.get_node() for port in ports], outputs)  # None for other numbers of inputs
    if matrix is None:
        return False
    product = op.matmul(products[0].input_value(0), matrix, False, True)
    parts = op.variadic_split(product, op.constant(np.int64(-1)), op.constant(np.array(outputs, np.int64)))
    for node, part in zip(products, parts.outputs(), strict=True):
        node.output(0).replace(part)
    return True


def _alone(product: Node) -> bool:
    """Whether a product is (..., inputs) x (outputs, inputs), both known, and no reader would be fused into it."""
    how, shape = product.get_attributes(), product.input_value(1).partial_shape
    if how["transpose_a"] or not how["transpose_b"] or len(shape) != 2 or not shape.is_static:
        return False
    readers = [reader.get_node().get_type_name() for reader in product.output(0).get_target_inputs()]
    return not any(kind in _FUSED for kind in readers)


def _stacked(nodes: Seq[Node], outputs: Seq[int]) -> Node | None:
    """The matrices that nodes compute from constants, below each other; None where they are not of one form."""
    import openvino.opset13 as op

    kind, element = nodes[0].get_type_name(), nodes[0].get_output_element_type(0)
    if any(n.get_type_name() != kind or n.get_output_element_type(0) != element for n in nodes):
        return None
    if kind == "Constant":
        return _stacked_constants(nodes, outputs)
    if kind not in _STEPS:
        return None
    first = _stacked([n.input_value(0).get_node() for n in nodes], outputs)
    if first is None:
        return None
    if kind == "Convert":
        return op.convert(first, element.get_type_name())
    if kind == "Reshape":
        shape = [sum(outputs), *(n.get_length() for n in list(nodes[0].get_output_partial_shape(0))[1:])]
        return op.reshape(first, op.constant(np.array(shape, np.int64)), False)
    second = _stacked([n.input_value(1).get_node() for n in nodes], outputs)
    if second is None:
        return None
    return op.subtract(first, second) if kind == "Subtract" else op.multiply(first, second)


def _stacked_constants(nodes: Seq[Node], outputs: Seq[int]) -> Node | None:
    import openvino as ov
    import openvino.opset13 as op

    shapes = [list(node.shape) for node in nodes]
    whole = all(shape[:1] == [n] and shape[1:] == shapes[0][1:] for shape, n in zip(shapes, outputs, strict=True))
    stored = [np.asarray(node.data).reshape(-1).view(np.uint8) for node in nodes]
    bits = nodes[0].get_element_type().bitwidth
    full = all(8 * part.size == bits * int(np.prod(shape)) for part, shape in zip(stored, shapes, strict=True))
    if not (whole and full):  # a last byte that is half used cannot be followed by another row
        return None
    # A tensor that owns its memory: a constant made from a view of ours would outlive it.
    tensor = ov.Tensor(nodes[0].get_element_type(), ov.Shape([sum(outputs), *shapes[0][1:]]))
    np.concatenate(stored, out=tensor.data.reshape(-1).view(np.uint8))
    return op.constant(tensor)
