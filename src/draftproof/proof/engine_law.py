"""The exact law of the engine's answers: the production engine, run over every branch.

What it is for: `draftproof prove`, and whoever wants to prove an engine with their own drafter or verifier.

Guarantees: the engine is the shipped one: its rounds, drafters, verifier, schedule, commits, caches and rollbacks.
Only its source of randomness is exchanged. Between rounds, engines that agree in everything the future depends on
are merged. What it does not do: real models; tables only.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

from draftproof.dist import Prob
from draftproof.engine import Engine
from draftproof.proof.enumeration import EnumeratedChance, exact_law
from draftproof.result import TokenEvent
from draftproof.sampling.controls import Controls
from draftproof.sampling.params import SamplingParams
from draftproof.target.base import ProbRows
from draftproof.target.table import TableModel

Answers = tuple[tuple[int, ...], ...]
"""The answer of each request, in order of joining."""


@dataclass
class State:
    """A live engine and the answers so far."""

    engine: Engine
    answers: dict[int, tuple[int, ...]] = field(default_factory=dict)


class EngineProcess:
    """An engine with its requests, as a `Process`."""

    def __init__(self, build: Callable[[], Engine], requests: Seq[tuple[Seq[int], SamplingParams]]) -> None:
        self._build = build
        self._requests = requests

    def start(self) -> State:
        state = State(self._build())
        for prompt, params in self._requests:
            state.answers[state.engine.add(list(prompt), params)] = ()
        return state

    def step(self, state: State, chance: EnumeratedChance) -> State:
        after = State(copy.deepcopy(state.engine), dict(state.answers))
        after.engine.chance = chance
        for event in after.engine.round():
            if isinstance(event, TokenEvent):
                after.answers[event.request] += (event.token,)
        for sequence in after.engine.live.values():
            chance.decided(sequence.id, len(sequence.tokens))
        return after

    def outcome(self, state: State) -> Hashable | None:
        return None if state.engine.live else tuple(state.answers.values())

    def key(self, state: State) -> Hashable:
        # Everything but the counters: what the target has cached, and the drafter's and schedule's own state.
        state.engine.chance = _NO_CHANCE
        engine = state.engine
        return (
            tuple(state.answers.items()),
            tuple((s.id, s.handle, tuple(s.tokens)) for s in engine.live.values()),
            freeze(engine.target),
            freeze(engine.drafter),
            freeze(engine.schedule),
        )


_NO_CHANCE = EnumeratedChance()


def engine_law(build: Callable[[], Engine], requests: Seq[tuple[Seq[int], SamplingParams]]) -> dict[Answers, Prob]:
    """The joint law of all answers of an engine fresh from `build`, given (prompt ids, params) requests."""
    return exact_law(EngineProcess(build, requests))


def target_law(
    model: TableModel, prompt: Seq[int], params: SamplingParams, stop_ids: frozenset[int]
) -> dict[tuple[int, ...], Prob]:
    """What the answer's law must be: the product of p after the controls, token by token, no engine involved."""
    assert params.max_tokens is not None
    law: dict[tuple[int, ...], Prob] = {}
    paths: list[tuple[tuple[int, ...], Prob]] = [((), 1)]
    while paths:
        answer, weight = paths.pop()
        if len(answer) == params.max_tokens or (answer and answer[-1] in stop_ids):
            law[answer] = weight
            continue
        controls = Controls(params, model.vocab_size)
        for token in answer:
            controls.commit(token)
        row = model.row((*prompt, *answer)).probs
        p = controls.distribution(ProbRows(row[None, :]), 0, ())
        for i, prob in enumerate(p.probs.tolist()):
            if prob > 0:
                paths.append(((*answer, p.token_at(i)), weight * prob))
    return law


def freeze(value: Any) -> Hashable:
    """A hashable picture of an object's state, through its attributes and containers.

    Immutable parts (tables, scripts: whatever copies to itself) are pictured by their identity.
    """
    if isinstance(value, str | int | float | bool | bytes | frozenset | type(None)):
        return value
    if isinstance(value, list | tuple):
        return tuple(freeze(v) for v in value)
    if isinstance(value, dict):
        return tuple((freeze(k), freeze(v)) for k, v in value.items())
    if isinstance(value, set):
        return frozenset(freeze(v) for v in value)
    if copy.copy(value) is value or hasattr(value, "__deepcopy__"):
        return id(value)
    names = list(getattr(value, "__dict__", ())) + [n for c in type(value).__mro__ for n in getattr(c, "__slots__", ())]
    return (type(value).__name__, tuple((n, freeze(getattr(value, n))) for n in names))
