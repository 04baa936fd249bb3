"""Paged keys and values: the sequences of an OpenVINO target and one pass over any of them.

What it is for: keys and values lie in blocks of a fixed number of tokens (32 on CPUs) that sequences own
through a table of block numbers; a pass is one flat list of new tokens with the sequence borders, so
sequences of any lengths share it without padding. The scheme is PagedAttention (Kwon et al., "Efficient
Memory Management for Large Language Model Serving with PagedAttention", SOSP 2023, section 4).

The runtime prepares its kernels anew for a pass whose shape is not that of the last one, which on a small model costs
half a pass. So parts may be filled up to a width, blocks are taken several at a time, and a pass that fits goes through
a graph compiled for one number of tokens, filled up to it. All graphs read and write the same keys and values.

Guarantees: rolling back, opening and closing touch no tensor; a slot after a sequence's length is
written before it is read, so nothing rolled back is ever attended to; a pass that raises changes no
length. What it does not do: check its caller, or give memory back before the process ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np

from draftproof.target.base import Array
from draftproof.target.openvino_compile import Graph
from draftproof.target.openvino_runner import Runner

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
    """All sequences of one model, in the passes of one graph or several."""

    def __init__(self, graphs: Seq[Graph], *, least: int = 1) -> None:
        """least: fewest new tokens of a sequence in a pass; fewer are filled up with some that nobody sees."""
        self._least = least
        self._runners: list[Runner] = []  # by tokens, one for any number last
        self._caches: dict[str, Array] = {}
        self._sequences: dict[int, _Paged] = {}
        self._free: list[int] = []
        self._blocks = 0
        for graph in graphs:
            self.add(graph)
        self._block_shapes = self._runners[0].caches
        self.block = next(iter(self._block_shapes.values()))[1]

    def add(self, graph: Graph) -> None:
        """One more graph of the same model."""
        runner = Runner(graph)
        for name, cache in self._caches.items():
            runner.hold(name, cache)
        self._runners.append(runner)
        self._runners.sort(key=lambda each: each.tokens or math.inf)

    def drop(self, graph: Graph) -> None:
        """Use a graph no more."""
        self._runners = [runner for runner in self._runners if runner.graph is not graph]

    @property
    def most(self) -> int | None:
        """Tokens of the widest pass; None: any number."""
        return self._runners[-1].tokens

    def fits(self, lengths: Seq[int]) -> bool:
        """Whether a pass of parts of these lengths fits a graph."""
        return self.most is None or self._tokens(lengths) <= self.most

    def _tokens(self, lengths: Iterable[int]) -> int:
        return sum(max(self._least, length) for length in lengths)

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
        runner = self._runner(self._tokens(len(part.tokens) for part in parts))
        # A graph of one number of tokens has one shape whatever the parts are filled up to.
        lengths = [max(self._least, len(part.tokens), part.width if runner.tokens is None else 0) for part in parts]
        if runner.tokens is not None:
            lengths[-1] += runner.tokens - sum(lengths)
        for part, length in zip(parts, lengths, strict=True):
            sequence = self._sequences[part.handle]
            before, real = sequence.length, len(ids) + len(part.tokens)
            # A token that follows has no say in the rows before it, and its slot is written again before it is read.
            filling = length - len(part.tokens)
            after = before + length
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
        rest = (positions, past, begins, table, table_begins, longest, wanted or [0])
        logits, hidden = runner.infer(ids, rest)
        answers, at = [], 0
        for part, begin in zip(parts, begins, strict=False):
            self._sequences[part.handle].length += len(part.tokens)
            states = None if hidden is None else hidden[begin : begin + len(part.tokens)]
            answers.append(Scored(logits[at : at + part.rows], states))
            at += part.rows
        return answers

    def _runner(self, tokens: int) -> Runner:
        """The narrowest graph that takes a pass of so many tokens."""
        for runner in self._runners:
            if runner.tokens is None or runner.tokens >= tokens:
                return runner
        raise AssertionError(f"no graph takes {tokens} tokens")

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
        for name, shape in self._block_shapes.items():
            # Zeros, so that a kernel which multiplies a whole block by weights of 0 never meets a NaN.
            new = np.zeros((self._blocks, *shape), np.float32)
            if before:
                new[:before] = self._caches[name]
            for runner in self._runners:
                runner.hold(name, new)
            self._caches[name] = new
        self._free += range(self._blocks - 1, before - 1, -1)
