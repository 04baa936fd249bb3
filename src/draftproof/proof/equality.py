"""Run-lossless by equality: speculative output against plain decoding, token for token, and what a difference means.

What it is for: temperature 0 with any verifier, and the coupled verifier at any temperature, must give the text of
plain decoding exactly. In floating point a row computed beside others can differ in its last bits from the same row
computed alone, and a tie within those bits may then fall the other way. This tells the two apart.

Guarantees: a difference is called a tie only if the deciding margin is below the noise measured at that very row;
otherwise it is a fault. What it does not do: hide ties; they are counted and listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from draftproof.chance import Purpose, SeededChance, Streams
from draftproof.errors import InvalidValue
from draftproof.result import Result
from draftproof.sampling.controls import Controls
from draftproof.sampling.params import SamplingParams
from draftproof.sampling.processors import Processor
from draftproof.target.base import Feed, LogitRows, Target
from draftproof.text import Tokenizer

WIDTHS = (1, 2, 3, 5, 9)  # rows of the passes in which one row is computed to see how much it moves
TAIL = 32  # tokens before the row whose keys and values are computed in passes of that width too


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first token at which two answers to one prompt differ.

    position: index in the answer. margin: how far the two tokens are apart, in logits (temperature 0: the difference
    of their logits; coupled: the difference of their arrival times' logarithms, times the temperature). noise: how
    much a difference of two logits of this row moves between passes of different widths.
    """

    position: int
    plain: int | None
    other: int | None
    margin: float
    noise: float

    @property
    def tie(self) -> bool:
        """Whether rounding alone can explain it."""
        return self.margin <= self.noise


@dataclass(frozen=True, slots=True)
class Equality:
    """How many answers and tokens were compared, and where they parted."""

    answers: int
    tokens: int
    divergences: tuple[Divergence, ...]

    @property
    def faults(self) -> tuple[Divergence, ...]:
        """Differences that rounding does not explain."""
        return tuple(d for d in self.divergences if not d.tie)


def compare_answers(
    target: Target,
    prompts: Seq[Seq[int]],
    plain: Seq[Result],
    other: Seq[Result],
    params: SamplingParams,
    *,
    tokenizer: Tokenizer | None = None,
    processors: Mapping[str, Processor] | None = None,
) -> Equality:
    """Compare answers one to one; explain each first difference by rows of `target`.

    prompts: token ids. params: those of both runs; plain[i].seed is taken as the seed of both. tokenizer, processors:
    those of the engines, where the params need them. Raises InvalidValue unless temperature is 0 or the runs were
    coupled with equal seeds (equal seeds are checked, coupling is not).
    """

    def controls(prompt: Seq[int]) -> Controls:
        return Controls(
            params,
            target.vocab_size,
            prompt=prompt,
            eos_ids=target.eos_ids,
            tokenizer=tokenizer,
            processors=processors,
        )

    divergences = []
    tokens = 0
    for prompt, a, b in zip(prompts, plain, other, strict=True):
        if params.temperature != 0 and a.seed != b.seed:
            raise InvalidValue(f"seeds {a.seed} and {b.seed}", "compare coupled answers of one seed")
        first = first_difference(a.token_ids, b.token_ids)
        tokens += len(a.token_ids) if first is None else first
        if first is not None:
            divergences.append(_explain(target, prompt, a, b, first, params, controls(prompt)))
    return Equality(len(plain), tokens, tuple(divergences))


def first_difference(a: Seq[int], b: Seq[int]) -> int | None:
    """Index of the first token at which two answers differ, one being longer included; None if they are equal."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return None if len(a) == len(b) else min(len(a), len(b))


def rows_by_width(target: Target, tokens: Seq[int], widths: Seq[int] = WIDTHS) -> npt.NDArray[np.float64]:
    """The row after all of `tokens`, shape (widths, vocab), with the last TAIL tokens fed in passes of each width.

    The pass that computes the row is filled up with copies of the last token, as drafted tokens would fill it.
    """
    rows = []
    for width in widths:
        handle = target.open()
        try:
            start = max(len(tokens) - 1 - TAIL, 0)
            if start:
                target.score([Feed(handle, tokens[:start], rows=1)])
            for at in range(start, len(tokens) - 1, width):
                part = tokens[at : min(at + width, len(tokens) - 1)]
                target.score([Feed(handle, part, rows=len(part))])
            (scored,) = target.score([Feed(handle, [tokens[-1]] * width, rows=width)])
            if not isinstance(scored, LogitRows):
                raise InvalidValue("exact rows", "tables have no rounding; compare their laws instead")
            rows.append(np.array(scored.values[0], dtype=np.float64))
        finally:
            target.close(handle)
    return np.stack(rows)


def row_noise(rows: npt.NDArray[np.float64]) -> float:
    """The largest change of a difference of two logits between any two of the passes; shape (passes, vocab) in."""
    noise = 0.0
    for i in range(len(rows)):
        for j in range(i):
            finite = np.isfinite(rows[i]) & np.isfinite(rows[j])
            moved = rows[i][finite] - rows[j][finite]
            noise = max(noise, float(moved.max() - moved.min()))
    return noise


def _explain(
    target: Target,
    prompt: Seq[int],
    plain: Result,
    other: Result,
    at: int,
    params: SamplingParams,
    controls: Controls,
) -> Divergence:
    a = plain.token_ids[at] if at < len(plain.token_ids) else None
    b = other.token_ids[at] if at < len(other.token_ids) else None
    if a is None or b is None:
        return Divergence(at, a, b, margin=float("inf"), noise=0.0)  # one went on after the other had stopped
    history = [*prompt, *plain.token_ids[:at]]
    rows = rows_by_width(target, history)
    for token in plain.token_ids[:at]:
        controls.commit(token)
    logits = LogitRows(rows[:1])
    if params.temperature == 0:
        scores = controls.scores(logits, 0, (), raw=False)  # of the row whose argmax was taken
        return Divergence(at, a, b, abs(scores.of(a) - scores.of(b)), row_noise(rows))
    p = controls.distribution(logits, 0, ())
    noise = Streams(SeededChance(plain.seed), epoch=0).at(Purpose.COUPLING, len(history))
    assert isinstance(noise, SeededChance)
    arrivals = noise.exponentials(p.size)
    with np.errstate(divide="ignore"):
        times = np.log([arrivals[token] for token in (a, b)]) - np.log([float(p.prob(token)) for token in (a, b)])
    return Divergence(at, a, b, abs(float(times[0] - times[1])) * float(params.temperature), row_noise(rows))
