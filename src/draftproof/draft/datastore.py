"""A datastore: what a model mostly writes after every one, two or three tokens, counted in its own answers.

What it is for: `retrieval` drafts from it. The field calls a collection of texts that drafts are looked up in a
datastore (REST: He et al., "Retrieval-Based Speculative Decoding", NAACL 2024); this one keeps of every context only
its most frequent follower, so that a million tokens become a megabyte, backed off from long contexts to short ones.

Guarantees: a datastore that exists is whole: contexts ascending, every id inside the vocabulary; files of another
vocabulary are refused; the same texts give the same bytes. What it does not do: probabilities. Its tokens are point
masses, so a bad datastore costs speed, never the law of the output.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from draftproof.draft.laws import ORDERS, Laws, number
from draftproof.errors import InvalidValue, ModelFileError, ModelNotFound, VocabularyMismatch
from draftproof.models.cache import fresh_file, writing

Array = npt.NDArray[Any]

TENSORS, FACTS = "datastore.safetensors", "datastore.json"
FORMAT = 1
LARGEST_VOCAB = 2**21
LEAST = 3
"""Fewest times a follower of two or more tokens must have been seen. Halves the size for 1 % of the drafted tokens."""

_AGAIN = "fetch it or make it again with `draftproof train retrieval`"


@dataclass(frozen=True, slots=True)
class Datastore:
    """contexts[n-1]: contexts of n tokens as numbers in base `vocab_size`, oldest token first: int64, ascending.
    followers[n-1]: the id that most often came after each: int32, as many. tokenizer: its fingerprint. record: how it
    was made. laws: of answers above temperature 0; without them drafts are point masses at every temperature.
    """

    vocab_size: int
    tokenizer: str
    contexts: tuple[Array, ...]
    followers: tuple[Array, ...]
    record: Mapping[str, Any] = field(default_factory=dict)
    laws: Laws | None = None
    _keys: tuple[memoryview, ...] = field(init=False, repr=False, compare=False)
    _next: tuple[memoryview, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 1 <= self.vocab_size <= LARGEST_VOCAB:
            raise InvalidValue(f"a datastore of {self.vocab_size} token ids", f"1 to {LARGEST_VOCAB}")
        if not 1 <= len(self.contexts) <= ORDERS or len(self.contexts) != len(self.followers):
            raise ModelFileError(f"the datastore has contexts of {len(self.contexts)} lengths", _AGAIN)
        for n, (contexts, followers) in enumerate(zip(self.contexts, self.followers, strict=True), 1):
            if contexts.shape != followers.shape or contexts.ndim != 1:
                raise ModelFileError(f"{contexts.shape} contexts with {followers.shape} followers", _AGAIN)
            if (np.diff(contexts) <= 0).any():
                raise ModelFileError(f"contexts of {n} tokens are not ascending", _AGAIN)
            if len(contexts) and not (contexts[0] >= 0 and contexts[-1] < self.vocab_size**n):
                raise ModelFileError(f"a context of {n} tokens holds an id beyond {self.vocab_size - 1}", _AGAIN)
            if len(followers) and not (followers.min() >= 0 and followers.max() < self.vocab_size):
                raise ModelFileError(f"a follower of {n} tokens is beyond {self.vocab_size - 1}", _AGAIN)
        if self.laws is not None and self.laws.vocab_size != self.vocab_size:
            raise ModelFileError(f"laws of {self.laws.vocab_size} ids in a datastore of {self.vocab_size}", _AGAIN)
        # A search in Python's own numbers takes a microsecond; one through numpy four.
        object.__setattr__(self, "_keys", tuple(np.ascontiguousarray(c, np.int64).data for c in self.contexts))
        object.__setattr__(self, "_next", tuple(np.ascontiguousarray(f, np.int32).data for f in self.followers))

    def __deepcopy__(self, memo: dict[int, object]) -> Datastore:
        return self  # immutable

    def __len__(self) -> int:
        """How many contexts it knows."""
        return sum(len(contexts) for contexts in self.contexts)

    def follower(self, context: Seq[int]) -> int | None:
        """What mostly came after these 1 to ORDERS tokens; None if they are not known."""
        if len(context) > len(self._keys):
            return None
        key = number(context, self.vocab_size)
        keys = self._keys[len(context) - 1]
        at = bisect_left(keys, key)
        return self._next[len(context) - 1][at] if at < len(keys) and keys[at] == key else None

    def fits(self, tokenizer: str | None, vocab_size: int) -> bool:
        """Whether a target has this tokenizer (its fingerprint; None if the engine has none) and vocabulary."""
        return tokenizer in (None, self.tokenizer) and vocab_size >= self.vocab_size

    def check(self, tokenizer: str | None, vocab_size: int) -> None:
        """Raise VocabularyMismatch unless it `fits`."""
        if not self.fits(tokenizer, vocab_size):
            raise VocabularyMismatch(
                "the datastore was made with another tokenizer than the target's",
                "make one for this model with `draftproof train retrieval`",
            )


def count(
    texts: Iterable[tuple[Seq[int], int]],
    vocab_size: int,
    tokenizer: str,
    *,
    least: int = LEAST,
    record: Mapping[str, Any] | None = None,
    laws: Laws | None = None,
) -> Datastore:
    """The datastore of texts, each given as its ids and how many of them are its prompt.

    Only tokens of answers are followers; contexts may reach into the prompt. Of equally frequent followers the
    smallest id is kept. Raises InvalidValue for no texts, ids outside the vocabulary, or least < 1.
    """
    if least < 1:
        raise InvalidValue(f"least={least}", "at least 1")
    if not 1 <= vocab_size <= LARGEST_VOCAB:
        raise InvalidValue(f"a datastore of {vocab_size} token ids", f"1 to {LARGEST_VOCAB}")
    pairs: list[list[Array]] = [[] for _ in range(ORDERS)]  # (2, n) of contexts and followers, by order and text
    answers = tokens = 0
    for ids, prompt_length in texts:
        row = np.asarray(ids, np.int64)
        if len(row) and not (row.min() >= 0 and row.max() < vocab_size):
            raise InvalidValue(f"ids {row.min()}..{row.max()} in a text", f"0..{vocab_size - 1}")
        answers, tokens = answers + 1, tokens + max(0, len(row) - prompt_length)
        for order in range(1, ORDERS + 1):
            start = max(prompt_length, order)
            places = np.arange(start, len(row))
            key = np.zeros(len(places), np.int64)
            for back in range(order, 0, -1):
                key = key * vocab_size + row[places - back]
            pairs[order - 1].append(np.stack([key, row[places]]))
    if not tokens:
        raise InvalidValue("texts without an answer", "at least one")
    kept = [_most_frequent(np.concatenate(of, axis=1), least if n else 1) for n, of in enumerate(pairs)]
    facts = {"texts": answers, "answer_tokens": tokens, "least": least, **(record or {})}
    return Datastore(vocab_size, tokenizer, tuple(k for k, _ in kept), tuple(f for _, f in kept), facts, laws)


def _most_frequent(pairs: Array, least: int) -> tuple[Array, Array]:
    """Of (2, n) pairs of context and follower: every context and its most frequent follower, if seen often enough."""
    unique, counts = np.unique(pairs, axis=1, return_counts=True)  # ascending by context, then follower
    # Stable, so that of equals the smallest id stays first.
    order = np.lexsort((unique[1], -counts, unique[0]))
    contexts, followers, counts = unique[0][order], unique[1][order], counts[order]
    first = np.r_[True, contexts[1:] != contexts[:-1]] & (counts >= least)
    return contexts[first], followers[first].astype(np.int32)


def save(datastore: Datastore, folder: Path) -> None:
    """Write both files, each whole or not at all."""
    from safetensors.numpy import save_file

    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for n, (contexts, followers) in enumerate(zip(datastore.contexts, datastore.followers, strict=True), 1):
        tensors[f"contexts.{n}"] = np.ascontiguousarray(contexts, np.int64)
        tensors[f"followers.{n}"] = np.ascontiguousarray(followers, np.int32)
    if datastore.laws is not None:
        tensors |= datastore.laws.tensors()
    facts = {
        "format": FORMAT,
        "vocab_size": datastore.vocab_size,
        "tokenizer": datastore.tokenizer,
        "record": dict(datastore.record),
    }
    with fresh_file(folder / TENSORS) as temporary:
        save_file(tensors, temporary)
    with fresh_file(folder / FACTS) as temporary:
        temporary.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def load(folder: Path) -> Datastore:
    """Read a datastore. Raises ModelNotFound without the two files, ModelFileError for anything wrong in them."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    if not ((folder / FACTS).is_file() and (folder / TENSORS).is_file()):
        raise ModelNotFound(f"{folder} holds no datastore", f"it has {FACTS} and {TENSORS}")
    try:
        facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
        tensors = load_file(folder / TENSORS)
        if facts["format"] != FORMAT:
            raise ModelFileError(f"{folder / FACTS} is not of format {FORMAT}", f"update draftproof, or {_AGAIN}")
        orders = range(1, sum(name.startswith("followers.") for name in tensors) + 1)
        contexts, followers = (tuple(tensors[f"{what}.{n}"] for n in orders) for what in ("contexts", "followers"))
        vocab_size = int(facts["vocab_size"])
        laws = Laws.of(tensors, vocab_size) if "laws.sizes" in tensors else None
        return Datastore(vocab_size, facts["tokenizer"], contexts, followers, facts["record"], laws)
    except (json.JSONDecodeError, UnicodeDecodeError, SafetensorError, OSError) as error:
        raise ModelFileError(f"cannot read the datastore in {folder}: {error}", _AGAIN) from error
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFileError(f"{folder / FACTS} or {TENSORS} lacks or garbles {error}", _AGAIN) from error
