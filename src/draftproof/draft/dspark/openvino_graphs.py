"""The DSpark drafter's three graphs for OpenVINO: a context's keys and values, blocks, a sequential head's biases.

Guarantees: blocks do not see each other, and a mask hides what does not count; with `exact` the same numbers as
`forward` up to float32 rounding, without, weights of 8 bits with a scale for each output. What it does not do: compile
or run them (`openvino_forward`).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from draftproof.draft.dspark.checkpoint import Checkpoint
from draftproof.draft.dspark.config import DSparkConfig
from draftproof.draft.dspark.forward import context_weights, layer_weights
from draftproof.target.openvino_weights import rounded

Array = npt.NDArray[Any]
Node = Any


def most_waiting(config: DSparkConfig) -> int:
    """Tokens whose features may wait for a block: those of a round that accepted all of one."""
    return config.block + 1


class Graphs:
    """The graphs of a checkpoint. head: the target's table, (vocab, hidden). exact: float32 weights."""

    def __init__(self, checkpoint: Checkpoint, head: Array, *, exact: bool) -> None:
        self._checkpoint, self._exact = checkpoint, exact
        self._head = head[checkpoint.tensors["vocab"]].T

    @property
    def _config(self) -> DSparkConfig:
        return self._checkpoint.config

    def context(self) -> Any:
        """features (sequences, n, feature layers * hidden), cos, sin (sequences, n, head_dim / 2) -> keys and values
        (sequences, layers, 2, kv heads, n, head_dim).
        """
        import openvino as ov
        from openvino import opset13 as op

        features, cos, sin = self._features(-1, -1), self._turns(-1, -1), self._turns(-1, -1)
        turn = (op.unsqueeze(cos, _ints(1)), op.unsqueeze(sin, _ints(1)))
        return ov.Model([self._stacked(self._fresh(features, turn))], [features, cos, sin])

    def biases(self) -> Any:
        """A sequential head's read (1, rank) -> what it adds to a row of logits."""
        import openvino as ov
        from openvino import opset13 as op

        out = self._checkpoint.tensors["head.out"].T
        read = op.parameter([1, len(out)], np.float32)
        return ov.Model([self._product(read, out)], [read])

    def block(self, sequences: int) -> Any:
        """The same for features that wait, and on the whole context a block of each of so many sequences, -1 for any
        number: hidden rows, and logits of the rows asked for. Inputs as `openvino_forward` gives them.
        """
        import openvino as ov
        from openvino import opset13 as op

        c, g, w = self._config, self._config.block, most_waiting(self._config)
        features = self._features(sequences, w)
        cos, sin = self._turns(sequences, w + g), self._turns(sequences, w + g)
        x = inputs = op.parameter([max(-1, sequences * g), c.hidden], np.float32)
        seen = op.parameter([sequences, 1, 1, -1], np.float32)
        rows = op.parameter([max(-1, sequences * g)], np.int32)
        stores = [op.parameter([sequences, c.kv_heads, -1, c.head_dim], np.float32) for _ in range(2 * c.layers)]
        # (sequences, 1, tokens, head_dim / 2), the first w for what waits, the others for the block
        turns = [op.unsqueeze(t, _ints(1)) for t in (cos, sin)]
        first = tuple(_part(t, 0, w, axis=2) for t in turns)
        second = tuple(_part(t, w, w + g, axis=2) for t in turns)
        fresh = self._fresh(features, first)
        for i in range(c.layers):
            weights = layer_weights(self._checkpoint, i)
            x = op.add(x, self._attention(x, weights, second, seen, stores[2 * i : 2 * i + 2], fresh[i]))
            y = self._norm(x, weights["mlp_norm"])
            gate, up = weights["gate_up"][:, : c.mlp], weights["gate_up"][:, c.mlp :]
            mixed = op.multiply(op.swish(self._product(y, gate)), self._product(y, up))
            x = op.add(x, self._product(mixed, weights["down"]))
        hidden = self._norm(x, self._checkpoint.tensors["norm"])
        logits = self._product(op.gather(hidden, rows, _ints(0)), self._head)
        return ov.Model([self._stacked(fresh), hidden, logits], [features, inputs, cos, sin, seen, rows, *stores])

    def _features(self, sequences: int, tokens: int) -> Node:
        from openvino import opset13 as op

        return op.parameter([sequences, tokens, len(self._config.feature_layers) * self._config.hidden], np.float32)

    def _turns(self, sequences: int, tokens: int) -> Node:
        from openvino import opset13 as op

        return op.parameter([sequences, tokens, self._config.head_dim // 2], np.float32)

    def _fresh(self, features: Node, turn: tuple[Node, ...]) -> list[tuple[Node, Node]]:
        """Keys and values of every layer, (sequences, kv heads, n, head_dim) each."""
        from openvino import opset13 as op

        c, t = self._config, self._checkpoint.tensors
        into, kv = context_weights(self._checkpoint)
        rows = self._product(self._norm(self._product(features, into), t["context.norm"]), kv)
        heads = op.transpose(op.reshape(rows, _ints(0, 0, -1, c.head_dim), True), _ints(0, 2, 1, 3))
        found = []
        for i in range(c.layers):
            at = 2 * i * c.kv_heads
            keys = _part(heads, at, at + c.kv_heads, axis=1)
            if c.qk_norm:
                keys = self._norm(keys, t[f"layers.{i}.k_norm"])
            found.append((_turned(keys, turn), _part(heads, at + c.kv_heads, at + 2 * c.kv_heads, axis=1)))
        return found

    def _stacked(self, fresh: list[tuple[Node, Node]]) -> Node:
        """(sequences, layers, 2, kv heads, n, head_dim)."""
        from openvino import opset13 as op

        pairs = [op.concat([op.unsqueeze(x, _ints(1)) for x in pair], 1) for pair in fresh]
        return op.concat([op.unsqueeze(pair, _ints(1)) for pair in pairs], 1)

    def _attention(
        self,
        x: Node,
        weights: dict[str, Array],
        turn: tuple[Node, ...],
        seen: Node,
        store: list[Node],
        fresh: tuple[Node, Node],
    ) -> Node:
        """What a layer's attention adds to x, (sequences * block, hidden)."""
        from openvino import opset13 as op

        c, g = self._config, self._config.block
        qkv = self._product(self._norm(x, weights["attn_norm"]), weights["qkv"])
        shape = _ints(-1, g, c.heads + 2 * c.kv_heads, c.head_dim)
        heads = op.transpose(op.reshape(qkv, shape, False), _ints(0, 2, 1, 3))
        q = _part(heads, 0, c.heads, axis=1)
        k = _part(heads, c.heads, c.heads + c.kv_heads, axis=1)
        v = _part(heads, c.heads + c.kv_heads, c.heads + 2 * c.kv_heads, axis=1)
        if c.qk_norm:
            q, k = self._norm(q, weights["q_norm"]), self._norm(k, weights["k_norm"])
        q = op.multiply(_turned(q, turn), op.constant(np.float32(1 / math.sqrt(c.head_dim))))
        # Query heads of one key head side by side: (sequences, kv heads, group * block, head_dim).
        q = op.reshape(q, _ints(0, c.kv_heads, c.heads // c.kv_heads * g, c.head_dim), True)
        new_keys, new_values = op.concat([fresh[0], _turned(k, turn)], 2), op.concat([fresh[1], v], 2)
        scores = op.concat([op.matmul(q, store[0], False, True), op.matmul(q, new_keys, False, True)], 3)
        shares = op.softmax(op.add(scores, seen), 3)
        last = most_waiting(c) + g
        old = op.slice(shares, _ints(0), _ints(-last), _ints(1), _ints(3))
        new = op.slice(shares, _ints(-last), _ints(2**31), _ints(1), _ints(3))
        mixed = op.add(op.matmul(old, store[1], False, False), op.matmul(new, new_values, False, False))
        mixed = op.transpose(op.reshape(mixed, _ints(0, c.heads, g, c.head_dim), True), _ints(0, 2, 1, 3))
        return self._product(op.reshape(mixed, _ints(-1, c.heads * c.head_dim), False), weights["o"])

    def _norm(self, x: Node, weight: Array) -> Node:
        from openvino import opset13 as op

        square = op.reduce_mean(op.multiply(x, x), _ints(-1), keep_dims=True)
        root = op.sqrt(op.add(square, op.constant(np.float32(self._config.norm_eps))))
        return op.multiply(op.divide(x, root), op.constant(weight.astype(np.float32)))

    def _product(self, x: Node, weight: Array) -> Node:
        """rows @ weight."""
        from openvino import opset13 as op

        values = np.ascontiguousarray(weight.T, dtype=np.float32)
        return op.matmul(x, op.constant(values) if self._exact else rounded(values), False, True)


def _turned(x: Node, turn: tuple[Node, ...]) -> Node:
    """Rotary embedding of (sequences, heads, tokens, head_dim)."""
    from openvino import opset13 as op

    a, b = op.split(x, op.constant(3, dtype=np.int64), 2).outputs()
    cos, sin = turn
    return op.concat(
        [
            op.subtract(op.multiply(a, cos), op.multiply(b, sin)),
            op.add(op.multiply(b, cos), op.multiply(a, sin)),
        ],
        3,
    )


def _part(x: Node, begin: int, end: int, *, axis: int) -> Node:
    from openvino import opset13 as op

    return op.slice(x, _ints(begin), _ints(end), _ints(1), _ints(axis))


def _ints(*values: int) -> Node:
    from openvino import opset13 as op

    return op.constant(np.array(values, np.int64))
