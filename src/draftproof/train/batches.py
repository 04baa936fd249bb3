"""Training batches: sequences, anchors in their answers, and what the target says at every block position.

Guarantees: batch number s of a seed is the same whenever it is asked, so that a resumed training sees what an
uninterrupted one would have. Block row k of anchor a is judged by p after the tokens up to a + k (k = 0..gamma-1), and
its sequential head gets the token at a + k. Rows whose next token lies past the end have weight 0. What it does not
do: hold out sequences (`split` does) or move tensors to a device.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from draftproof.errors import InvalidValue
from draftproof.train.store import Entry, FeatureStore

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Batch:
    """features (batch, tokens, width) float16, zero where padded. anchors (batch, count), positions.

    previous, following: (batch, count, block) ids of the tokens at a + k and a + k + 1. log_total: (batch, count,
    block). real: (batch, count, block), False past the end.
    """

    features: Tensor
    anchors: Tensor
    previous: Tensor
    following: Tensor
    log_total: Tensor
    real: Tensor


def split(store: FeatureStore, held_out: int, *, block: int) -> tuple[list[Entry], list[Entry]]:
    """(training, held out): every so-many-th sequence is held out, the same ones for as long as the store lives.

    A store that has grown since gives its new sequences to the training; a longer block leaves out those whose answers
    are too short. InvalidValue if too little is left to train on, or a sequence that was held out is gone.
    """
    usable = [entry for entry in store.entries if entry.length - entry.prompt_length >= block]
    if len(usable) <= held_out:
        raise InvalidValue(
            f"{len(usable)} sequences with answers of at least {block} tokens, {held_out} of them held out",
            "write more training data, or longer answers",
        )
    chosen = store.held_out().get(held_out)
    if chosen is None:
        stride = len(usable) // held_out
        chosen = [usable[i * stride].digest for i in range(held_out)]
        store.hold_out(chosen)
    held = set(chosen)
    if missing := held - {entry.digest for entry in store.entries}:
        raise InvalidValue(f"{len(missing)} sequences held out of {store.folder} are gone", "make the features again")
    kept = [e for e in usable if e.digest in held]
    if not kept:
        raise InvalidValue(f"none of {held_out} held-out answers has {block} tokens", "hold out another number of them")
    return [e for e in usable if e.digest not in held], kept


class Batches:
    """Batches of `sequences` sequences with `anchors` blocks each, by number."""

    def __init__(
        self, store: FeatureStore, entries: Seq[Entry], *, sequences: int, anchors: int, block: int, seed: int
    ) -> None:
        if not entries:
            raise InvalidValue("no training sequences", "write some first")
        self.store, self.entries = store, list(entries)
        self.sequences, self.anchors, self.block, self.seed = min(sequences, len(entries)), anchors, block, seed

    @property
    def per_epoch(self) -> int:
        """Batches until every sequence has been used once."""
        return max(1, len(self.entries) // self.sequences)

    def batch(self, step: int) -> Batch:
        """Batch number `step`, 0-based."""
        epoch, within = divmod(step, self.per_epoch)
        order = np.random.default_rng([self.seed, 0, epoch]).permutation(len(self.entries))
        chosen = order[within * self.sequences : (within + 1) * self.sequences]
        source = np.random.default_rng([self.seed, 1, step])
        entries = [self.entries[i] for i in chosen]
        return collate(self.store, entries, [_anchors(source, e, self.anchors) for e in entries], self.block)


def every_anchor(entry: Entry) -> Array:
    """All anchors of a sequence: from the prompt's last token to the last but one."""
    return np.arange(entry.prompt_length - 1, entry.length - 1)


def collate(store: FeatureStore, entries: Seq[Entry], anchors: Seq[Array], block: int) -> Batch:
    """A batch of these sequences with these anchors, padded to the longest and to the most anchors."""
    longest, most = max(e.length for e in entries), max(len(a) for a in anchors)
    features = torch.zeros(len(entries), longest, store.width, dtype=torch.float16)
    at = torch.zeros(len(entries), most, dtype=torch.long)
    shape = (len(entries), most, block)
    previous, following = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
    log_total, real = torch.zeros(shape), torch.zeros(shape, dtype=torch.bool)
    for i, (entry, chosen) in enumerate(zip(entries, anchors, strict=True)):
        tokens, states, totals = store.read(entry)
        features[i, : entry.length] = torch.from_numpy(np.array(states))
        positions = chosen[:, None] + np.arange(block)  # a + k
        inside = positions + 1 < entry.length
        safe = np.minimum(positions, entry.length - 2)
        n = len(chosen)
        at[i, :n] = torch.from_numpy(chosen)
        previous[i, :n] = torch.from_numpy(tokens[safe].astype(np.int64))
        following[i, :n] = torch.from_numpy(tokens[safe + 1].astype(np.int64))
        log_total[i, :n] = torch.from_numpy(totals[safe])
        real[i, :n] = torch.from_numpy(inside)
    return Batch(features, at, previous, following, log_total, real)


def _anchors(source: np.random.Generator, entry: Entry, count: int) -> Array:
    every = every_anchor(entry)
    return np.sort(source.choice(every, count, replace=len(every) < count))
