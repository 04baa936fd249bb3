"""Paged keys and values: the sequences of an OpenVINO target and one pass over any of them.

What it is for: keys and values lie in blocks of a fixed number of tokens (32 on CPUs) that sequences own
through a table of block numbers; a pass is one flat list of new tokens with the sequence borders, so
sequences of any lengths share it without padding. The scheme is PagedAttention (Kwon et al., "Efficient
Memory Management for Large Language Model Serving with PagedAttention", SOSP 2023, section 4).

The runtime prepares its kernels anew for a pass whose shape is not that of the last one, which on a small model costs
half a pass. So parts may be filled up to a width, and blocks are taken several at a time.

Guarantees: rolling back, opening and closing touch no tensor; a slot after a sequence's length is
written before it is read, so nothing rolled back is ever attended to; a pass that raises changes no
length. What it does not do: check its caller, or give memory back before the process ends.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import numpy as np

from draftproof.target.base import Array
from draftproof.target.openvino_graph import PAGED_INPUTS, ROW_IDS, GraphFacts
from draftproof.target.openvino_hidden import HIDDEN

_FIRST_BLOCKS = 64  # memory is taken as blocks are written; a pool that grows costs half a pass and a copy
_AT_ONCE = 4  # blocks that a sequence takes together
_GROWTH = 1.5


@dataclass(frozen=True, slots=True)
class Part:
    """New tokens of one sequence in a pass, how many of their last rows are wanted (maybe 0), and how many tokens
    the part is filled up to.
    """

    handle: int
    tokens: Seq[int]
    rows: int
    width: int = 0


@dataclass(frozen=True, slots=True)
class Scored:
    """What a pass gave for a part, float32: its wanted rows (rows, vocab), and where the graph gives them the hidden
    states of all its tokens, (tokens, layers * hidden size), layer by layer within a row.
    """

    rows: Array
    hidden: Array | None = None


@dataclass(slots=True)
class _Paged:
    """A sequence: how many tokens it holds and the blocks they lie in."""

    length: int
    blocks: list[int]


class Pages:
    """All sequences of one compiled model, in one infer request."""

    def __init__(self, compiled: Any, facts: GraphFacts, *, least: int = 1) -> None:
        """least: fewest new tokens of a sequence in a pass; fewer are filled up with some that nobody sees."""
        import openvino as ov

        self._least = least
        self._tensor, self._request = ov.Tensor, compiled.create_infer_request()
        ports = {name: (i, port) for i, port in enumerate(compiled.inputs) for name in port.names}
        self._ports = [ports[name][0] for name in (*PAGED_INPUTS, ROW_IDS)]
        # What the inputs point to now; no pass has the empty shape they start with.
        self._given: list[Array] = [np.empty((0, 0), np.int64 if i < 2 else np.int32) for i in range(len(self._ports))]
        outputs = {name: i for i, port in enumerate(compiled.outputs) for name in port.names}
        self._logits, self._hidden = outputs["logits"], outputs.get(HIDDEN)
        self._vocab, self._width = facts.vocab_size, len(facts.hidden_layers) * facts.hidden_size
        # Only the number of blocks is open in the shape of a cache: (blocks, heads, block, width).
        self._caches: dict[int, tuple[Any, list[int]]] = {}
        for name in facts.caches:
            index, port = ports[name]
            # Quantized keys and values would make a row depend on how its pass was cut.
            assert port.element_type == ov.Type.f32, "the model was compiled with float32 keys and values"
            self._caches[index] = (
                np.zeros(0, np.float32),
                [size.get_length() for size in list(port.partial_shape)[1:]],
            )
        self.block = next(iter(self._caches.values()))[1][1]
        self._sequences: dict[int, _Paged] = {}
        self._free: list[int] = []
        self._blocks = 0

    @property
    def capacity(self) -> int:
        """Tokens that the allocated blocks can hold."""
        return self._blocks * self.block

    def open(self, handle: int) -> None:
        """A new empty sequence."""
        self._sequences[handle] = _Paged(0, [])

    def close(self, handle: int) -> None:
        """Forget a sequence; its blocks are free for others."""
        self._free += self._sequences.pop(handle).blocks

    def __contains__(self, handle: int) -> bool:
        return handle in self._sequences

    def length(self, handle: int) -> int:
        """Tokens of a sequence."""
        return self._sequences[handle].length

    def rollback(self, handle: int, length: int) -> None:
        """Shorten a sequence to `length` tokens."""
        sequence = self._sequences[handle]
        sequence.length = length
        used = self._blocks_for(length)
        if used < len(sequence.blocks):
            self._free += sequence.blocks[used:]
            del sequence.blocks[used:]

    def run(self, parts: Seq[Part]) -> list[Scored]:
        """One pass: append every part to its sequence and give its wanted rows.

        The arrays are the caller's: no later pass writes into them.
        """
        ids: list[int] = []
        positions: list[int] = []
        past: list[int] = []
        begins, table, table_begins = [0], list[int](), [0]
        wanted: list[int] = []
        longest = 0
        for part in parts:
            sequence = self._sequences[part.handle]
            before, real = sequence.length, len(ids) + len(part.tokens)
            # A token that follows has no say in the rows before it, and its slot is written again before it is read.
            filling = max(0, self._least - len(part.tokens), part.width - len(part.tokens))
            after = before + len(part.tokens) + filling
            self._reserve(sequence, after)
            ids += [*part.tokens, *[part.tokens[-1]] * filling]
            positions += [*range(before, after - filling), *[after - filling - 1] * filling]
            past.append(before)
            begins.append(len(ids))
            table += sequence.blocks
            table_begins.append(len(table))
            wanted += range(real - part.rows, real)
            longest = max(longest, after)
        # With no row wanted (a piece of a long prompt) one is computed all the same: the head needs one.
        logits, hidden = self._infer(ids, (positions, past, begins, table, table_begins, longest, wanted or [0]))
        answers, at = [], 0
        for part, begin in zip(parts, begins, strict=False):
            self._sequences[part.handle].length += len(part.tokens)
            states = None if hidden is None else hidden[begin : begin + len(part.tokens)]
            answers.append(Scored(logits[at : at + part.rows], states))
            at += part.rows
        return answers

    def _infer(self, ids: list[int], rest: tuple[list[int] | int, ...]) -> tuple[Array, Array | None]:
        for place, values in enumerate((ids, *rest)):
            self._give(place, values)
        # A fresh buffer that OpenVINO writes into directly: no copy, and the rows stay valid for the caller.
        logits: Array = np.empty((1, self._given[-1].size, self._vocab), np.float32)
        self._request.set_output_tensor(self._logits, self._tensor(logits, shared_memory=True))
        hidden: Array | None = None
        if self._hidden is not None:
            hidden = np.empty((len(ids), self._width), np.float32)
            self._request.set_output_tensor(self._hidden, self._tensor(hidden, shared_memory=True))
        self._request.infer(share_outputs=True)
        return logits[0], hidden

    def _give(self, place: int, values: list[int] | int) -> None:
        """Set an input; a shape seen in the last pass is written in place, which spares the runtime's checks."""
        given = self._given[place]
        if given.shape == (() if isinstance(values, int) else (len(values),)):
            given[...] = values
            return
        given = self._given[place] = np.array(values, given.dtype)
        self._request.set_input_tensor(self._ports[place], self._tensor(given, shared_memory=True))

    def _reserve(self, sequence: _Paged, length: int) -> None:
        """Blocks for `length` tokens."""
        missing = self._blocks_for(length) - len(sequence.blocks)
        if missing > len(self._free):
            self._grow(missing - len(self._free))
        for _ in range(missing):
            sequence.blocks.append(self._free.pop())

    def _blocks_for(self, length: int) -> int:
        """So many that the table of a growing sequence seldom changes its shape."""
        return -(-length // (self.block * _AT_ONCE)) * _AT_ONCE

    def _grow(self, missing: int) -> None:
        """More blocks, at least `missing`; one cache is copied at a time."""
        before = self._blocks
        self._blocks = max(_FIRST_BLOCKS, before + missing, int(before * _GROWTH))
        for port, (old, shape) in self._caches.items():
            # Zeros, so that a kernel which multiplies a whole block by weights of 0 never meets a NaN.
            new = np.zeros((self._blocks, *shape), old.dtype)
            if before:
                new[:before] = old
            self._request.set_input_tensor(port, self._tensor(new, shared_memory=True))
            self._caches[port] = (new, shape)
        self._free += range(self._blocks - 1, before - 1, -1)
