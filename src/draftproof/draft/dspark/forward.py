"""The DSpark drafter's forward pass in numpy: one block for each of several sequences.

What it is for: the plain form of what `openvino_forward` does as one graph, and the one in use where OpenVINO is not
installed. Guarantees: the same numbers as `module` up to float32 rounding (tests/dspark compares); the context's keys
and values are computed once per committed token and cut back with it. What it does not do: draw tokens or keep
sequences; the caller owns each sequence's `ContextCache`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from draftproof.draft.dspark.checkpoint import Checkpoint
from draftproof.draft.dspark.config import DSparkConfig
from draftproof.draft.dspark.context import ContextCache
from draftproof.draft.dspark.heads import product

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class BlockRows:
    """hidden: (block, hidden), after the final norm. logits: U, (rows wanted, draft vocab). Float32; they may be views
    of what the next block overwrites.
    """

    hidden: Array
    logits: Array


class Forward(Protocol):
    """The drafter on its context. blas: whether NumPy's products are what it computes with."""

    blas: bool

    def new_cache(self) -> ContextCache:
        """An empty context."""
        ...

    def extend(self, cache: ContextCache, features: Array) -> None:
        """Add committed tokens: features (n, feature layers * hidden) of those following the cache's."""
        ...

    def blocks(self, caches: Seq[ContextCache], anchors: Seq[int], wanted: Seq[int]) -> list[BlockRows]:
        """One block per sequence, after its whole context. anchors: token ids; wanted: rows of logits of each."""
        ...

    def another(self) -> Forward:
        """One with the same weights, for sequences of another engine: what is compiled for a number of sequences is its
        own.
        """
        ...

    @property
    def biases(self) -> Callable[[Array], Array] | None:
        """What a sequential head's read (rank,) adds to a row of logits, (draft vocab,); None for a head without."""
        ...


class NumpyForward:
    """embedding, head: the target's tables, (vocab, hidden)."""

    blas = True

    def __init__(self, checkpoint: Checkpoint, embedding: Array, head: Array) -> None:
        c = self.config = checkpoint.config
        t = checkpoint.tensors
        self._embedding, self._mask, self._norm = embedding, t["mask"], t["norm"]
        self._head = np.ascontiguousarray(head[t["vocab"]].T, dtype=np.float32)
        self._layers = [layer_weights(checkpoint, i) for i in range(c.layers)]
        self._context, self._context_kv = context_weights(checkpoint)
        self._context_norm = t["context.norm"]
        self.biases = product(checkpoint) if "head.out" in t else None
        self._key_norms = None if not c.qk_norm else np.stack([w["k_norm"] for w in self._layers])[:, None]

    def another(self) -> NumpyForward:
        return self

    def new_cache(self) -> ContextCache:
        return ContextCache(self.config.layers, self.config.kv_heads, self.config.head_dim)

    def extend(self, cache: ContextCache, features: Array) -> None:
        if not len(features):
            return
        c = self.config
        rows = rms(features @ self._context, self._context_norm, c.norm_eps) @ self._context_kv
        rows = rows.reshape(len(features), c.layers, 2, c.kv_heads, c.head_dim)
        cos, sin = rotation(c, np.arange(cache.length, cache.length + len(features)))
        if self._key_norms is not None:
            rows[:, :, 0] = rms(rows[:, :, 0], self._key_norms, c.norm_eps)
        rows[:, :, 0] = _turn(rows[:, :, 0], (cos[:, None, None], sin[:, None, None]))
        cache.append(rows.transpose(1, 2, 3, 0, 4))

    def blocks(self, caches: Seq[ContextCache], anchors: Seq[int], wanted: Seq[int]) -> list[BlockRows]:
        c = self.config
        count, g = len(caches), c.block
        x = block_inputs(self._embedding, self._mask, anchors, g)
        turns = rotation(c, np.array([cache.length for cache in caches])[:, None] + np.arange(g))
        for i, w in enumerate(self._layers):
            qkv = rms(x, w["attn_norm"], c.norm_eps) @ w["qkv"]
            x = x + self._attention(i, qkv, caches, turns) @ w["o"]
            y = rms(x, w["mlp_norm"], c.norm_eps) @ w["gate_up"]
            gate, up = y[:, : c.mlp], y[:, c.mlp :]
            x = x + (gate / (1 + np.exp(-gate)) * up) @ w["down"]
        hidden = rms(x, self._norm, c.norm_eps).reshape(count, g, c.hidden)
        return [BlockRows(one, one[:n] @ self._head) for one, n in zip(hidden, wanted, strict=True)]

    def _attention(self, i: int, rows: Array, caches: Seq[ContextCache], turns: tuple[Array, Array]) -> Array:
        c = self.config
        g, group = c.block, c.heads // c.kv_heads
        qkv = rows.reshape(len(caches), g, -1, c.head_dim)
        if c.qk_norm:
            queries, keys = qkv[:, :, : c.heads], qkv[:, :, c.heads : c.heads + c.kv_heads]
            queries[:] = rms(queries, self._layers[i]["q_norm"], c.norm_eps)
            keys[:] = rms(keys, self._layers[i]["k_norm"], c.norm_eps)
        out = np.empty((len(caches), g, c.heads * c.head_dim), dtype=np.float32)
        for j, cache in enumerate(caches):
            turn = turns[0][j][:, None], turns[1][j][:, None]
            q = _turn(qkv[j, :, : c.heads], turn).transpose(1, 0, 2).reshape(c.kv_heads, group * g, c.head_dim)
            k = _turn(qkv[j, :, c.heads : c.heads + c.kv_heads], turn).transpose(1, 0, 2)
            v = qkv[j, :, c.heads + c.kv_heads :].transpose(1, 0, 2)
            keys, values = cache.layer(i)
            n = cache.stored
            scores = np.empty((c.kv_heads, group * g, n + g), dtype=np.float32)
            np.matmul(q, keys.transpose(0, 2, 1), out=scores[:, :, :n])
            np.matmul(q, k.transpose(0, 2, 1), out=scores[:, :, n:])
            scores *= 1 / math.sqrt(c.head_dim)
            scores -= scores.max(-1, keepdims=True)
            np.exp(scores, out=scores)
            scores /= scores.sum(-1, keepdims=True)
            mixed = scores[:, :, :n] @ values + scores[:, :, n:] @ v
            out[j] = mixed.reshape(c.heads, g, c.head_dim).transpose(1, 0, 2).reshape(g, -1)
        return out.reshape(len(caches) * g, -1)


def block_inputs(embedding: Array, mask: Array, anchors: Seq[int], block: int) -> Array:
    """What goes into the first layer, (sequences * block, hidden): each anchor, then the mask's embedding."""
    inputs = np.empty((len(anchors), block, len(mask)), dtype=np.float32)
    inputs[:, 0] = embedding[list(anchors)]
    inputs[:, 1:] = mask
    return inputs.reshape(-1, len(mask))


def rotation(config: DSparkConfig, at: Array) -> tuple[Array, Array]:
    """cos and sin of positions, (..., head_dim / 2)."""
    steps = config.rope_theta ** -(np.arange(0, config.head_dim, 2, dtype=np.float64) / config.head_dim)
    angle = at[..., None] * steps
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def layer_weights(checkpoint: Checkpoint, i: int) -> dict[str, Array]:
    """One layer's weights, transposed for rows @ weight, q, k, v and gate, up side by side."""
    get = functools.partial(_tensor, checkpoint, i)
    normed = ("q_norm", "k_norm") if checkpoint.config.qk_norm else ()
    return {
        "attn_norm": get("attn_norm"),
        "qkv": np.concatenate([get("q"), get("k"), get("v")]).T.copy(),
        "o": get("o").T.copy(),
        "mlp_norm": get("mlp_norm"),
        "gate_up": np.concatenate([get("gate"), get("up")]).T.copy(),
        "down": get("down").T.copy(),
    } | {name: get(name) for name in normed}


def context_weights(checkpoint: Checkpoint) -> tuple[Array, Array]:
    """(W_c with the scale of the features folded in, every layer's k and v side by side), for rows @ weight."""
    t = checkpoint.tensors
    kv = [t[f"layers.{i}.{x}"] for i in range(checkpoint.config.layers) for x in "kv"]
    return np.ascontiguousarray((t["context.proj"] * t["context.scale"]).T), np.concatenate(kv).T.copy()


def rms(x: Array, weight: Array, eps: float) -> Array:
    """Root-mean-square norm over the last axis."""
    scale = np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(eps))
    normed: Array = x / scale * weight
    return normed


def _turn(x: Array, turn: tuple[Array, Array]) -> Array:
    cos, sin = turn
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def _tensor(checkpoint: Checkpoint, i: int, name: str) -> Array:
    return np.asarray(checkpoint.tensors[f"layers.{i}.{name}"])
