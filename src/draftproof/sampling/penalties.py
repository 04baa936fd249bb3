"""Repetition, frequency and presence penalties.

Guarantees: a row sees the prompt, the answer so far and the drafted tokens before it, each occurrence once; drafted
tokens leave nothing behind. Work per row is in the number of different tokens seen, not in the vocabulary; counts are
kept, not recounted. Repetition looks at prompt and answer (Keskar et al., arXiv:1909.05858, as vLLM has it), the
other two at the answer only (as the OpenAI API has it).
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np

from draftproof.sampling.params import SamplingParams
from draftproof.sampling.row import WorkingRow


class Penalties:
    """The penalties of one request and how often each token has occurred."""

    __slots__ = ("_counts", "_frequency", "_ids", "_presence", "_repetition", "_slots")

    def __init__(self, params: SamplingParams, prompt: Seq[int]) -> None:
        self._repetition = float(params.repetition_penalty)
        self._frequency = float(params.frequency_penalty)
        self._presence = float(params.presence_penalty)
        # One slot per token seen, in order of appearance: its id, and how often the answer has it. A token that only
        # the prompt has counts 0, and only repetition concerns it.
        seen = list(dict.fromkeys(prompt)) if self._repetition != 1 else []
        self._slots = {token: slot for slot, token in enumerate(seen)}
        room = max(16, 2 * len(seen))
        self._ids = np.zeros(room, dtype=np.int64)
        self._ids[: len(seen)] = seen
        self._counts = np.zeros(room, dtype=np.int64)

    @property
    def active(self) -> bool:
        """Whether any of the three does anything."""
        return self._repetition != 1 or self._frequency != 0 or self._presence != 0

    def commit(self, token: int) -> None:
        """One token was added to the answer."""
        slot = self._slots.setdefault(token, len(self._slots))
        if slot == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[slot] = token
        self._counts[slot] += 1

    def apply(self, row: WorkingRow, drafted: Seq[int]) -> None:
        """Penalise a row of logits that comes after the answer so far and `drafted`."""
        ids, counts = self._with(drafted)
        at, known = row.positions(ids)
        values = row.writable()
        logits = values[at]
        with np.errstate(over="ignore"):  # the caller looks whether anything became infinite
            if self._repetition != 1:
                logits = np.where(logits > 0, logits / self._repetition, logits * self._repetition)
            if self._frequency or self._presence:
                counts = counts[known]
                logits = logits - self._frequency * counts
                logits = logits - self._presence * (counts > 0)
        values[at] = logits

    def _with(self, drafted: Seq[int]) -> tuple[np.ndarray, np.ndarray]:
        """Ids and counts with the drafted tokens added; not to be written to."""
        seen = len(self._slots)
        if not drafted:
            return self._ids[:seen], self._counts[:seen]
        new = {
            t: slot for slot, t in enumerate((t for t in dict.fromkeys(drafted) if t not in self._slots), start=seen)
        }
        ids = np.concatenate([self._ids[:seen], np.array(list(new), dtype=np.int64)])
        counts = np.concatenate([self._counts[:seen], np.zeros(len(new), dtype=np.int64)])
        for token in drafted:
            slot = self._slots.get(token)
            counts[new[token] if slot is None else slot] += 1
        return ids, counts
