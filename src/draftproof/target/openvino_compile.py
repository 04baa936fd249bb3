"""An OpenVINO graph compiled so that its rows can be relied on.

What it is for: the properties that `openvino` needs, in one place. Guarantees: products in float32, or with
`activations="int8"` of 8-bit integers: what goes into a product is rounded in groups of 32 neighbours of one row, each
with its own scale, so that no row looks at another. A difference in the last bit may then fall on either side of a
rounding, and from layer to layer it grows to 0.3 to 1 in the logits. So the bits must not differ: attention has another
kernel for a sequence with a single new token, which is why such a sequence gets `LEAST`, the second one seen by
nobody. On SmolLM2 rows are then the same bits in passes of any width; `check_rows` refuses a model where they are not.

Rounding activations makes another model, as rounding weights does: on SmolLM2 with int8 weights the divergence from
the file's model is 0.0063 nats a token instead of 0.0038, and the argmax is the same in 96.3 instead of 97.3 % of
places. What it does not do: run the model.
"""

from __future__ import annotations

import logging
import os
import warnings
from dataclasses import dataclass
from typing import Any, Literal

from draftproof.errors import InvalidValue, ModelFileError, Unsupported
from draftproof.target.base import Target, narrow_tokens
from draftproof.target.noise import measure_noise
from draftproof.target.openvino_graph import GraphFacts, Model, prepare_graph
from draftproof.target.openvino_join import join_products
from draftproof.target.openvino_store import MODEL, Prepared, WeightFormat

Activations = Literal["float32", "int8"]
GROUPS = {"float32": 0, "int8": 32}
"""Neighbours rounded with one scale; 0 leaves activations as they are."""
LEAST = {"float32": 1, "int8": 2}
"""Fewest new tokens of a sequence in a pass."""

NARROW = (5, 9)
"""Tokens of the graphs compiled for passes of one shape, where 8-bit weights meet 8-bit activations: there passes of up
to 5 tokens take the same time, and those of 9 a seventh more (SmolLM2). Elsewhere each further token costs.
"""
_SMALL = 512 << 20  # bytes of weights; the steps of a larger model are so long that their checks do not matter

_CHECKED = 5  # tokens that `check_rows` scores beside a narrow pass
_WIDTHS = (1, 2, 5)
_CLOSE = 1e-3  # of a logit: what moves a row at all soon moves it by 0.3 and more

_log = logging.getLogger(__name__)


def cap_threads(threads: int | None) -> int:
    """The thread count to use: at most the CPUs this process may run on; a higher wish is capped with a warning."""
    have = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if threads is None:
        return have
    if threads < 1:
        raise InvalidValue(f"threads={threads}", "at least 1")
    if threads > have:
        message = f"threads={threads} is more than the {have} CPUs available; using {have}"
        warnings.warn(message, stacklevel=3)
        _log.warning(message)
    return min(threads, have)


@dataclass(frozen=True, slots=True)
class Graph:
    """A compiled graph, what it is like, and the tokens of each of its passes (None: any number)."""

    compiled: Any
    facts: GraphFacts
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """A graph that was read and made ready, of which graphs for several numbers of tokens can be compiled."""

    model: Model
    facts: GraphFacts
    name: str


def read_graph(prepared: Prepared, hidden_layers: tuple[int, ...] = ()) -> Source:
    """Read, check and cut the graph of a folder.

    Raises InvalidValue (no such layer), Unsupported (the graph lacks something), ModelFileError (unreadable files).
    """
    import openvino as ov

    try:
        model = ov.Core().read_model(prepared.folder / MODEL)
    except RuntimeError as error:
        raise ModelFileError(
            f"cannot read {prepared.folder / MODEL}: {_reason(error)}",
            "the export is incomplete or damaged; make it again",
        ) from error
    facts = prepare_graph(model, prepared.name, hidden_layers)
    join_products(model)
    return Source(model, facts, prepared.name)


def compile_graph(
    source: Source, threads: int, activations: Activations = "float32", tokens: int | None = None
) -> Graph:
    """Compile what was read; `source` stays as it is, and all that is compiled of it reads one copy of the file.

    tokens: of every pass. A graph of one shape runs without the checks that open shapes need at each of its steps: a
    millisecond of seven on SmolLM2. Raises Unsupported.
    """
    import openvino as ov

    properties: dict[str, Any] = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",
        "KV_CACHE_PRECISION": "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": GROUPS[activations],
        # A pinned thread waits for its own CPU while another stands idle: twice as slow on a busy machine.
        "ENABLE_CPU_PINNING": False,
    }
    try:
        model = source.model.clone()
        if tokens is not None:
            model.reshape({"input_ids": [tokens], "position_ids": [tokens]})
        return Graph(ov.Core().compile_model(model, "CPU", properties), source.facts, tokens)
    except RuntimeError as error:
        raise Unsupported(f"OpenVINO cannot run {source.name}: {_reason(error)}", "export it again") from error


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def narrow_passes(prepared: Prepared, weights: WeightFormat, activations: Activations) -> tuple[int, ...]:
    """Tokens of the passes that get a graph of their own, where nobody says: NARROW where all is int8 and small."""
    if (weights, activations) != ("int8", "int8"):
        return ()
    file = (prepared.folder / MODEL).with_suffix(".bin")
    return NARROW if file.is_file() and file.stat().st_size <= _SMALL else ()


def check_rows(target: Target) -> None:
    """Raise Unsupported if a row depends on the width of its pass, or its graph, by more than rounding."""
    tokens = [i * 7919 % target.vocab_size for i in range(1, _CHECKED + narrow_tokens(target, _CHECKED) + 1)]
    off = measure_noise(target, tokens, 1, _WIDTHS).logit
    if not off <= _CLOSE:
        raise Unsupported(
            f"8-bit activations for {target.name}: its rows would depend on how many tokens a pass takes "
            f"(by {off:.2g} in the logits)",
            'load it with activations="float32"',
        )
