"""A one-layer attention model as OpenVINO IR, built by hand: small enough for exact reasoning and fast tests."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as op
from openvino.op.util import Variable, VariableInfo

from draftproof.target.base import LogitRows, Rows

VOCAB, WIDTH, HEADS, LIMIT = 37, 32, 2, 256
SIZE = WIDTH // HEADS


def tiny(*, seed: int = 0, head: str = "matmul", recurrent: bool = False, layers: int = 1, stream: bool = False) -> Any:
    """A stateful language model with learned positions. `head` is "matmul", "softmax" or "capped".

    `recurrent` adds a state that is overwritten in each pass, as convolutions and recurrences keep it. `layers` > 1:
    so many layers of attention and a feed-forward part, each behind a norm, and a norm before the head. `stream` adds
    the outputs stream.0 ... stream.<layers>: the hidden states, as a reference.
    """
    rng = np.random.default_rng(seed)

    def matrix(*shape: int) -> Any:
        return op.constant(rng.normal(0, 0.4, shape).astype(np.float32))

    def norm(x: Any) -> Any:
        square = op.reduce_mean(op.multiply(x, x), op.constant(np.array([-1])), True)
        return op.multiply(op.divide(x, op.sqrt(op.add(square, op.constant(np.float32(1e-5))))), matrix(WIDTH))

    ids, mask = _input("input_ids", [-1, -1]), _input("attention_mask", [-1, -1])
    positions, beam = _input("position_ids", [-1, -1]), _input("beam_idx", [-1], np.int32)
    zero = op.constant(np.int64(0))
    embedding = matrix(VOCAB, WIDTH)
    hidden = op.add(op.gather(embedding, ids, zero), op.gather(matrix(LIMIT, WIDTH), positions, zero))
    allowed = op.unsqueeze(_causal(ids, mask), op.constant(np.array([1], np.int64)))
    sinks: list[Any] = []
    entering = []
    for layer in range(layers):
        entering.append(hidden)
        inner = hidden if layers == 1 else norm(hidden)
        attended = op.matmul(
            _attention(layer, inner, ids, beam, allowed, matrix, sinks), matrix(WIDTH, WIDTH), False, True
        )
        hidden = op.add(hidden, attended)
        if layers > 1:
            wide = op.swish(op.matmul(norm(hidden), matrix(2 * WIDTH, WIDTH), False, True))
            hidden = op.add(op.matmul(wide, matrix(WIDTH, 2 * WIDTH), False, True), hidden)
    if layers > 1:
        hidden = norm(hidden)
    entering.append(hidden)
    if recurrent:
        info = VariableInfo()
        info.data_shape, info.data_type, info.variable_id = ov.PartialShape([-1, -1, WIDTH]), ov.Type.f32, "conv.0"
        variable = Variable(info)
        total = op.reduce_sum(hidden, op.constant(np.array([1], np.int64)), True)
        sinks.append(op.assign(op.add(op.read_value(total, variable), total), variable))
        hidden = op.add(hidden, sinks[-1].input_value(0))
    logits = op.matmul(hidden, embedding, False, True)
    if head == "softmax":
        logits = op.softmax(logits, 2)
    if head == "capped":
        logits = op.multiply(op.tanh(op.divide(logits, op.constant(np.float32(3)))), op.constant(np.float32(3)))
    logits.output(0).set_names({"logits"})
    results = [op.result(logits)]
    if stream:
        for layer, state in enumerate(entering):
            results.append(op.result(state))
            results[-1].output(0).set_names({f"stream.{layer}"})
    return ov.Model(results, sinks, [ids, mask, positions, beam], "tiny")


def _attention(layer: int, hidden: Any, ids: Any, beam: Any, allowed: Any, matrix: Any, sinks: list[Any]) -> Any:
    """Attention over a growing state: (batch, tokens, WIDTH)."""
    zero = op.constant(np.int64(0))

    def heads() -> Any:
        projected = op.matmul(hidden, matrix(WIDTH, WIDTH), False, True)
        split = op.reshape(projected, op.constant(np.array([0, 0, HEADS, SIZE], np.int64)), True)
        return op.transpose(split, op.constant(np.array([0, 2, 1, 3], np.int64)))

    states = []
    query = heads()
    for name in ("key", "value"):
        info = VariableInfo()
        info.data_shape = ov.PartialShape([-1, HEADS, -1, SIZE])
        info.data_type = ov.Type.f32
        info.variable_id = f"past_key_values.{layer}.{name}present.{layer}.{name}"
        variable = Variable(info)
        batch = op.gather(op.shape_of(ids), op.constant(np.array([0], np.int64)), zero)
        sizes = [op.constant(np.array([n], np.int64)) for n in (HEADS, 0, SIZE)]
        empty = op.broadcast(op.constant(np.float32(0)), op.concat([batch, *sizes], 0))
        past = op.gather(op.read_value(empty, variable), beam, zero)
        states.append(op.concat([past, heads()], 2))
        sinks.append(op.assign(states[-1], variable))
    attended = op.scaled_dot_product_attention(query, states[0], states[1], allowed, causal=False)
    return op.reshape(
        op.transpose(attended, op.constant(np.array([0, 2, 1, 3], np.int64))),
        op.constant(np.array([0, 0, WIDTH], np.int64)),
        True,
    )


def _input(name: str, shape: list[int], dtype: Any = np.int64) -> Any:
    node = op.parameter(shape, dtype, name=name)
    node.output(0).set_names({name})
    return node


def _causal(ids: Any, mask: Any) -> Any:
    """0 where a query may look, -1e9 elsewhere, shape (batch, queries, columns)."""
    zero, one = op.constant(np.int64(0)), op.constant(np.int64(1))
    queries = op.gather(op.shape_of(ids), one, zero)
    columns = op.gather(op.shape_of(mask), one, zero)
    column = op.range(zero, columns, one, "i64")
    query = op.add(op.range(zero, queries, one, "i64"), op.subtract(columns, queries))
    future = op.greater(op.unsqueeze(column, zero), op.unsqueeze(query, one))
    hidden = op.logical_or(op.unsqueeze(future, zero), op.unsqueeze(op.equal(mask, zero), one))
    return op.select(hidden, op.constant(np.float32(-1e9)), op.constant(np.float32(0)))


def stateless(*inputs: str) -> Any:
    """A graph that has only `input_ids` and these inputs, embeds and unembeds, and has no state."""
    nodes = [_input(name, [-1] if name == "beam_idx" else [-1, -1]) for name in ("input_ids", *inputs)]
    embedding = op.constant(np.eye(VOCAB, dtype=np.float32))
    hidden = op.gather(embedding, nodes[0], op.constant(np.int64(0)))
    logits = op.matmul(hidden, embedding, False, True)
    logits.output(0).set_names({"logits"})
    return ov.Model([op.result(logits)], nodes, "stateless")


def save(model: Any, folder: Path) -> Path:
    """The model as an IR folder."""
    folder.mkdir(parents=True, exist_ok=True)
    ov.save_model(model, folder / "openvino_model.xml", compress_to_fp16=False)
    return folder


def values(rows: Rows) -> np.ndarray:
    assert isinstance(rows, LogitRows)
    return rows.values


def some(rng: random.Random, n: int, vocab: int = VOCAB) -> list[int]:
    return [rng.randrange(vocab) for _ in range(n)]
