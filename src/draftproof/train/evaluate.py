"""What a drafter would do on sequences it was not trained on: acceptance by position, tokens per round, calibration.

A held-out sequence x was drawn from p, so for a ratio rule the chance that its token at a drafted position came from an
accepted draft is min(1, q(x)/p(x)), given everything before it. Rounds over the text are then a Markov chain over
anchors, and `replay` computes its expectations exactly: no engine, no draws, the same figures in expectation. On text
written greedily a draft is accepted where argmax q is the token of the text.

Guarantees: figures are those an engine with the token verifier and a fixed draft length would have on the same text
(tests/dspark compares). What it does not do: time anything.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from draftproof.errors import InvalidValue
from draftproof.train.batches import collate, every_anchor
from draftproof.train.loss import target_probs
from draftproof.train.rows import RowMaker
from draftproof.train.store import Entry, FeatureStore

Array = npt.NDArray[Any]

ANCHORS_AT_ONCE = 64  # blocks of one forward: bounds the memory of rows over the draft vocabulary


@dataclass(frozen=True, slots=True)
class Anchored:
    """All blocks of one sequence, one per anchor; (anchors, block) each, 0 past the end of the text.

    survive: P(the text's token was an accepted draft | those before it in the block were). accept: acceptance
    rate of the row given its prefix, 1 - TV (greedy text: as `survive`). confidence: logit of the head. real: whether
    the text goes that far. closed: the text ends with a token that ends answers, not because it was cut off.
    """

    survive: Array
    accept: Array
    confidence: Array
    real: Array
    closed: bool


@dataclass(frozen=True, slots=True)
class Replay:
    """rounds: expected number. reached[k]: expected rounds whose first k drafts were accepted and position k exists.

    accepted[k]: expected number of accepted drafts at position k.
    """

    rounds: float
    reached: tuple[float, ...]
    accepted: tuple[float, ...]
    tokens: int

    @property
    def by_position(self) -> tuple[float, ...]:
        """Acceptance at position k given that everything before it was accepted."""
        return tuple(a / r if r else 0.0 for a, r in zip(self.accepted, self.reached, strict=True))

    @property
    def tokens_per_round(self) -> float:
        """Tokens of the texts per round."""
        return self.tokens / self.rounds

    @property
    def drafts_per_round(self) -> float:
        """Accepted drafted tokens per round."""
        return sum(self.accepted) / self.rounds


def judged(entries: Seq[Entry], *, greedy: bool) -> list[Entry]:
    """Greedy texts, or those sampled at T = 1. Of any other temperature p is not stored, only that of T = 1."""
    return [entry for entry in entries if entry.temperature == (0 if greedy else 1)]


@torch.no_grad()
def anchored(maker: RowMaker, store: FeatureStore, entry: Entry) -> Anchored:
    """Run the drafter on every anchor of one sequence, greedy or sampled at T = 1 (InvalidValue otherwise)."""
    if entry.temperature not in (0, 1):
        raise InvalidValue(f"figures of a text at temperature {entry.temperature}", "0 or 1: p of others is not stored")
    block = maker.module.config.block
    anchors = every_anchor(entry)
    shape = (len(anchors), block)
    survive, accept, confidence = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    real = np.zeros(shape, dtype=np.bool_)
    for start in range(0, len(anchors), ANCHORS_AT_ONCE):
        part = slice(start, start + ANCHORS_AT_ONCE)
        batch = collate(store, [entry], [anchors[part]], block)
        rows = maker.rows(batch)
        inside = batch.real[0].numpy()
        q, p = rows.logits.float().softmax(-1), target_probs(rows.target, rows.log_total)
        known = rows.label >= 0
        at = rows.label.clamp(min=0)[:, None]
        if entry.temperature == 0:
            hit = ((q.argmax(-1) == rows.label) & known).double()
            overlap = hit
        else:
            of_q, of_p = q.gather(-1, at)[:, 0], p.gather(-1, at)[:, 0]
            hit = torch.where(known, (of_q / of_p).clamp(max=1), 0.0).double()
            overlap = torch.minimum(q, p).sum(-1).double()
        for target, values in ((survive, hit), (accept, overlap), (confidence, rows.confidence.double())):
            target[part][inside] = values.cpu().numpy()
        real[part] = inside
    closed = int(store.read(entry)[0][-1]) in store.facts.get("eos_ids", ())
    return Anchored(survive, accept, confidence, real, closed)


def replay(sequences: Seq[Anchored], length: int | None = None) -> Replay:
    """Expected rounds over these texts with drafts of `length` tokens (default: the block)."""
    if not sequences:
        raise InvalidValue("no sequences to replay", "hold out more of them")
    block = sequences[0].survive.shape[1]
    length = block if length is None else length
    reached, accepted = np.zeros(length), np.zeros(length)
    rounds, tokens = 0.0, 0
    for one in sequences:
        count = len(one.survive)
        tokens += count
        visits = np.zeros(count + 1)
        visits[0] = 1.0
        for a in range(count):
            # As in the engine: one token of a budget is the round's own, so a draft ends one short of it; and nothing
            # is drafted in the first round, before the target has read the prompt.
            room = min(length, count - a - (not one.closed)) if a else 0
            alive = visits[a]
            for k in range(room):
                reached[k] += alive
                stays = alive * one.survive[a, k]
                accepted[k] += stays
                visits[min(a + k + 1, count)] += alive - stays
                alive = stays
            visits[min(a + room + 1, count)] += alive
        rounds += visits[:count].sum()
    return Replay(float(rounds), tuple(reached.tolist()), tuple(accepted.tolist()), tokens)


def survived(one: Anchored) -> Array:
    """P(everything up to and including position k is an accepted draft), for each anchor: (anchors, block).

    The token at k itself is averaged over (1 - TV), those before it are the text's.
    """
    before = np.cumprod(np.concatenate([np.ones((len(one.survive), 1)), one.survive[:, :-1]], axis=1), axis=1)
    value: Array = before * one.accept
    return value
