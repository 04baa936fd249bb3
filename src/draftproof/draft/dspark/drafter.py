"""The DSpark drafter behind the drafter protocol: blocks from hidden states, tokens drawn left to right.

Guarantees: q of each token is the softmax of U + B through the request's own controls, exactly 0 outside the draft
vocabulary, and the token was drawn from it through the request's stream; confidence[k] was computed before token k was
drawn, and so was the end of the block, where survivals fall below the request's thresholds. Its context holds exactly
the committed tokens but the newest after every round. What it does not do: decide how much of a block is verified
(`schedule.prefix`).

The first round of a request drafts nothing: the prompt has not been read by the target yet.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from importlib.util import find_spec
from typing import Any

import numpy.typing as npt
from threadpoolctl import ThreadpoolController

from draftproof.dist import Dist
from draftproof.draft.base import DraftRequest, Proposal
from draftproof.draft.dspark.checkpoint import Checkpoint
from draftproof.draft.dspark.context import ContextCache
from draftproof.draft.dspark.forward import BlockRows, Forward, NumpyForward
from draftproof.draft.dspark.heads import SequentialHead
from draftproof.draft.dspark.hidden import TargetTables
from draftproof.draft.dspark.tap import FeatureTap
from draftproof.target.base import LogitRows

Array = npt.NDArray[Any]


class DSparkDrafter:
    """tap: the engine's own target. forward: the forward pass, by default the fastest there is, on as many threads as
    the target's.

    Raises ModelFileError if the checkpoint is of another target.
    """

    name = "dspark"

    def __init__(
        self, checkpoint: Checkpoint, tap: FeatureTap, tables: TargetTables, *, forward: Forward | None = None
    ) -> None:
        checkpoint.check_target(tables.facts.fingerprint, tap.vocab_size)
        self.config = checkpoint.config
        self._tap = tap
        self._vocab = checkpoint.tensors["vocab"]
        threads: int | None = getattr(tap.inner, "threads", None)
        self._forward = forward or make_forward(checkpoint, tables, threads=threads)
        self._head = SequentialHead(checkpoint, self._forward.biases)
        self._context: dict[int, ContextCache] = {}
        # NumPy's BLAS keeps its threads spinning after a product, on the cores the target's next pass needs: a pass of
        # four rows then took 19 ms instead of 13. The products here are small; while drafting, one thread computes.
        self._blas = ThreadpoolController() if self._forward.blas or self._head.gates else None

    def another(self) -> DSparkDrafter:
        """One for another engine around the same target, with the same weights: they take turns, not threads."""
        other = copy(self)
        other._context, other._forward = {}, self._forward.another()
        return other

    def open(self, id: int) -> None:
        self._context[id] = self._forward.new_cache()

    def close(self, id: int) -> None:
        del self._context[id]

    def commit(self, id: int, tokens: Seq[int]) -> None:
        cache, known = self._context[id], len(tokens) - 1  # the newest token has no hidden states yet
        cache.cut(known)
        if cache.length < known:
            states = self._tap.take(tokens[:known], cache.length)
            if states is not None:
                with self._one_thread():
                    self._forward.extend(cache, states)

    def propose(self, requests: Seq[DraftRequest]) -> list[Proposal]:
        proposals = [Proposal(drafter=self.name)] * len(requests)
        # A context that is not complete (nothing scored yet, or an interrupted round) drafts nothing.
        ready = [
            i for i, r in enumerate(requests) if r.limit > 0 and self._context[r.id].length == len(r.tokens) - 1 > 0
        ]
        if not ready:
            return proposals
        chosen = [requests[i] for i in ready]
        limits = [min(r.limit, self.config.block) for r in chosen]
        with self._one_thread():
            blocks = self._forward.blocks([self._context[r.id] for r in chosen], [r.tokens[-1] for r in chosen], limits)
            for i, request, block, limit in zip(ready, chosen, blocks, limits, strict=True):
                proposals[i] = self._draw(request, block, limit)
        return proposals

    def _one_thread(self) -> AbstractContextManager[Any]:
        if self._blas is None:
            return nullcontext()
        limited: AbstractContextManager[Any] = self._blas.limit(limits=1, user_api="blas")
        return limited

    def _draw(self, request: DraftRequest, block: BlockRows, limit: int) -> Proposal:
        walk = self._head.start()
        tokens: list[int] = []
        laws: list[Dist | None] = []
        confidences: list[float] = []
        survival = 1.0
        for k in range(limit):
            previous = tokens[-1] if tokens else request.tokens[-1]
            confidence = walk.confidence(block.hidden[k], previous)
            survival *= confidence
            if k < len(request.thresholds) and survival < request.thresholds[k]:
                break  # before the token is drawn: what it is has no say in it
            bias = walk.next(block.hidden[k], previous)
            # Rows of its own: the forward pass may write the next block where it wrote this one.
            logits = block.logits[k].copy() if bias is None else block.logits[k] + bias
            q = request.sampler.distribution(self._rows(logits), 0, tokens)
            tokens.append(request.sampler.draw(q, k))
            laws.append(q)
            confidences.append(confidence)
        return Proposal(tokens, laws, self.name, confidences)

    def _rows(self, logits: Array) -> LogitRows:
        """A row of the draft vocabulary; every other token is impossible."""
        return LogitRows(logits[None], ids=self._vocab, size=self._tap.vocab_size)


def make_forward(checkpoint: Checkpoint, tables: TargetTables, *, threads: int | None = None) -> Forward:
    """The fastest forward pass that is installed."""
    if find_spec("openvino") is None:
        return NumpyForward(checkpoint, tables.embedding, tables.head)
    from draftproof.draft.dspark.openvino_forward import OpenVINOForward

    return OpenVINOForward(checkpoint, tables.embedding, tables.head, threads=threads)
