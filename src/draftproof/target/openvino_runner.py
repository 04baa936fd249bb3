"""One compiled graph and what its inputs point to.

What it is for: passes over paged keys and values, given as flat lists. Guarantees: an input of a shape seen in the last
pass is written in place, so no tensor changes; outputs are written by the runtime into fresh arrays, which are the
caller's. What it does not do: know sequences (`openvino_pages` does), or hold keys and values of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from draftproof.target.base import Array
from draftproof.target.openvino_compile import Graph
from draftproof.target.openvino_graph import PAGED_INPUTS, ROW_IDS
from draftproof.target.openvino_hidden import HIDDEN


class Runner:
    """tokens: how many every pass has, None for any number. caches: the shape of a block of each cache, by input."""

    def __init__(self, graph: Graph) -> None:
        import openvino as ov

        compiled, facts = graph.compiled, graph.facts
        self.graph = graph
        self.tokens: int | None = graph.tokens
        self._tensor, self.request = ov.Tensor, compiled.create_infer_request()
        ports = {name: (i, port) for i, port in enumerate(compiled.inputs) for name in port.names}
        self._ports = [ports[name][0] for name in (*PAGED_INPUTS, ROW_IDS)]
        # What the inputs point to now; no pass has the empty shape they start with.
        self._given: list[Array] = [np.empty((0, 0), np.int64 if i < 2 else np.int32) for i in range(len(self._ports))]
        outputs = {name: i for i, port in enumerate(compiled.outputs) for name in port.names}
        self._logits, self._hidden = outputs["logits"], outputs.get(HIDDEN)
        self._vocab, self._width = facts.vocab_size, len(facts.hidden_layers) * facts.hidden_size
        self._caches = {name: ports[name][0] for name in facts.caches}
        # Quantized keys and values would make a row depend on how its pass was cut.
        assert all(ports[name][1].element_type == ov.Type.f32 for name in facts.caches), "float32 was asked for"
        # Only the number of blocks is open in the shape of a cache: (blocks, heads, block, width).
        self.caches = {name: _block_shape(ports[name][1]) for name in facts.caches}

    def hold(self, name: str, cache: Array) -> None:
        """Use this array, (blocks, heads, block, width), as the cache that an input reads and writes."""
        self.request.set_input_tensor(self._caches[name], self._tensor(cache, shared_memory=True))

    def infer(self, ids: list[int], rest: tuple[list[int] | int, ...]) -> tuple[Array, Array | None]:
        """One pass: (rows, vocab) logits, and the hidden states of all its tokens where the graph gives them.

        ids, rest: values of PAGED_INPUTS and ROW_IDS, in order.
        """
        for place, values in enumerate((ids, *rest)):
            self._give(place, values)
        # A fresh buffer that OpenVINO writes into directly: no copy, and the rows stay valid for the caller.
        logits: Array = np.empty((1, self._given[-1].size, self._vocab), np.float32)
        self.request.set_output_tensor(self._logits, self._tensor(logits, shared_memory=True))
        hidden: Array | None = None
        if self._hidden is not None:
            hidden = np.empty((len(ids), self._width), np.float32)
            self.request.set_output_tensor(self._hidden, self._tensor(hidden, shared_memory=True))
        self.request.infer(share_outputs=True)
        return logits[0], hidden

    def _give(self, place: int, values: list[int] | int) -> None:
        """Set an input; a shape seen in the last pass is written in place, which spares the runtime's checks."""
        given = self._given[place]
        if given.shape == (() if isinstance(values, int) else (len(values),)):
            given[...] = values
            return
        given = self._given[place] = np.array(values, given.dtype)
        self.request.set_input_tensor(self._ports[place], self._tensor(given, shared_memory=True))


def _block_shape(port: Any) -> tuple[int, ...]:
    return tuple(size.get_length() for size in list(port.partial_shape)[1:])
