"""Sequences a target wrote, with its hidden states, kept on disk so that a training step costs the drafter alone.

A folder: `index.jsonl` (one line per sequence), `tokens.i32`, `features.f16` (per token, the hidden states of the
feature layers side by side) and `log_total.f32` (per token, log of the sum of exp of all the target's logits there, so
that p of any few ids follows from the last hidden state and those rows of the LM head).

Guarantees: a sequence is in the index only when its numbers are on disk; what a crash left beyond the index is cut off
when the store is opened for writing; a text already stored is not stored twice. Which sequences are held out is decided
once (`held_out.json`): a store that grows later gives its new sequences to the training, and none that was trained on
is ever held out. What it does not do: run a target.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from draftproof.errors import InvalidValue, ModelFileError
from draftproof.models.cache import fresh_file, writing

Array = npt.NDArray[Any]

FACTS, INDEX, HELD_OUT = "store.json", "index.jsonl", "held_out.json"
_FILES = {"tokens": ("tokens.i32", np.int32), "features": ("features.f16", np.float16)}
_FILES |= {"log_total": ("log_total.f32", np.float32)}


@dataclass(frozen=True, slots=True)
class Entry:
    """One sequence: where its tokens begin, how many there are, how many of them are the prompt, and its origin."""

    start: int
    length: int
    prompt_length: int
    temperature: float
    kind: str
    digest: str


class FeatureStore:
    """width: numbers per token (feature layers x hidden size)."""

    def __init__(self, folder: Path, facts: Mapping[str, Any], entries: list[Entry]) -> None:
        self.folder = folder
        self.facts = dict(facts)
        self.width: int = facts["width"]
        self.entries = entries
        self._digests = {entry.digest for entry in entries}
        self._views: dict[str, Array] = {}

    @classmethod
    def create(cls, folder: Path, *, width: int, facts: Mapping[str, Any]) -> FeatureStore:
        """A new store, or the one that is there if it was made with the same facts (InvalidValue otherwise)."""
        wanted = {**facts, "width": width}
        if (folder / FACTS).is_file():
            store = cls.open(folder)
            if store.facts != wanted:
                raise InvalidValue(f"{folder} was made with other settings", "give another folder, or delete it")
            store._cut()
            return store
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / INDEX).write_text("", encoding="utf-8")
            for name, _ in _FILES.values():
                (folder / name).write_bytes(b"")
            (folder / FACTS).write_text(json.dumps(wanted), encoding="utf-8")
        return cls(folder, wanted, [])

    @classmethod
    def open(cls, folder: Path) -> FeatureStore:
        """An existing store. Raises ModelFileError if the folder is none, or lacks numbers of its index."""
        try:
            facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
            lines = (folder / INDEX).read_text(encoding="utf-8").splitlines(keepends=True)
        except (OSError, json.JSONDecodeError) as error:
            raise ModelFileError(f"{folder} is no feature store ({error})", "make one with `train dspark`") from error
        # A line without its end was being written when something stopped it; its sequence is made again.
        store = cls(folder, facts, [Entry(**json.loads(line)) for line in lines if line.endswith("\n")])
        for path, expected in store._sizes():
            if not path.is_file() or path.stat().st_size < expected:
                raise ModelFileError(f"{path} is shorter than {INDEX} says", "copy it again, or delete the folder")
        return store

    @property
    def tokens(self) -> int:
        """Tokens of all sequences."""
        return self.entries[-1].start + self.entries[-1].length if self.entries else 0

    def has(self, tokens: Seq[int]) -> bool:
        """Whether this very sequence is stored."""
        return _digest(tokens) in self._digests

    def add(
        self,
        tokens: Seq[int],
        features: Array,
        log_total: Array,
        *,
        prompt_length: int,
        temperature: float,
        kind: str = "",
    ) -> bool:
        """Append a sequence: features (tokens, width), log_total (tokens,). False if it was there already.

        Raises InvalidValue for shapes that do not fit and for numbers that float16 cannot hold.
        """
        count = len(tokens)
        if features.shape != (count, self.width) or log_total.shape != (count,):
            raise InvalidValue(f"features {features.shape} for {count} tokens", f"({count}, {self.width})")
        if not 1 <= prompt_length < count:
            raise InvalidValue(f"a sequence of {count} tokens, {prompt_length} of them prompt", "prompt and answer")
        with np.errstate(over="ignore"):
            narrow = features.astype(np.float16)
        if not (np.isfinite(narrow).all() and np.isfinite(log_total).all()):
            raise InvalidValue("hidden states that are not finite in float16", "check the target's dtype")
        if self.has(tokens):
            return False
        entry = Entry(self.tokens, count, prompt_length, temperature, kind, _digest(tokens))
        arrays = {"tokens": np.asarray(tokens), "features": narrow, "log_total": log_total}
        with writing(self.folder):
            for key, (name, dtype) in _FILES.items():
                with (self.folder / name).open("ab") as file:
                    file.write(np.ascontiguousarray(arrays[key], dtype=dtype).tobytes())
            with (self.folder / INDEX).open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(entry)) + "\n")
        self.entries.append(entry)
        self._digests.add(entry.digest)
        self._views.clear()
        return True

    def read(self, entry: Entry) -> tuple[Array, Array, Array]:
        """tokens (n,) int32, features (n, width) float16, log_total (n,) float32; views of the files."""
        if not self._views:
            total = self.tokens
            for key, (name, dtype) in _FILES.items():
                shape = (total, self.width) if key == "features" else (total,)
                self._views[key] = np.memmap(self.folder / name, dtype=dtype, mode="r", shape=shape)
        part = slice(entry.start, entry.start + entry.length)
        return self._views["tokens"][part], self._views["features"][part], self._views["log_total"][part]

    def held_out(self) -> dict[int, list[str]]:
        """The digests of the sequences held out, by their number. Raises ModelFileError for a broken file."""
        path = self.folder / HELD_OUT
        if not path.is_file():
            return {}
        try:
            return {
                int(count): list(digests) for count, digests in json.loads(path.read_text(encoding="utf-8")).items()
            }
        except (OSError, ValueError, AttributeError, TypeError) as error:
            raise ModelFileError(f"cannot read {path}: {error!r}", "restore it, or make the features again") from error

    def hold_out(self, digests: Seq[str]) -> None:
        """Hold these out from now on, whenever so many are asked for."""
        known = {**self.held_out(), len(digests): list(digests)}
        with writing(self.folder), fresh_file(self.folder / HELD_OUT) as temporary:
            temporary.write_text(json.dumps({str(count): known[count] for count in sorted(known)}), encoding="utf-8")

    def token_counts(self, vocab_size: int, entries: Seq[Entry]) -> Array:
        """How often each id occurs in these sequences, (vocab_size,)."""
        counts = np.zeros(vocab_size, dtype=np.int64)
        for entry in entries:
            counts += np.bincount(self.read(entry)[0], minlength=vocab_size)
        return counts

    def _cut(self) -> None:
        """Drop what was written after the last whole sequence."""
        with writing(self.folder):
            for path, expected in self._sizes():
                if path.stat().st_size > expected:
                    os.truncate(path, expected)
            whole = "".join(json.dumps(asdict(entry)) + "\n" for entry in self.entries)
            if (self.folder / INDEX).read_text(encoding="utf-8") != whole:
                with fresh_file(self.folder / INDEX) as temporary:
                    temporary.write_text(whole, encoding="utf-8")

    def _sizes(self) -> list[tuple[Path, int]]:
        """The files of numbers, and how many bytes of each the index stands for."""
        per_token = {"tokens": 1, "features": self.width, "log_total": 1}
        return [
            (self.folder / name, self.tokens * per_token[key] * np.dtype(dtype).itemsize)
            for key, (name, dtype) in _FILES.items()
        ]


def _digest(tokens: Seq[int]) -> str:
    return hashlib.sha256(np.asarray(tokens, dtype=np.int64).tobytes()).hexdigest()[:32]
