"""Hidden states of chosen layers as one more output of an OpenVINO graph.

What it is for: drafters that read the target (DSpark). `find_stream` finds the residual stream by its structure, not by
names, so graphs of any exporter will do: from the output head down, every addition joins the stream and one sublayer,
and the addition whose sublayer holds layer i's attention gives the stream that entered layer i. `add_output` gives the
graph one output with the chosen states side by side, so that a pass writes them once, into the caller's buffer.

Guarantees: states are numbered and defined as in transformers' `output_hidden_states` (0: the embedding, the last:
after the final norm); logits stay as they were; a graph whose stream cannot be followed to its first layer is refused.
What it does not do: change a graph nobody asked states of.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from draftproof.errors import InvalidValue, Unsupported
from draftproof.target.openvino_graph import Model, Node, find_head, is_constant

HIDDEN = "hidden_states"
"""The added output, float32, shape (tokens of the pass, layers asked for x hidden size)."""

Port = Any
_ATTENTION = "PagedAttentionExtension"
_REMEDY = "use the transformers target, or a drafter that reads no hidden states, such as lookup"


def check_layers(layers: tuple[int, ...], count: int, name: str) -> None:
    """Raise InvalidValue unless every layer exists in a target of `count` layers."""
    bad = [layer for layer in layers if not 0 <= layer <= count]
    if bad:
        raise InvalidValue(f"hidden layers {bad} of {name}", f"0 (the embedding) to {count}")


def add_output(model: Model, layers: tuple[int, ...], name: str) -> int:
    """Add the output HIDDEN to a paged graph, in place; the hidden size.

    Call it before the head is cut: it needs the head to read every token. Raises InvalidValue for a layer the graph
    does not have, Unsupported for one whose stream cannot be followed.
    """
    import openvino.opset13 as op

    stream = find_stream(model, name)
    check_layers(layers, len(stream) - 1, name)
    width = int(stream[-1].partial_shape[-1].get_length())
    shape = op.constant(np.array([-1, width], np.int64))
    chosen = [op.reshape(stream[layer], shape, False) for layer in layers]
    joined = chosen[0] if len(chosen) == 1 else op.concat(chosen, -1)
    joined.output(0).set_names({HIDDEN})
    model.add_results([op.result(joined)])
    model.validate_nodes_and_infer_types()
    return width


def find_stream(model: Model, name: str) -> list[Port]:
    """The residual stream as it enters each layer, and what the output head reads: one more than there are layers."""
    order = {node.get_name(): i for i, node in enumerate(model.get_ordered_ops())}
    last = find_head(model, name).input_value(0)
    layers = sum(node.get_type_name() == _ATTENTION for node in model.get_ordered_ops())
    found = [last]
    joint = _nearest_joint(last, name)
    for _ in range(layers):
        while True:
            stream, branch = _split(joint, order, name)
            if _holds_attention(branch, stream):
                break
            joint = _nearest_joint(stream, name)
        found.append(stream)
        if len(found) <= layers:
            joint = _nearest_joint(stream, name)
    return found[::-1]


def _computed(node: Node) -> list[Port]:
    return [port for port in node.input_values() if not is_constant(port.get_node())]


def _nearest_joint(port: Port, name: str) -> Node:
    """The first addition of two computed values of the stream's width at or above a value: through norms and scales."""
    width = port.partial_shape[-1]
    level, seen = [port], set[str]()
    while level:
        above: list[Port] = []
        for value in level:
            node = value.get_node()
            if node.get_name() in seen:
                continue
            seen.add(node.get_name())
            kind = node.get_type_name()
            if kind == "Add" and len(_computed(node)) == 2 and value.partial_shape[-1] == width:
                return node
            if kind not in ("MatMul", _ATTENTION, "Gather"):  # beyond these lies another sublayer, or the embedding
                above += _computed(node)
        level = above
    raise Unsupported(f"the OpenVINO model {name} has no residual stream that can be followed", _REMEDY)


def _split(joint: Node, order: dict[str, int], name: str) -> tuple[Port, Port]:
    """(the stream before a sublayer, the sublayer's result): the sublayer was computed from the stream, so after it."""
    first, second = sorted(_computed(joint), key=lambda port: order[port.get_node().get_name()])
    if first.get_node().get_name() == second.get_node().get_name():
        raise Unsupported(f"the OpenVINO model {name} adds its residual stream to itself", _REMEDY)
    return first, second


def _holds_attention(branch: Port, stream: Port) -> bool:
    """Whether an attention lies between the stream and a sublayer's result."""
    stop = {stream.get_node().get_name()}
    todo = [branch.get_node()]
    while todo:
        node = todo.pop()
        if node.get_name() in stop:
            continue
        stop.add(node.get_name())
        if node.get_type_name() == _ATTENTION:
            return True
        todo += [port.get_node() for port in node.input_values()]
    return False
