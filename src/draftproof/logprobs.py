"""Log-probabilities that are reported: the chosen token's, the most probable ones', the prompt's.

Guarantees: those of an emitted token come from the very row the token was decided on, on every path (accepted,
residual, bonus, plain), so they are what plain decoding reports; nothing is computed unless asked for. What it does
not do: decide between before and after the controls; that is `Controls.scores`.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from draftproof.sampling.controls import Controls
from draftproof.sampling.scores import Scores
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


def token_logprob(scores: Scores, token: int, count: int) -> TokenLogprob:
    """What is reported of one row: the token, and the `count` most probable ones."""
    return TokenLogprob(token, scores.of(token), scores.top(count))


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
            scores = controls.scores(rows, row, (), raw=True)
            found.append(token_logprob(scores, prompt[start + row + 1], count))
    return tuple(found)
