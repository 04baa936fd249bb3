"""Laws: what a model writes after every one, two or three tokens, as distributions that drafts can be drawn from.

What it is for: above temperature 0 a point mass on the most frequent token is accepted with p of that token alone; a
token drawn from a distribution q like p is accepted with the sum of min(p, q), which is more. Counts of few tokens are
mixed with those of shorter contexts (Witten and Bell, "The Zero-Frequency Problem", IEEE Trans. Inf. Theory 37(4),
1991, method C), and every law keeps its most likely tokens only.

Guarantees: laws that exist are whole: contexts ascending, the ids of each ascending and inside the vocabulary, every
share above 0; the empty context has one, so there is always a law; the same texts give the same ones. What it does not
do: say how good they are. A bad law costs speed, never the law of the output.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from draftproof.errors import InvalidValue, ModelFileError

Array = npt.NDArray[Any]
Context = tuple[int, ...]

ORDERS = 3
"""Most tokens of a context. Three contexts of four ids fit into 63 bits for vocabularies of up to two million."""
MOST = 10
"""Tokens of a law; twice as many of the empty context's."""
LEAST = 3
"""Fewest times a context of two or more tokens must have been seen."""
_WHOLE = 255  # the largest share


@dataclass(frozen=True, slots=True)
class Laws:
    """contexts[n]: contexts of n tokens as numbers in base `vocab_size`, oldest token first: int64, ascending; the
    empty one is 0. begins: where the tokens of each context begin, all orders one after another, and the end: int64.
    ids, shares: of all tokens, int32 and uint8; a probability is a share over the sum of its context's.
    """

    vocab_size: int
    contexts: tuple[Array, ...]
    begins: Array
    ids: Array
    shares: Array
    _keys: tuple[memoryview, ...] = field(init=False, repr=False, compare=False)
    _first: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _begins: memoryview = field(init=False, repr=False, compare=False)
    _ids: memoryview = field(init=False, repr=False, compare=False)
    _shares: memoryview = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        counts = [len(keys) for keys in self.contexts]
        if not 1 <= len(counts) <= ORDERS + 1 or self.contexts[0].tolist() != [0]:
            raise ModelFileError(f"laws of {counts} contexts", "one empty context, and longer ones")
        for n, keys in enumerate(self.contexts):
            if (np.diff(keys) <= 0).any() or (len(keys) and not (keys[0] >= 0 and keys[-1] < self.vocab_size**n)):
                raise ModelFileError(f"laws: contexts of {n} tokens are not ascending ids", "make them again")
        sizes = np.diff(self.begins)
        if (
            len(sizes) != sum(counts)
            or len(self.ids) != len(self.shares)
            or self.begins[0] != 0
            or self.begins[-1] != len(self.ids)
            or not (sizes > 0).all()
        ):
            raise ModelFileError("laws: tokens do not fit their contexts", "make them again")
        inner = np.ones(len(self.ids), dtype=np.bool_)
        inner[self.begins[:-1]] = False  # the first token of a law follows none
        ascending = (np.diff(self.ids.astype(np.int64), prepend=-1) > 0) | ~inner
        if not ascending.all() or self.ids.min() < 0 or self.ids.max() >= self.vocab_size or not self.shares.all():
            raise ModelFileError(
                "laws: ids that do not ascend inside the vocabulary, or a share of 0", "make them again"
            )
        # Python's own numbers: searching and slicing through numpy takes several times as long.
        object.__setattr__(self, "_keys", tuple(np.ascontiguousarray(keys, np.int64).data for keys in self.contexts))
        for name, values, dtype in (
            ("_begins", self.begins, np.int64),
            ("_ids", self.ids, np.int32),
            ("_shares", self.shares, np.uint8),
        ):
            object.__setattr__(self, name, np.ascontiguousarray(values, dtype).data)
        object.__setattr__(self, "_first", tuple(int(n) for n in np.cumsum([0, *counts])))

    @classmethod
    def of(cls, tensors: Mapping[str, Array], vocab_size: int) -> Laws:
        """From named arrays, as `tensors` gives them. Raises KeyError for one that is missing, ModelFileError."""
        orders = range(sum(name.startswith("laws.contexts.") for name in tensors))
        contexts = tuple(tensors[f"laws.contexts.{n}"] for n in orders)
        begins = np.cumsum(np.r_[0, tensors["laws.sizes"]], dtype=np.int64)
        return cls(vocab_size, contexts, begins, tensors["laws.ids"].astype(np.int32), tensors["laws.shares"])

    def tensors(self) -> dict[str, Array]:
        """Arrays by name, for a file: ids of a small vocabulary in two bytes, sizes of laws instead of their places."""
        named: dict[str, Array] = {f"laws.contexts.{n}": keys for n, keys in enumerate(self.contexts)}
        named["laws.sizes"] = np.diff(self.begins).astype(np.uint8)
        named["laws.ids"] = self.ids.astype(np.uint16 if self.vocab_size <= 2**16 else np.int32)
        named["laws.shares"] = self.shares
        return named

    def __deepcopy__(self, memo: dict[int, object]) -> Laws:
        return self  # immutable

    def __len__(self) -> int:
        """How many contexts have one."""
        return self._first[-1]

    def after(self, tokens: Seq[int]) -> tuple[int, list[int], list[int]]:
        """The longest ending of `tokens` that is known: of how many tokens it is, ids ascending, and their shares."""
        for n in range(min(len(tokens), len(self._keys) - 1), -1, -1):
            key = number(tokens[len(tokens) - n :], self.vocab_size)
            at = bisect_left(self._keys[n], key)
            if at < len(self._keys[n]) and self._keys[n][at] == key:
                place = self._first[n] + at
                begin, end = self._begins[place], self._begins[place + 1]
                return n, self._ids[begin:end].tolist(), self._shares[begin:end].tolist()
        raise AssertionError("the empty context has a law")


def count_laws(texts: Iterable[tuple[Seq[int], int]], vocab_size: int, *, least: int = LEAST, most: int = MOST) -> Laws:
    """The laws of texts, each given as its ids and how many of them are its prompt; only tokens of answers follow.

    Raises InvalidValue for least below 1, most outside 1..127 and texts without an answer.
    """
    if least < 1 or not 1 <= most <= 127:  # the sizes of laws are bytes in a file
        raise InvalidValue(f"least={least}, most={most}", "least at least 1, most 1 to 127")
    seen: list[dict[Context, Counter[int]]] = [defaultdict(Counter) for _ in range(ORDERS + 1)]
    for ids, prompt_length in texts:
        for at in range(prompt_length, len(ids)):
            for n in range(min(ORDERS, at) + 1):
                seen[n][tuple(ids[at - n : at])][ids[at]] += 1
    if not seen[0]:
        raise InvalidValue("texts without an answer", "at least one")
    known: dict[Context, dict[int, float]] = {(): _likeliest(seen[0][()], 2 * most)}
    for n in range(1, ORDERS + 1):
        for context, counts in seen[n].items():
            total = counts.total()
            if n == 1 or total >= least:
                lower = known[_longest_known(context[1:], known)]
                own = total / (total + len(counts))
                mixed = {token: (1 - own) * share for token, share in lower.items()}
                for token, times in counts.most_common(3 * most):
                    mixed[token] = mixed.get(token, 0.0) + own * times / total
                known[context] = _likeliest(mixed, most)
    return _packed(known, vocab_size)


def _longest_known(context: Context, known: dict[Context, dict[int, float]]) -> Context:
    while context not in known:
        context = context[1:]
    return context


def _likeliest(shares: dict[int, float] | Counter[int], most: int) -> dict[int, float]:
    """The largest, of equals those of smaller ids, as shares of their sum."""
    kept = sorted(shares.items(), key=lambda item: (-item[1], item[0]))[:most]
    total = sum(share for _, share in kept)
    return {token: share / total for token, share in kept}


def _packed(known: dict[Context, dict[int, float]], vocab_size: int) -> Laws:
    ordered = sorted(known, key=lambda context: (len(context), context))
    ids: list[int] = []
    shares: list[int] = []
    begins = [0]
    for context in ordered:
        law = known[context]
        largest = max(law.values())
        for token in sorted(law):
            whole = round(_WHOLE * law[token] / largest)
            if whole:
                ids.append(token)
                shares.append(whole)
        begins.append(len(ids))
    keys: list[list[int]] = [[] for _ in range(ORDERS + 1)]
    for context in ordered:
        keys[len(context)].append(number(context, vocab_size))
    return Laws(
        vocab_size,
        tuple(np.array(each, np.int64) for each in keys),
        np.array(begins, np.int64),
        np.array(ids, np.int32),
        np.array(shares, np.uint8),
    )


def number(context: Seq[int], vocab_size: int) -> int:
    """A context as one number in base `vocab_size`, oldest token first, as files hold it."""
    key = 0
    for token in context:
        key = key * vocab_size + token
    return key
