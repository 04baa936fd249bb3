"""Log-probabilities that are reported: the chosen token's, the most probable ones', the prompt's.

Guarantees: those of an emitted token come from the very row the token was decided on, on every path (accepted,
residual, bonus, plain), so they are what plain decoding reports; nothing is computed unless asked for. What it does
not do: decide between before and after the controls; that is `Controls.logprobs`.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from draftproof.sampling.controls import Controls
from draftproof.target.base import Feed, Rows, Target

PROMPT_CHUNK = 64  # rows of a prompt in memory at a time: 12 MiB at 49 152 tokens in float32


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural logarithm of a token's probability, and the most probable tokens (id, log-probability), best first.

    Equal ones are in the order of their ids; tokens of probability zero are not listed.
    """

    token: int
    logprob: float
    top: Seq[tuple[int, float]] = ()


def token_logprob(logprobs: npt.NDArray[np.float64], token: int, count: int) -> TokenLogprob:
    """What is reported of one row: `logprobs` of shape (vocab,), float64; the `count` most probable tokens."""
    return TokenLogprob(token, float(logprobs[token]), top_of(logprobs, count))


def top_of(logprobs: npt.NDArray[np.float64], count: int) -> tuple[tuple[int, float], ...]:
    """The `count` largest entries above -inf, largest first, ties by smaller id."""
    count = min(count, len(logprobs))
    if count == 0:
        return ()
    least = np.partition(logprobs, len(logprobs) - count)[len(logprobs) - count]
    found = np.flatnonzero((logprobs >= least) & (logprobs > -np.inf))
    order = np.lexsort((found, -logprobs[found]))[:count]
    return tuple((int(i), float(logprobs[i])) for i in found[order])


def prompt_logprobs(
    target: Target, handle: int, prompt: Seq[int], controls: Controls, count: int
) -> tuple[TokenLogprob | None, ...]:
    """One entry per prompt token, before any control; None for the first, which nothing predicts.

    Feeds all of the prompt but its last token into the open, empty sequence, a chunk at a time, and leaves it there:
    the first round goes on from it.
    """
    found: list[TokenLogprob | None] = [None]
    last = len(prompt) - 1
    for start in range(0, last, PROMPT_CHUNK):
        tokens = prompt[start : min(start + PROMPT_CHUNK, last)]
        rows: Rows = target.score([Feed(handle, tokens, rows=len(tokens))])[0]
        for row in range(len(tokens)):
            values = controls.logprobs(rows, row, (), raw=True)
            found.append(token_logprob(values, prompt[start + row + 1], count))
    return tuple(found)
