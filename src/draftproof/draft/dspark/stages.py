"""The products of the drafter, between its attentions: all the weights that are read for every block.

    first: x -> q, k, v of layer 0.   next: x, attention -> x, q, k, v of the next layer.   last: -> hidden rows, logits
    context: features of committed tokens -> k, v of every layer

What it is for: `forward` does the attention, a runtime does these: numpy, or OpenVINO, which keeps weights in bfloat16
where the processor multiplies them, half the bytes to read. Guarantees: rows do not depend on each other; both agree up
to rounding, and no rounding matters to what is emitted, as q is computed from what came out. What it does not do: hold
any state.
"""

from __future__ import annotations

import functools
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from draftproof.draft.dspark.checkpoint import Checkpoint

Array = npt.NDArray[Any]


class Stages(Protocol):
    """Rows in, rows out; float32, any number of rows."""

    def context(self, features: Array) -> Array:
        """H_ctx = norm(W_c features), then every layer's k and v of it: (rows, layers * 2 * kv heads * head_dim)."""
        ...

    def first(self, x: Array) -> Array:
        """x (rows, hidden) -> q, k and v side by side (rows, (heads + 2 kv heads) * head_dim)."""
        ...

    def next(self, i: int, x: Array, attended: Array) -> tuple[Array, Array]:
        """The rest of layer i, and q, k, v of layer i + 1: (x, qkv). attended: (rows, heads * head_dim)."""
        ...

    def last(self, x: Array, attended: Array) -> Array:
        """The rest of the last layer and the final norm: hidden rows."""
        ...

    def logits(self, hidden: Array) -> Array:
        """U over the draft vocabulary, (rows, draft vocab)."""
        ...


class NumpyStages:
    """Plain products. head: the target's LM head, (vocab, hidden)."""

    def __init__(self, checkpoint: Checkpoint, head: Array) -> None:
        t = checkpoint.tensors
        self._config = checkpoint.config
        self._norm = t["norm"]
        self._head = np.ascontiguousarray(head[t["vocab"]].T, dtype=np.float32)
        self._layers = [layer_weights(checkpoint, i) for i in range(self._config.layers)]
        self._context, self._context_kv = context_weights(checkpoint)
        self._context_norm = t["context.norm"]

    def context(self, features: Array) -> Array:
        rows: Array = rms(features @ self._context, self._context_norm, self._config.norm_eps) @ self._context_kv
        return rows

    def first(self, x: Array) -> Array:
        return self._qkv(0, x)

    def next(self, i: int, x: Array, attended: Array) -> tuple[Array, Array]:
        after = self._rest(i, x, attended)
        return after, self._qkv(i + 1, after)

    def last(self, x: Array, attended: Array) -> Array:
        after = self._rest(self._config.layers - 1, x, attended)
        return rms(after, self._norm, self._config.norm_eps)

    def logits(self, hidden: Array) -> Array:
        rows: Array = hidden @ self._head
        return rows

    def _qkv(self, i: int, x: Array) -> Array:
        w = self._layers[i]
        rows: Array = rms(x, w["attn_norm"], self._config.norm_eps) @ w["qkv"]
        return rows

    def _rest(self, i: int, x: Array, attended: Array) -> Array:
        w, mlp = self._layers[i], self._config.mlp
        x = x + attended @ w["o"]
        y = rms(x, w["mlp_norm"], self._config.norm_eps) @ w["gate_up"]
        gate, up = y[:, :mlp], y[:, mlp:]
        rows: Array = x + (gate / (1 + np.exp(-gate)) * up) @ w["down"]
        return rows


class OpenVINOStages:
    """The same, compiled. threads: of the runtime, None for its own choice. exact: float32 products whatever the
    processor has; otherwise bfloat16 where it has that, which is faster, and three digits are plenty for a draft.
    """

    def __init__(self, checkpoint: Checkpoint, head: Array, *, threads: int | None = None, exact: bool = False) -> None:
        import openvino as ov
        from openvino import opset13 as op

        c, t = checkpoint.config, checkpoint.tensors
        options: dict[str, Any] = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",
            "ENABLE_CPU_PINNING": False,  # as for the target: a pinned thread waits while another CPU stands idle
        }
        if threads is not None:
            options["INFERENCE_NUM_THREADS"] = threads
        core = ov.Core()
        if not exact and "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
            options["INFERENCE_PRECISION_HINT"] = "bf16"
        layers = [layer_weights(checkpoint, i) for i in range(c.layers)]

        def norm(x: Any, weight: Array) -> Any:
            square = op.reduce_mean(op.multiply(x, x), op.constant(np.array([-1])), keep_dims=True)
            root = op.sqrt(op.add(square, op.constant(np.float32(c.norm_eps))))
            return op.multiply(op.divide(x, root), op.constant(weight.astype(np.float32)))

        def product(x: Any, weight: Array) -> Any:
            return op.matmul(x, op.constant(np.ascontiguousarray(weight.T, dtype=np.float32)), False, True)

        def rest(i: int, x: Any, attended: Any) -> Any:
            w = layers[i]
            x = op.add(x, product(attended, w["o"]))
            y = norm(x, w["mlp_norm"])
            gate, up = product(y, w["gate_up"][:, : c.mlp]), product(y, w["gate_up"][:, c.mlp :])
            return op.add(x, product(op.multiply(op.swish(gate), up), w["down"]))

        def qkv(i: int, x: Any) -> Any:
            return product(norm(x, layers[i]["attn_norm"]), layers[i]["qkv"])

        def rows(width: int) -> Any:
            return op.parameter([-1, width], np.float32)

        def compiled(outputs: list[Any], inputs: list[Any]) -> Any:
            return core.compile_model(ov.Model(outputs, inputs), "CPU", options).create_infer_request()

        into, kv = context_weights(checkpoint)
        features = rows(len(into))
        self._context = compiled([product(norm(product(features, into), t["context.norm"]), kv)], [features])
        x = rows(c.hidden)
        self._first = compiled([qkv(0, x)], [x])
        self._next = []
        for i in range(c.layers - 1):
            x, attended = rows(c.hidden), rows(c.heads * c.head_dim)
            after = rest(i, x, attended)
            self._next.append(compiled([after, qkv(i + 1, after)], [x, attended]))
        x, attended = rows(c.hidden), rows(c.heads * c.head_dim)
        self._last = compiled([norm(rest(c.layers - 1, x, attended), t["norm"])], [x, attended])
        hidden = rows(c.hidden)
        self._logits = compiled([product(hidden, head[t["vocab"]].T)], [hidden])

    def context(self, features: Array) -> Array:
        return self._one(self._context, features)

    def first(self, x: Array) -> Array:
        return self._one(self._first, x)

    def next(self, i: int, x: Array, attended: Array) -> tuple[Array, Array]:
        results = self._next[i].infer([x, attended])
        return np.array(results[0]), np.array(results[1])

    def last(self, x: Array, attended: Array) -> Array:
        return self._one(self._last, x, attended)

    def logits(self, hidden: Array) -> Array:
        return self._one(self._logits, hidden)

    def _one(self, request: Any, *inputs: Array) -> Array:
        # A copy: the runtime's own buffer is overwritten by the next block.
        return np.array(request.infer(list(inputs))[0])


def make_stages(checkpoint: Checkpoint, head: Array, *, threads: int | None = None) -> Stages:
    """The fastest runtime that is installed."""
    if find_spec("openvino") is not None:
        return OpenVINOStages(checkpoint, head, threads=threads)
    return NumpyStages(checkpoint, head)


def layer_weights(checkpoint: Checkpoint, i: int) -> dict[str, Array]:
    """One layer's weights, transposed for rows @ weight, q, k, v and gate, up side by side."""
    get = functools.partial(_tensor, checkpoint, i)
    return {
        "attn_norm": get("attn_norm"),
        "qkv": np.concatenate([get("q"), get("k"), get("v")]).T.copy(),
        "o": get("o").T.copy(),
        "mlp_norm": get("mlp_norm"),
        "gate_up": np.concatenate([get("gate"), get("up")]).T.copy(),
        "down": get("down").T.copy(),
    }


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


def _tensor(checkpoint: Checkpoint, i: int, name: str) -> Array:
    return np.asarray(checkpoint.tensors[f"layers.{i}.{name}"])
