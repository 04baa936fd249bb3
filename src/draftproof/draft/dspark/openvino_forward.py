"""The DSpark drafter's forward pass as one OpenVINO graph: context and block, attention included.

Every call of a runtime wakes its threads, and all the drafter's weights are read for every block; so there is one call,
and weights are 8-bit integers with a scale for each output. (A sequential head's bias follows from the token before it,
so that is a small call of its own for each token.) What committed tokens add to the context is computed in the
same call: their features wait in the cache (`ContextCache.waiting`) until a block is wanted. The runtime prepares its
kernels anew for another shape, so waiting features are filled up to one number and stores grow by doubling; a mask
hides what does not count.

Guarantees: blocks do not see each other; with `exact` the same numbers as `forward` up to float32 rounding. Without, 8
bits are plenty for a draft: no rounding here matters to what is emitted, as q is computed from what came out. What it
does not do: draw tokens or keep sequences.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence as Seq
from copy import copy
from typing import Any

import numpy as np
import numpy.typing as npt

from draftproof.draft.dspark.checkpoint import Checkpoint
from draftproof.draft.dspark.config import DSparkConfig
from draftproof.draft.dspark.context import ContextCache
from draftproof.draft.dspark.forward import BlockRows, block_inputs, rotation
from draftproof.draft.dspark.openvino_graphs import Graphs, most_waiting
from draftproof.target.openvino_compile import GROUPS

Array = npt.NDArray[Any]

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
        self._turns = _Turns(c)
        options: dict[str, Any] = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": GROUPS["float32" if exact else "int8"],
            "ENABLE_CPU_PINNING": False,  # as for the target: a pinned thread waits while another CPU stands idle
        }
        if threads is not None:
            options["INFERENCE_NUM_THREADS"] = threads
        core, graph = ov.Core(), Graphs(checkpoint, head, exact=exact)

        def compiled(model: Any) -> _Call:
            return _Call(core.compile_model(model, "CPU", options).create_infer_request())

        self._context = compiled(graph.context())
        self._alone = compiled(graph.block(1))  # shapes that are known cost the runtime less
        self._compile_together = lambda: compiled(graph.block(-1))
        self.biases = compiled(graph.biases()).alone if "head.out" in checkpoint.tensors else None
        self._new_inputs = functools.partial(_Inputs, c, embedding, checkpoint.tensors["mask"], self._turns)
        self._begin()

    def _begin(self) -> None:
        self._together = functools.cache(self._compile_together)  # when there are several sequences
        self._inputs = self._new_inputs(1, 0)
        self._side_by_side = _SideBySide(self.config)

    def another(self) -> OpenVINOForward:
        """See `forward.Forward`. For a number of sequences in turn with another one kernels would be prepared anew."""
        other = copy(self)
        other._begin()
        return other

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
        (rows,) = self._context([cache.waiting[None], *self._turns.of(at)])
        cache.append(rows[0])

    def blocks(self, caches: Seq[ContextCache], anchors: Seq[int], wanted: Seq[int]) -> list[BlockRows]:
        g = self.config.block
        for cache in caches:
            self._store(cache, most_waiting(self.config))
        count, room = len(caches), max(cache.room for cache in caches)
        if (count, room) != self._inputs.shape:
            self._inputs = self._new_inputs(count, room)
        arrays = self._inputs.filled(caches, anchors)
        if count == 1:  # all rows are computed, at no cost: their number is part of the shape
            fresh, hidden, logits = self._alone([*arrays, self._inputs.rows, *caches[0].parts])
            each = [logits[: wanted[0]]]
        else:
            rows = np.concatenate([i * g + np.arange(n, dtype=np.int32) for i, n in enumerate(wanted)])
            fresh, hidden, logits = self._together()([*arrays, rows, *self._side_by_side.of(caches, room)])
            each = np.split(logits, np.cumsum(wanted)[:-1])
        for i, cache in enumerate(caches):
            if cache.waiting is not None:
                cache.append(fresh[i, :, :, :, : len(cache.waiting)])
        return [BlockRows(h, u) for h, u in zip(hidden.reshape(count, g, -1), each, strict=True)]


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

    def alone(self, row: Array) -> Array:
        """The only output's only row, for the only input's."""
        self._request.get_input_tensor(0).data[:] = row
        self._request.infer()
        found: Array = self._request.get_output_tensor(0).data[0]
        return found


class _Turns:
    """cos and sin of positions, from tables that grow."""

    def __init__(self, config: DSparkConfig) -> None:
        self._config = config
        self._tables = rotation(config, np.arange(0))

    def until(self, length: int) -> tuple[Array, Array]:
        """Tables of at least so many positions, (positions, head_dim / 2) each."""
        if len(self._tables[0]) < length:
            self._tables = rotation(self._config, np.arange(2 * length))
        return self._tables

    def of(self, at: Array) -> tuple[Array, Array]:
        """(..., head_dim / 2) each."""
        cos, sin = self.until(int(at.max()) + 1)
        return cos[at], sin[at]


class _Inputs:
    """What goes into a block beside stores, in arrays that are filled anew for every one."""

    def __init__(
        self, config: DSparkConfig, embedding: Array, mask: Array, turns: _Turns, count: int, room: int
    ) -> None:
        g, w = config.block, most_waiting(config)
        self._block, self._waiting, self._embedding, self._turns = g, w, embedding, turns
        self.shape = (count, room)
        self.rows = np.arange(count * g, dtype=np.int32)
        self._features = np.zeros((count, w, len(config.feature_layers) * config.hidden), np.float32)
        self._x = block_inputs(embedding, mask, [0] * count, g)
        self._cos = np.empty((count, w + g, config.head_dim // 2), np.float32)
        self._sin = np.empty_like(self._cos)
        self._seen = np.zeros((count, 1, 1, room + w + g), np.float32)

    def filled(self, caches: Seq[ContextCache], anchors: Seq[int]) -> list[Array]:
        """features, x, cos, sin, seen for these sequences."""
        (_, room), w, g = self.shape, self._waiting, self._block
        cos, sin = self._turns.until(max(cache.length for cache in caches) + w + g)
        self._seen[..., : room + w] = _HIDDEN
        for i, (cache, anchor) in enumerate(zip(caches, anchors, strict=True)):
            self._x[i * g] = self._embedding[anchor]
            self._seen[i, ..., : cache.stored] = 0
            if cache.waiting is not None:
                self._features[i, : len(cache.waiting)] = cache.waiting
                self._seen[i, ..., room : room + len(cache.waiting)] = 0
            for table, turns in ((cos, self._cos), (sin, self._sin)):
                turns[i, :w] = table[cache.stored : cache.stored + w]
                turns[i, w:] = table[cache.length : cache.length + g]
        return [self._features, self._x, self._cos, self._sin, self._seen]


class _SideBySide:
    """The stores of several sequences in one array for each of their parts, copied from block to block as they grow."""

    def __init__(self, config: DSparkConfig) -> None:
        self._config = config
        self._held: list[ContextCache] = []
        self._all = np.zeros((0, 0, 0, 0, 0, 0), np.float32)
        self._parts: list[Array] = []

    def of(self, caches: Seq[ContextCache], room: int) -> list[Array]:
        """Keys and values of every layer in turn, (sequences, kv heads, room, head_dim) each."""
        c = self._config
        shape = (c.layers, 2, len(caches), c.kv_heads, room, c.head_dim)
        if self._all.shape != shape:
            self._all, self._held = np.zeros(shape, np.float32), []
            self._parts = [part for layer in self._all for part in layer]
        for i, cache in enumerate(caches):
            same = cache.same()
            if i >= len(self._held) or self._held[i] is not cache:
                same = 0
            self._all[:, :, i, :, same : cache.stored] = cache.store[:, :, :, same : cache.stored]
        self._held = list(caches)
        return self._parts
