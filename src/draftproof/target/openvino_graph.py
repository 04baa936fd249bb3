"""What an OpenVINO graph must look like to be a target, and the two changes made to it.

What it is for: `check` refuses a graph that lacks something by naming all of it; `page` replaces its growing
state by paged keys and values; `cut_head` adds the input `row_ids` so that only the wanted rows go through
the output head (a prompt of 500 tokens then computes one row of logits, not 500); hidden states of layers that were
asked for become one more output. Guarantees: a graph that
passes computes the same rows as before. What it does not do: compile, run, or change weights (see `openvino_weights`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from draftproof.errors import Unsupported

# OpenVINO's Python classes carry no complete types, so nodes and models are `Any` here.
Node = Any
Model = Any

INPUTS = ("input_ids", "attention_mask", "position_ids", "beam_idx")
"""The inputs of a stateful language model as optimum-intel and openvino-genai export it."""

PAGED_INPUTS = (
    "input_ids",
    "position_ids",
    "past_lens",
    "subsequence_begins",
    "block_indices",
    "block_indices_begins",
    "max_context_len",
)
"""The inputs besides the caches once keys and values are paged; all int32 except the first two (int64)."""

ROW_IDS = "row_ids"
"""The added input, int32, shape (rows,): which of the pass's rows go through the head."""

_EXPORT = "export it as a stateful text-generation model: optimum-cli export openvino --task text-generation-with-past"

_MAX_DEPTH = 8
_ELEMENTWISE = frozenset({"Convert", "Add", "Multiply", "Divide", "Tanh", "Subtract", "Clamp", "Reshape"})


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """What the target needs to know about a graph: its vocabulary, and the inputs that hold keys and values."""

    vocab_size: int
    caches: tuple[str, ...]
    hidden_layers: tuple[int, ...] = ()
    hidden_size: int = 0
    """Hidden states: of which layers, and of what size; none and 0 unless they were asked for."""


def prepare_graph(model: Model, name: str, hidden_layers: tuple[int, ...] = ()) -> GraphFacts:
    """Check a graph and change it in place: paged keys and values, and a head that computes wanted rows only.

    hidden_layers: also give the hidden states of these layers (`openvino_hidden`). Raises Unsupported naming
    everything that is missing, InvalidValue for a layer that the model does not have.
    """
    vocab_size = check(model, name)
    caches = page(model, name)
    size = 0
    if hidden_layers:
        from draftproof.target.openvino_hidden import add_output  # it builds on this module

        size = add_output(model, hidden_layers, name)
    cut_head(model, name)
    return GraphFacts(vocab_size, caches, hidden_layers, size)


def check(model: Model, name: str) -> int:
    """The vocabulary size of a usable graph. Raises Unsupported naming everything that is missing."""
    inputs = {n for port in model.inputs for n in port.names}
    outputs = {n for port in model.outputs for n in port.names}
    missing = [f"the input {n!r}" for n in INPUTS if n not in inputs]
    unknown = sorted(min(port.names, default="unnamed") for port in model.inputs if not port.names & set(INPUTS))
    if "logits" not in outputs:
        missing.append("the output 'logits'")
    if not model.get_variables():
        missing.append("a state (it is not a stateful model: no ReadValue/Assign pairs)")
    if missing or unknown:
        also = f"; it asks for inputs we cannot give: {', '.join(unknown)}" if unknown else ""
        lacks = f"lacks {', '.join(missing)}" if missing else "is of another kind"
        raise Unsupported(f"the OpenVINO model {name} {lacks}{also}", _EXPORT)
    vocab = model.output("logits").partial_shape[-1]
    if not vocab.is_static:
        raise Unsupported(f"the OpenVINO model {name} does not say its vocabulary size", _EXPORT)
    return int(vocab.get_length())


def page(model: Model, name: str) -> tuple[str, ...]:
    """Turn the growing states into paged caches given as inputs, in place; their names, key and value in turn.

    OpenVINO's own transformation (SDPA to PagedAttention) does it; what it leaves behind is refused.
    """
    # The module is private in name only: it is how optimum-intel and others reach the transformation.
    from openvino._offline_transformations import paged_attention_transformation

    try:
        paged_attention_transformation(model)
    except RuntimeError as error:
        raise Unsupported(
            f"the OpenVINO model {name} has no attention that can be paged: {str(error).strip().splitlines()[-1]}",
            _EXPORT,
        ) from error
    left = [op.get_friendly_name() for op in model.get_ordered_ops() if op.get_type_name() == "ReadValue"]
    if left:
        raise Unsupported(
            f"the OpenVINO model {name} keeps a state that is not keys and values: {left[0]!r}",
            "recurrent and convolutional states cannot roll back; use a plain attention model",
        )
    names = [min(port.names) for port in model.inputs]
    caches = tuple(n for n in names if n.startswith(("key_cache.", "value_cache.")))
    unknown = [n for n in names if n not in caches and n not in PAGED_INPUTS]
    if unknown or not caches:
        raise Unsupported(f"the OpenVINO model {name} becomes a graph with unknown inputs {unknown}", _EXPORT)
    return caches


def find_head(model: Model, name: str) -> Node:
    """The MatMul of the output head: the first one above `logits` through elementwise operations.

    Raises Unsupported if the way from `logits` upwards leads elsewhere.
    """
    node = model.output("logits").get_node().input_value(0).get_node()
    for _ in range(_MAX_DEPTH):
        kind = node.get_type_name()
        if kind == "MatMul":
            return node
        # An elementwise step (a soft cap, a scale, a bias) has one computed input; constants do not count.
        computed = [v.get_node() for v in node.input_values() if not is_constant(v.get_node())]
        if kind not in _ELEMENTWISE or len(computed) != 1:
            break
        node = computed[0]
    raise Unsupported(
        f"the OpenVINO model {name}: no MatMul feeds 'logits' (found {node.get_type_name()})",
        "only models whose output head is one matrix product can be scored by rows",
    )


def is_constant(node: Node) -> bool:
    """Whether a node is a constant, maybe stored in another type."""
    while node.get_type_name() == "Convert":
        node = node.input_value(0).get_node()
    return bool(node.get_type_name() == "Constant")


def cut_head(model: Model, name: str) -> None:
    """Gather the rows named by the new input `row_ids` before the output head, in place.

    `logits` becomes (1, rows, vocab). Rows are numbered as the tokens of the pass are.
    """
    import openvino.opset13 as op

    head = find_head(model, name)
    hidden = head.input_value(0)
    width = hidden.partial_shape[-1]
    if len(hidden.partial_shape) != 3 or not width.is_static:
        raise Unsupported(
            f"the OpenVINO model {name}: its output head reads {hidden.partial_shape}, not (batch, tokens, width)",
            "export it again with optimum-intel",
        )
    rows = op.parameter([-1], np.int32, name=ROW_IDS)
    rows.output(0).set_names({ROW_IDS})
    zero = op.constant(np.int64(0))
    flat = op.reshape(hidden, op.constant(np.array([-1, width.get_length()], np.int64)), False)
    wanted = op.unsqueeze(op.gather(flat, rows, zero), zero)
    head.input(0).replace_source_output(wanted.output(0))
    model.add_parameters([rows])
    model.validate_nodes_and_infer_types()
