"""The controls written down as plainly as they can be: lists, dictionaries, one full sort, no state.

What it is for: a second, readable statement of what `controls` computes incrementally and with partitions. The tests
compare the two on random rows, and the exact proof of the controls takes its target law from here.

Guarantees: every number follows from the arguments: the whole prompt, the whole answer, one row. What it does not
do: speed; or read text (banned words and grammars come as ids and as a `TokenConstraint`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np

from draftproof.dist import Prob
from draftproof.sampling.constraint import TokenConstraint
from draftproof.sampling.legal import Number
from draftproof.sampling.params import SamplingParams
from draftproof.sampling.processors import Processor
from draftproof.sampling.truncation import as_written


def plain_law(
    params: SamplingParams,
    row: Seq[Any],
    *,
    logits: bool,
    prompt: Seq[int] = (),
    answer: Seq[int] = (),
    eos_ids: frozenset[int] = frozenset(),
    processors: Mapping[str, Processor] | None = None,
    temperature: Number | None = None,
) -> dict[int, Prob] | None:
    """{id: probability > 0} after prompt and answer, or None where no token is possible.

    row: one number per id; logits, or probabilities (floats or Fractions).
    """
    t = params.temperature if temperature is None else temperature
    values: dict[int, Any] = {
        i: value
        for i, value in enumerate(row)
        if value > (-math.inf if logits else 0) and _allowed(params, i, answer, eos_ids)
    }
    irrational = params.logit_bias or params.processors or not _neutral(params) or t not in (0, 1)
    if irrational and not logits:
        values = {i: float(np.log(np.float64(value))) for i, value in values.items()}
        logits = True
    if irrational:
        values = {i: float(value) for i, value in values.items()}
        for i, addend in dict(params.logit_bias).items():
            if i in values:
                values[i] += addend
        for name in params.processors:
            assert processors is not None
            full = np.array([values.get(i, -math.inf) for i in range(len(row))])
            after = processors[name]((*prompt, *answer), full)
            values = {i: float(after[i]) for i in values if after[i] > -math.inf}
        values = {i: _penalised(params, value, i, prompt, answer) for i, value in values.items()}
    if not values:
        return None
    ranking = sorted(values, key=lambda i: (-values[i], i))
    if t == 0:
        return {ranking[0]: 1}
    weights = _weights(values, ranking, t) if logits else {i: values[i] / values[ranking[0]] for i in ranking}
    exact = not isinstance(weights[ranking[0]], float)
    least = as_written(params.min_p) if exact else float(params.min_p)
    kept = [i for i in ranking if weights[i] >= least]
    if params.top_k:
        kept = kept[: params.top_k]
    if params.top_p < 1:
        unit = 1 if exact else 2.0 ** (62 - len(row).bit_length())
        masses = [weights[i] if exact else round(weights[i] * unit) for i in kept]
        enough = as_written(params.top_p) * sum(masses)
        count = 1
        while sum(masses[:count]) < enough:
            count += 1
        kept = kept[:count]
    total = sum(weights[i] for i in kept)
    return {i: weights[i] / total for i in sorted(kept) if weights[i] > 0}


def _allowed(params: SamplingParams, token: int, answer: Seq[int], eos_ids: frozenset[int]) -> bool:
    ends = params.stop_ids if params.ignore_eos else params.stop_ids | eos_ids
    if params.allowed_ids is not None and token not in params.allowed_ids:
        return False
    if token in params.banned_ids or (len(answer) < params.min_tokens and token in ends):
        return False
    for phrase in params.banned_words:
        assert not isinstance(phrase, str)
        if [*answer, token][-len(phrase) :] == list(phrase):
            return False
    return _in_grammar(params, token, answer, eos_ids)


def _in_grammar(params: SamplingParams, token: int, answer: Seq[int], eos_ids: frozenset[int]) -> bool:
    if params.constraint is None:
        return True
    assert isinstance(params.constraint, TokenConstraint)
    matcher = params.constraint.start(max(token, *answer, *eos_ids, 0) + 1, eos_ids)
    return all(matcher.advance(i) for i in (*answer, token))


def _neutral(params: SamplingParams) -> bool:
    return params.repetition_penalty == 1 and params.frequency_penalty == 0 and params.presence_penalty == 0


def _penalised(params: SamplingParams, logit: float, token: int, prompt: Seq[int], answer: Seq[int]) -> float:
    repetition = float(params.repetition_penalty)
    if repetition != 1 and (token in prompt or token in answer):
        logit = logit / repetition if logit > 0 else logit * repetition
    times = list(answer).count(token)
    logit -= float(params.frequency_penalty) * times
    return logit - (float(params.presence_penalty) if times else 0)


def _weights(values: Mapping[int, float], ranking: Seq[int], temperature: Number) -> dict[int, float]:
    scaled = np.array([(float(values[i]) - float(values[ranking[0]])) / float(temperature) for i in ranking])
    return dict(zip(ranking, np.exp(scaled).tolist(), strict=True))
