"""What `draftproof prove` proves about the sampling controls: each alone, and the pairs that interact.

Guarantees: the production engine, with its own incremental `Controls`, is enumerated; the law it must have is the
product of `sampling.plain`, which knows no blocks, no counters and no rollback. Every drafted position and the bonus
position occur: draft lengths 1 to 3 in answers of four tokens, with proposals that are sampled through the controls,
sampled without them, and deterministic. Rational controls must come out with error 0; the others, in float64, with
at most `TOLERANCE`. What it does not do: text; the grammars here are automata over ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from time import perf_counter
from typing import Any

import numpy as np

from draftproof.dist import Prob
from draftproof.engine import Engine
from draftproof.proof.cases import ANSWER, VERIFIERS, Law, Outcome, compare, product
from draftproof.proof.engine_law import engine_law
from draftproof.proof.toys import DRAFTERS, PROMPT, toy_model
from draftproof.registry import make_verifier
from draftproof.sampling.constraint import TokenAutomaton
from draftproof.sampling.params import SamplingParams
from draftproof.sampling.plain import plain_law
from draftproof.schedule.fixed import FixedSchedule
from draftproof.target.table import TableModel, TableTarget

TOLERANCE = 1e-12
"""Largest error of an answer's probability where float64 is used: hundreds of roundings of 1e-16 each."""

LENGTHS = (1, 2, 3)
DRAFTERS_USED = ("model", "lookup", "mixed")
EOS = 2
"""The vocabulary is {0, 1, EOS}."""


def _quiet_ones(history: tuple[int, ...], logits: np.ndarray) -> np.ndarray:
    """A custom processor: what follows an even sum of history likes 1 less."""
    after = logits.copy()
    after[1] -= 1.5 if sum(history) % 2 == 0 else 0.0
    return after


PROCESSORS = {"quiet-ones": _quiet_ones}

# May end after any 0, must not after a 1, and 1 1 must be followed by EOS at once.
OPTIONAL_END = TokenAutomaton({0: {0: 0, 1: 1}, 1: {0: 0, 1: 2}}, accepting={0, 2})
# Exactly 0 1, then EOS and nothing else: EOS is forced, and forbidden before.
FORCED_END = TokenAutomaton({0: {0: 1}, 1: {1: 2}}, accepting={2})
# After 1 there is no way on and no way out.
DEAD_AFTER_ONE = TokenAutomaton({0: {0: 0, 1: 1}}, accepting={0})

CONTROLS: dict[str, dict[str, Any]] = {
    "none": {},
    "temperature 0": {"temperature": 0},
    "temperature 0.7": {"temperature": 0.7},
    "min-p": {"min_p": Fraction(1, 2)},
    "top-k": {"top_k": 2},
    "top-k above the vocabulary": {"top_k": 7},
    "top-p": {"top_p": 0.6},
    "repetition penalty": {"repetition_penalty": 1.7},
    "frequency penalty": {"frequency_penalty": 0.9},
    "negative frequency penalty": {"frequency_penalty": -0.9},
    "presence penalty": {"presence_penalty": 1.3},
    "logit bias": {"logit_bias": {0: 1.1, EOS: -0.7}},
    "banned ids": {"banned_ids": {1}},
    "banned words": {"banned_words": [(0, 1), (1, 1, 0)]},
    "allowed ids": {"allowed_ids": {0, EOS}},
    "min tokens": {"min_tokens": 3},
    "ignore EOS": {"ignore_eos": True},
    "stop ids": {"stop_ids": {0}},
    "processor": {"processors": ["quiet-ones"]},
    "grammar": {"grammar": OPTIONAL_END},
}
"""Every control alone: a name and its parameters."""

PAIRS: dict[str, dict[str, Any]] = {
    "penalties x min tokens x stop": {
        "repetition_penalty": 1.3,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.4,
        "min_tokens": 2,
        "stop_ids": {1},
    },
    "min tokens x stop": {"min_tokens": 2, "stop_ids": {0}},
    "min tokens x ignore EOS": {"min_tokens": 3, "ignore_eos": True},
    "grammar x forced EOS": {"grammar": FORCED_END},
    "grammar x min tokens": {"grammar": OPTIONAL_END, "min_tokens": 2},
    "grammar x min tokens x dead end": {"grammar": FORCED_END, "min_tokens": 3},
    "grammar x dead end": {"grammar": DEAD_AFTER_ONE},
    "grammar x banned words": {"grammar": OPTIONAL_END, "banned_words": [(0, 1)]},
    "grammar x top-k x temperature": {"grammar": OPTIONAL_END, "top_k": 1, "temperature": 1.4},
    "grammar x penalties": {"grammar": OPTIONAL_END, "frequency_penalty": 1.0},
    "top-p x ties": {"top_p": Fraction(1, 2)},
    "top-k x ties": {"top_k": 1},
    "min-p x top-k x top-p x ties": {"min_p": Fraction(1, 3), "top_k": 2, "top_p": Fraction(2, 3)},
    "top-p x banned ids": {"top_p": 0.6, "banned_ids": {0}},
    "top-p x penalties x temperature": {"top_p": 0.7, "presence_penalty": 0.8, "temperature": 0.6},
    "temperature 0 x penalties": {"temperature": 0, "frequency_penalty": 0.6, "repetition_penalty": 1.2},
    "top-p x ties x temperature": {"top_p": Fraction(2, 3), "temperature": 0.5},
    "logit bias x penalties": {"logit_bias": {0: 1.5}, "repetition_penalty": 1.6, "presence_penalty": -0.4},
    "banned words x min tokens": {"banned_words": [(0, 1), (1, 0)], "min_tokens": 3},
    "processor x allowed ids": {"processors": ["quiet-ones"], "allowed_ids": {1, EOS}},
}
"""Controls that meet: a name and the parameters. Names with "ties" run on a table of equal probabilities."""


@dataclass(frozen=True, slots=True)
class ControlCase:
    """One set of controls with one verifier, drafter and draft length."""

    controls: str
    verifier: str
    drafter: str
    length: int

    @property
    def group(self) -> str:
        """The line of the report this case belongs to."""
        return self.controls

    @property
    def name(self) -> str:
        """The group and the engine's parts."""
        return f"{self.controls}: {self.verifier} x {self.drafter}, draft {self.length}"

    @property
    def params(self) -> SamplingParams:
        """What the request asks for."""
        return SamplingParams(max_tokens=ANSWER, **(CONTROLS | PAIRS)[self.controls])

    @property
    def model(self) -> TableModel:
        """The target's table."""
        return TableModel(_tied_row, 3, name="ties") if "ties" in self.controls else toy_model(3)

    def run(self) -> Outcome:
        """Enumerate the engine and compare; the error must be 0, or within TOLERANCE where it is a float."""
        started = perf_counter()

        def build() -> Engine:
            return Engine(
                TableTarget(self.model, eos_ids=(EOS,)),
                drafter=DRAFTERS[self.drafter](3),
                verifier=make_verifier(self.verifier),
                schedule=FixedSchedule(self.length),
                processors=PROCESSORS,
            )

        got = engine_law(build, [(PROMPT, self.params)])
        expected = product([plain_answers(self.model, PROMPT, self.params)])
        return compare(self.name, got, expected, perf_counter() - started, TOLERANCE)


def plain_answers(model: TableModel, prompt: tuple[int, ...], params: SamplingParams) -> Law:
    """The law the answer must have: the product of `plain_law`, token by token. Dead ends end it."""
    eos_ids = frozenset([EOS])
    ends = params.stop_ids if params.ignore_eos else params.stop_ids | eos_ids
    law: Law = {}
    paths: list[tuple[tuple[int, ...], Prob]] = [((), Fraction(1))]
    while paths:
        answer, weight = paths.pop()
        row = model.row((*prompt, *answer)).dense().tolist()
        finished = len(answer) == params.max_tokens or (answer and answer[-1] in ends)
        p = None
        if not finished:
            p = plain_law(
                params, row, logits=False, prompt=prompt, answer=answer, eos_ids=eos_ids, processors=PROCESSORS
            )
        if p is None:
            law[answer] = weight
        else:
            paths.extend(((*answer, token), weight * prob) for token, prob in p.items())
    return law


def control_cases() -> Iterator[ControlCase]:
    """Every control and every pair, with every verifier, kind of proposal and draft length."""
    for controls in (*CONTROLS, *PAIRS):
        for verifier in VERIFIERS:
            for drafter in DRAFTERS_USED:
                for length in LENGTHS:
                    yield ControlCase(controls, verifier, drafter, length)


def _tied_row(prefix: tuple[int, ...]) -> list[Fraction]:
    """Two or three equals, by prefix, at the top or at the bottom of the ranking."""
    rows = ([1, 1, 1], [2, 1, 1], [1, 2, 2], [1, 1, 2])
    weights = rows[sum(i + 1 for i in prefix) % len(rows)]
    return [Fraction(w, sum(weights)) for w in weights]
