"""The scripted drafter: a function of the history decides what is proposed. A fake that is part of the package.

What it is for: proofs, tests and experiments: point masses, sampled tokens and empty proposals, mixed as the script
says. Guarantees: a token given as an int is a point mass; one given as a distribution is drawn from it through the
request's stream and reported with exactly that q.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq

from draftproof.dist import Dist
from draftproof.draft.base import DraftRequest, Proposal, StatelessDrafter

Step = int | Dist | None
"""A token (point mass), a distribution to draw from, or None: stop proposing here."""

Script = Callable[[tuple[int, ...], tuple[int, ...]], Step]
"""(committed tokens, tokens drafted so far in this block) -> what comes next."""


class ScriptedDrafter(StatelessDrafter):
    """Asks the script for one step at a time."""

    def __init__(self, script: Script, name: str = "scripted") -> None:
        self.name = name
        self._script = script

    def __deepcopy__(self, memo: dict[int, object]) -> ScriptedDrafter:
        return self  # nothing changes between rounds

    def propose(self, requests: Seq[DraftRequest]) -> list[Proposal]:
        return [self._one(request) for request in requests]

    def _one(self, request: DraftRequest) -> Proposal:
        tokens: list[int] = []
        laws: list[Dist | None] = []
        history = tuple(request.tokens)
        while len(tokens) < request.limit:
            step = self._script(history, tuple(tokens))
            if step is None:
                break
            if isinstance(step, Dist):
                laws.append(step)
                tokens.append(request.sampler.draw(step, len(tokens)))
            else:
                laws.append(None)
                tokens.append(step)
        return Proposal(tokens, laws, self.name)
