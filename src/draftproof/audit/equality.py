"""Equality evidence: the same tokens with speculation on and off, at temperature 0 and, coupled, above it.

What it is for: `self_audit`. Under the coupled verifier a text is a function of seed and prompt alone, so losslessness
above temperature 0 can be checked token for token; so can greedy decoding. Where two texts part, the plain pass says
how close the decision was there, and that margin is held against the measured row noise.

Guarantees: a difference is called rounding only if its margin is within the noise; every other is a fault. What it
does not do: look past the first difference of an answer, where the prefixes are no longer the same.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np

from draftproof.audit.scoring import Answer, target_distributions
from draftproof.chance import Address, Purpose, SeededChance
from draftproof.dist import Dist
from draftproof.engine import Engine
from draftproof.sampling.params import SamplingParams
from draftproof.target.base import Feed, Target
from draftproof.target.noise import RowNoise

UNBRIDGEABLE = 64.0  # log-probability units: a race that needs more than this to turn is not a matter of rounding


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a speculative answer first leaves the plain one.

    prompt, seed: which answer; position: index in it; plain, speculative: the two tokens. margin: how far apart the
    decision was in the plain pass, in logits (greedy) or log-probability (coupled); allowed: what rounding explains.
    """

    prompt: int
    seed: int
    position: int
    plain: int
    speculative: int
    margin: float
    allowed: float

    @property
    def rounding(self) -> bool:
        """Whether rounding explains it."""
        return self.margin <= self.allowed


@dataclass(frozen=True, slots=True)
class Equality:
    """One comparison: `tokens` were compared in `answers` answers, up to and including each first difference."""

    name: str
    answers: int
    tokens: int
    differences: Seq[Difference]

    @property
    def faults(self) -> int:
        """Differences that rounding does not explain."""
        return sum(not d.rounding for d in self.differences)


def compare_decoding(
    name: str,
    speculative: Engine,
    plain: Engine,
    prompts: Seq[Seq[int]],
    params: Seq[SamplingParams],
    noise: RowNoise,
) -> Equality:
    """Both engines on every prompt with its params (greedy, or coupled verifiers and a seed)."""
    differences: list[Difference] = []
    tokens = 0
    for i, (prompt, p) in enumerate(zip(prompts, params, strict=True)):
        off = plain.generate(list(prompt), p).token_ids
        on = speculative.generate(list(prompt), p).token_ids
        at = next((k for k, (a, b) in enumerate(zip(off, on, strict=False)) if a != b), None)
        if at is None:
            tokens += min(len(off), len(on))
            if len(off) == len(on):
                continue
            at = min(len(off), len(on))  # one ended early: its missing token is written as -1
        else:
            tokens += at + 1
        a, b = (x[at] if at < len(x) else -1 for x in (off, on))
        measure = greedy_margin if p.temperature == 0 else coupled_margin
        answer = Answer(tuple(prompt), tuple(off[: at + 1]))
        allowed = noise.margin if p.temperature == 0 else 2 * noise.bound / min(1.0, float(p.temperature))
        margin = measure(plain.target, answer, p, b)
        differences.append(Difference(i, p.seed or 0, at, a, b, margin, allowed))
    return Equality(name, len(prompts), tokens, tuple(differences))


Margin = Callable[[Target, Answer, SamplingParams, int], float]


def greedy_margin(target: Target, answer: Answer, params: SamplingParams, other: int) -> float:
    """By how many logits the plain pass prefers the answer's last token over `other`."""
    text = [*answer.prompt, *answer.tokens]
    handle = target.open()
    try:
        [rows] = target.score([Feed(handle, text[:-1], rows=1)])
    finally:
        target.close(handle)
    row = rows.values[-1].astype(np.float64)
    return float(row[text[-1]] - row[other]) if other >= 0 else np.inf


def coupled_margin(target: Target, answer: Answer, params: SamplingParams, other: int) -> float:
    """How much more probable, in the logarithm, `other` would have to be to win the plain pass's race."""
    *_, p = target_distributions(target, answer, params)
    if other < 0 or not p.prob(other) > 0:
        return np.inf
    position = len(answer.prompt) + len(answer.tokens) - 1
    low, high = 0.0, UNBRIDGEABLE
    for _ in range(60):
        middle = (low + high) / 2
        if _race(p, other, middle, params.seed or 0, position) == other:
            high = middle
        else:
            low = middle
    return high


def _race(p: Dist, token: int, favour: float, seed: int, position: int) -> int:
    weights = p.dense().astype(np.float64)
    weights[token] *= np.exp(favour)
    return SeededChance(seed).at(Address(Purpose.COUPLING, position)).race(Dist(weights))
