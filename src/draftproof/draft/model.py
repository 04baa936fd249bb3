"""The model drafter: a smaller causal language model with the same vocabulary, drawn from token by token.

Guarantees: q is the distribution each token was drawn from: the same row, through the request's own controls, with
the drafter's temperature if it was given one. Its cache holds exactly the committed tokens after every round. All
sequences draft in step: one draft pass per position for the whole batch. It works on any `Target`, so the proof
runs it on exact tables.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq

from draftproof.dist import Dist
from draftproof.draft.base import DraftRequest, Proposal
from draftproof.errors import InvalidValue, VocabularyMismatch
from draftproof.target.base import Feed, LogitRows, Target, check_logits


class ModelDrafter:
    """Samples proposals from `model`.

    temperature: None follows the request; a number is the drafter's own (any value stays exact, since q follows).
    """

    def __init__(self, model: Target, *, temperature: float | None = None, name: str | None = None) -> None:
        if temperature is not None and not (math.isfinite(temperature) and temperature >= 0):
            raise InvalidValue(f"draft temperature {temperature}", "a finite number >= 0")
        self.model = model
        self.temperature = temperature
        self.name = name or f"model:{model.name}"
        self._handles: dict[int, int] = {}

    def check_vocabulary(self, target: Target) -> None:
        """Raise VocabularyMismatch unless rows of both models cover the same ids."""
        if self.model.vocab_size != target.vocab_size:
            raise VocabularyMismatch(
                f"draft {self.model.name} has {self.model.vocab_size} tokens, target {target.name} {target.vocab_size}",
                "use a draft model with the target's own tokenizer",
            )

    def open(self, id: int) -> None:
        self._handles[id] = self.model.open()

    def close(self, id: int) -> None:
        self.model.close(self._handles.pop(id))

    def commit(self, id: int, tokens: Seq[int]) -> None:
        # The newest committed token has no row yet: keep at most everything before it.
        handle = self._handles[id]
        self.model.rollback(handle, min(self.model.length(handle), len(tokens) - 1))

    def propose(self, requests: Seq[DraftRequest]) -> list[Proposal]:
        tokens: list[list[int]] = [[] for _ in requests]
        laws: list[list[Dist | None]] = [[] for _ in requests]
        pending = [list(r.tokens[self.model.length(self._handles[r.id]) :]) for r in requests]
        limits = [self._within_context(r) for r in requests]
        for step in range(max(limits, default=0)):
            drafting = [i for i, limit in enumerate(limits) if limit > step]
            feeds = [Feed(self._handles[requests[i].id], pending[i], rows=1) for i in drafting]
            for i, rows in zip(drafting, self.model.score(feeds), strict=True):
                if isinstance(rows, LogitRows):
                    position = len(requests[i].tokens) + step
                    check_logits(rows.values[0], position=position, row=0, who=f"draft {self.model.name}")
                q = requests[i].sampler.distribution(rows, 0, tokens[i], self.temperature)
                token = requests[i].sampler.draw(q, step)
                tokens[i].append(token)
                laws[i].append(q)
                pending[i] = [token]
        return [Proposal(t, q, self.name) for t, q in zip(tokens, laws, strict=True)]

    def _within_context(self, request: DraftRequest) -> int:
        """A draft model with a shorter context than the target stops proposing when it is full."""
        context = self.model.context_limit
        # Drafting n tokens feeds all committed ones and the first n - 1 drafted.
        return request.limit if context is None else max(0, min(request.limit, context - len(request.tokens) + 1))
