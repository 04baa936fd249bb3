"""The DSpark drafter's forward pass as one OpenVINO graph: context and block, attention included.

Every call of a runtime wakes its threads, and all the drafter's weights are read for every block; so there is one call,
and weights are 8-bit integers with a scale for each output. What committed tokens add to the context is computed in the
same call: their features wait in the cache (`ContextCache.waiting`) until a block is wanted. The runtime prepares its
kernels anew for another shape, so waiting features are filled up to one number and stores grow by doubling; a mask
hides what does not count.

Guarantees: blocks do not see each other; with `exact` the same numbers as `forward` up to float32 rounding. Without, 8
bits are plenty for a draft: no rounding here matters to what is emitted, as q is computed from what came out. What it
does not do: draw tokens or keep sequences.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
import numpy.typing as npt

from draftproof.draft.dspark.checkpoint import Checkpoint
from draftproof.draft.dspark.config import DSparkConfig
from draftproof.draft.dspark.context import ContextCache
from draftproof.draft.dspark.forward import BlockRows, block_inputs, context_weights, layer_weights, rotation
from draftproof.target.openvino_compile import GROUPS
from draftproof.target.openvino_weights import rounded

Array = npt.NDArray[Any]
Node = Any

PATIENT = 32  # tokens that may wait where nothing is drafted
_HIDDEN = np.float32(-1e9)  # added to the score of what is not to be seen


class OpenVINOForward:
    """A `forward.Forward`. embedding, head: the target's tables, (vocab, hidden). threads: of the runtime, None for its
    own choice. exact: float32 weights and products.
    """

    blas = False

    def __init__(
        self, checkpoint: Checkpoint, embedding: Array, head: Array, *, threads: int | None = None, exact: bool = False
    ) -> None:
        import openvino as ov

        c = self.config = checkpoint.config
        self._embedding, self._mask = embedding, checkpoint.tensors["mask"]
        options: dict[str, Any] = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": GROUPS["float32" if exact else "int8"],
            "ENABLE_CPU_PINNING": False,  # as for the target: a pinned thread waits while another CPU stands idle
        }
        if threads is not None:
            options["INFERENCE_NUM_THREADS"] = threads
        core, graph = ov.Core(), _Graph(checkpoint, head, exact=exact)

        def compiled(model: Any) -> _Call:
            return _Call(core.compile_model(model, "CPU", options).create_infer_request())

        self._context = compiled(graph.context())
        # Shapes that are known cost the runtime less. The other graph is made when there are several sequences.
        self._alone = compiled(graph.block(1))
        self._together = functools.cache(lambda: compiled(graph.block(-1)))
        self._inputs = _Inputs(c, 1, 0)

    def new_cache(self) -> ContextCache:
        return ContextCache(self.config.layers, self.config.kv_heads, self.config.head_dim)

    def extend(self, cache: ContextCache, features: Array) -> None:
        if not len(features):
            return
        cache.wait(features)
        self._store(cache, PATIENT)  # a drafter that is off for a while computes them many at a time

    def _store(self, cache: ContextCache, most: int) -> None:
        """Keys and values of what waits, if that is more than so many tokens."""
        if cache.waiting is None or len(cache.waiting) <= most:
            return
        at = np.arange(cache.stored, cache.length)[None]
        (rows,) = self._context([cache.waiting[None], *rotation(self.config, at)])
        cache.append(rows[0])

    def blocks(self, caches: Seq[ContextCache], anchors: Seq[int], wanted: Seq[int]) -> list[BlockRows]:
        g = self.config.block
        for cache in caches:
            self._store(cache, _most_waiting(self.config))
        count, room = len(caches), max(cache.room for cache in caches)
        if (count, room) != self._inputs.shape:
            self._inputs = _Inputs(self.config, count, room)
        arrays = self._inputs.filled(caches, block_inputs(self._embedding, self._mask, anchors, g))
        # One sequence's rows are all computed, at no cost: their number is part of the shape.
        asked = [g] if count == 1 else wanted
        rows = np.concatenate([i * g + np.arange(n, dtype=np.int32) for i, n in enumerate(asked)])
        call, stores = (self._alone, caches[0].parts) if count == 1 else (self._together(), _together(caches, room))
        fresh, hidden, logits = call([*arrays, rows, *stores])
        for i, cache in enumerate(caches):
            if cache.waiting is not None:
                cache.append(fresh[i, :, :, :, : len(cache.waiting)])
        # Copies: the runtime's own buffers are overwritten by the next block.
        each = np.split(np.array(logits), np.cumsum(asked)[:-1])
        every = np.array(hidden).reshape(count, g, -1)
        return [BlockRows(h, u[:n]) for h, u, n in zip(every, each, wanted, strict=True)]


class _Call:
    """A compiled graph; an input that is the array of the last call is not handed over again."""

    def __init__(self, request: Any) -> None:
        import openvino as ov

        self._request, self._tensor = request, ov.Tensor
        self._given: list[Array | None] = [None] * len(request.model_inputs)

    def __call__(self, arrays: Seq[Array]) -> list[Array]:
        """Its outputs: views, until the next call."""
        for i, array in enumerate(arrays):
            if array is not self._given[i]:
                self._given[i] = array if array.flags.c_contiguous else np.ascontiguousarray(array)
                self._request.set_input_tensor(i, self._tensor(self._given[i], shared_memory=True))
        self._request.infer()
        return [self._request.get_output_tensor(i).data for i in range(len(self._request.model_outputs))]


class _Inputs:
    """What goes into a block beside stores, in arrays that are filled anew for every one."""

    def __init__(self, config: DSparkConfig, count: int, room: int) -> None:
        g, w = config.block, _most_waiting(config)
        self._config, self.shape = config, (count, room)
        self._features = np.zeros((count, w, len(config.feature_layers) * config.hidden), np.float32)
        self._x = np.empty((count * g, config.hidden), np.float32)
        self._cos = np.empty((count, w + g, config.head_dim // 2), np.float32)
        self._sin = np.empty_like(self._cos)
        self._seen = np.zeros((count, 1, 1, room + w + g), np.float32)

    def filled(self, caches: Seq[ContextCache], x: Array) -> list[Array]:
        """features, x, cos, sin, seen for these sequences."""
        (_, room), w, g = self.shape, _most_waiting(self._config), self._config.block
        at = np.empty((len(caches), w + g), np.int64)
        self._seen[..., : room + w] = _HIDDEN
        for i, cache in enumerate(caches):
            self._seen[i, ..., : cache.stored] = 0
            if cache.waiting is not None:
                self._features[i, : len(cache.waiting)] = cache.waiting
                self._seen[i, ..., room : room + len(cache.waiting)] = 0
            at[i, :w] = np.arange(cache.stored, cache.stored + w)
            at[i, w:] = np.arange(cache.length, cache.length + g)
        self._x[:] = x
        self._cos[:], self._sin[:] = rotation(self._config, at)
        return [self._features, self._x, self._cos, self._sin, self._seen]


def _most_waiting(config: DSparkConfig) -> int:
    """Tokens whose features may wait for a block: those of a round that accepted all of one."""
    return config.block + 1


def _together(caches: Seq[ContextCache], room: int) -> list[Array]:
    """The parts of several sequences' stores, (sequences, kv heads, room, head_dim) each."""
    layers, _, heads, _, size = caches[0].store.shape
    together = np.zeros((layers, 2, len(caches), heads, room, size), np.float32)
    for j, cache in enumerate(caches):
        together[:, :, j, :, : cache.stored] = cache.store[:, :, :, : cache.stored]
    return [part for layer in together for part in layer]


class _Graph:
    """The two graphs of a checkpoint."""

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

    def block(self, sequences: int) -> Any:
        """The same for features that wait, and on the whole context a block of each of so many sequences, -1 for any
        number: hidden rows, and logits of the rows asked for. Inputs as `OpenVINOForward.blocks` gives them.
        """
        import openvino as ov
        from openvino import opset13 as op

        c, g, w = self._config, self._config.block, _most_waiting(self._config)
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
        last = _most_waiting(c) + g
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
