"""A small random language model for the audit's tests, an engine on it, and its answers fed to the sequential test."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from draftproof.dist import Dist
from draftproof.draft.base import Drafter
from draftproof.draft.scripted import ScriptedDrafter
from draftproof.engine import Engine
from draftproof.proof.bets import Bets
from draftproof.proof.sequential import SequentialTest
from draftproof.sampling.params import SamplingParams
from draftproof.schedule.base import Schedule
from draftproof.schedule.fixed import FixedSchedule
from draftproof.target.table import TableModel, TableTarget
from draftproof.verify.base import Origin, Verifier

SIZE = 12


@dataclass
class Markov:
    """p and q as functions of the last two tokens, both random and alike; mean TV(p, q) is about 0.28."""

    seed: int = 1
    p: np.ndarray = field(init=False)
    q: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        random = np.random.default_rng(self.seed)
        logits = 2 * random.standard_normal((SIZE, SIZE, SIZE))
        self.p = softmax(logits)
        self.q = softmax(logits + random.standard_normal(logits.shape))
        self._placed: dict[tuple[int, int, bool], Bets] = {}

    def model(self) -> TableModel:
        return TableModel(lambda prefix: self.p[prefix[-2], prefix[-1]], SIZE)

    def script(self, history: tuple[int, ...], drafted: tuple[int, ...]) -> Dist:
        a, b = (*history, *drafted)[-2:]
        return Dist(self.q[a, b])

    def bets(self, a: int, b: int, drafted: bool) -> Bets:
        if (a, b, drafted) not in self._placed:
            q = self.q[a, b] if drafted else None
            self._placed[a, b, drafted] = Bets.place(self.p[a, b], q=q, history=(a, b))
        return self._placed[a, b, drafted]

    def audit(
        self,
        verifier: Verifier,
        *,
        tokens: int,
        seed: int,
        level: float,
        drafter: Drafter | None = None,
        schedule: Schedule | None = None,
        stop: bool = True,
    ) -> SequentialTest:
        """The test after so many tokens, in answers of 250, from an engine with these parts; `stop` at an alarm."""
        engine = Engine(
            TableTarget(self.model()),
            drafter=drafter or ScriptedDrafter(self.script),
            verifier=verifier,
            schedule=schedule or FixedSchedule(3),
        )
        test = SequentialTest(level=level)
        for part in range(0, tokens, 250):
            params = SamplingParams(max_tokens=min(250, tokens - part), seed=seed * 1000 + part)
            result = engine.generate([0, 1], params)
            text = [0, 1, *result.token_ids]
            previous: Origin | None = None
            for i, origin in enumerate(result.origins):
                drafted = origin in (Origin.ACCEPTED, Origin.RESIDUAL)
                test.settle(self.bets(text[i], text[i + 1], drafted), text[i + 2], origin=origin, previous=previous)
                previous = origin
                if stop and test.rejected:
                    return test
        return test


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)
