"""The DSpark drafter's forward pass without torch: one block for each of several sequences.

Guarantees: the same numbers as `module` up to float32 rounding (tests/dspark compares); the context's keys and values
are computed once per committed token and cut back with it. What it does not do: draw tokens or keep sequences; the
caller owns each sequence's `ContextCache`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from draftproof.draft.dspark.checkpoint import Checkpoint
from draftproof.draft.dspark.stages import Stages, rms

Array = npt.NDArray[Any]

_FIRST_ROOM = 256


class ContextCache:
    """Keys and values of one sequence's context, for every draft layer: (layers, 2, kv heads, tokens, head_dim)."""

    __slots__ = ("_store", "length")

    def __init__(self, layers: int, kv_heads: int, head_dim: int) -> None:
        self._store = np.zeros((layers, 2, kv_heads, _FIRST_ROOM, head_dim), dtype=np.float32)
        self.length = 0

    def append(self, rows: Array) -> None:
        """Add (layers, 2, kv heads, n, head_dim)."""
        end = self.length + rows.shape[3]
        if end > self._store.shape[3]:
            wider = np.zeros((*self._store.shape[:3], max(end, 2 * self._store.shape[3]), rows.shape[4]), np.float32)
            wider[:, :, :, : self.length] = self._store[:, :, :, : self.length]
            self._store = wider
        self._store[:, :, :, self.length : end] = rows
        self.length = end

    def cut(self, length: int) -> None:
        """Forget tokens from `length` on."""
        self.length = min(self.length, length)

    def layer(self, i: int) -> tuple[Array, Array]:
        """Keys and values of one layer: (kv heads, tokens, head_dim) each."""
        keys, values = self._store[i, :, :, : self.length]
        return keys, values


@dataclass(frozen=True, slots=True)
class BlockRows:
    """hidden: (block, hidden), after the final norm. logits: U, (rows wanted, draft vocab). Float32."""

    hidden: Array
    logits: Array


class Forward:
    """The drafter on its cached context. stages: the runtime of the products; embedding: (vocab, hidden)."""

    def __init__(self, checkpoint: Checkpoint, embedding: Array, stages: Stages) -> None:
        c = self.config = checkpoint.config
        self.embedding = embedding
        self._stages = stages
        t = checkpoint.tensors
        self._mask = t["mask"]
        # (layers, 1, head_dim) each, of queries and keys; None where they are not normalised.
        self._norms = (
            [np.stack([t[f"layers.{i}.{x}_norm"] for i in range(c.layers)])[:, None] for x in "qk"]
            if c.qk_norm
            else None
        )
        self._steps = c.rope_theta ** -(np.arange(0, c.head_dim, 2, dtype=np.float64) / c.head_dim)

    def new_cache(self) -> ContextCache:
        """An empty context."""
        return ContextCache(self.config.layers, self.config.kv_heads, self.config.head_dim)

    def extend(self, cache: ContextCache, features: Array) -> None:
        """Add committed tokens: features (n, layers * hidden), the tokens following those in the cache."""
        if not len(features):
            return
        c = self.config
        rows = self._stages.context(features).reshape(len(features), c.layers, 2, c.kv_heads, c.head_dim)
        turn = self._rotation(np.arange(cache.length, cache.length + len(features)))
        if self._norms is not None:
            rows[:, :, 0] = rms(rows[:, :, 0], self._norms[1], c.norm_eps)
        rows[:, :, 0] = _turn(rows[:, :, 0], (turn[0][:, None, None], turn[1][:, None, None]))
        cache.append(rows.transpose(1, 2, 3, 0, 4))

    def blocks(self, caches: Seq[ContextCache], anchors: Seq[int], wanted: Seq[int]) -> list[BlockRows]:
        """One block per sequence, after its whole context. anchors: token ids; wanted: rows of logits of each."""
        c = self.config
        count, g, d = len(caches), c.block, c.hidden
        inputs = np.empty((count, g, d), dtype=np.float32)
        inputs[:, 0] = self.embedding[list(anchors)]
        inputs[:, 1:] = self._mask
        x: Array = inputs.reshape(count * g, d)
        turns = self._rotation(np.array([cache.length for cache in caches])[:, None] + np.arange(g))
        qkv = self._stages.first(x)
        for i in range(c.layers - 1):
            x, qkv = self._stages.next(i, x, self._attention(i, qkv, caches, turns))
        hidden = self._stages.last(x, self._attention(c.layers - 1, qkv, caches, turns)).reshape(count, g, d)
        rows = np.concatenate([one[:n] for one, n in zip(hidden, wanted, strict=True)])
        logits = np.split(self._stages.logits(rows), np.cumsum(wanted)[:-1])
        return [BlockRows(one, values) for one, values in zip(hidden, logits, strict=True)]

    def _attention(self, i: int, rows: Array, caches: Seq[ContextCache], turns: tuple[Array, Array]) -> Array:
        c = self.config
        g, group = c.block, c.heads // c.kv_heads
        qkv = rows.reshape(len(caches), g, -1, c.head_dim)
        if self._norms is not None:
            queries, keys = qkv[:, :, : c.heads], qkv[:, :, c.heads : c.heads + c.kv_heads]
            queries[:] = rms(queries, self._norms[0][i], c.norm_eps)
            keys[:] = rms(keys, self._norms[1][i], c.norm_eps)
        out = np.empty((len(caches), g, c.heads * c.head_dim), dtype=np.float32)
        for j, cache in enumerate(caches):
            turn = turns[0][j][:, None], turns[1][j][:, None]
            q = _turn(qkv[j, :, : c.heads], turn).transpose(1, 0, 2).reshape(c.kv_heads, group * g, c.head_dim)
            k = _turn(qkv[j, :, c.heads : c.heads + c.kv_heads], turn).transpose(1, 0, 2)
            v = qkv[j, :, c.heads + c.kv_heads :].transpose(1, 0, 2)
            keys, values = cache.layer(i)
            n = cache.length
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

    def _rotation(self, at: Array) -> tuple[Array, Array]:
        """cos and sin of positions, (..., head_dim / 2)."""
        angle = at[..., None] * self._steps
        return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def _turn(x: Array, turn: tuple[Array, Array]) -> Array:
    cos, sin = turn
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
