"""Hard masks that need no grammar: allowed and banned ids, banned words, min tokens.

Guarantees: what is masked depends on the answer so far and the drafted tokens before the row, nothing else. What it
does not do: words are banned as the sequences of ids they encode to, alone and after a space; another spelling of the
same characters in ids is another phrase.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq

import numpy as np
import numpy.typing as npt

from draftproof.errors import InvalidValue
from draftproof.sampling.params import SamplingParams
from draftproof.text import Tokenizer


class HardMasks:
    """The masks of one request. Immutable: the answer is handed in.

    end_ids: the ids that would end the answer, masked before min_tokens. Raises InvalidValue for ids outside the
    vocabulary and for a word given as text without a tokenizer.
    """

    __slots__ = ("_end_ids", "_min_tokens", "_phrases", "_possible", "_reach", "allowed", "banned")

    def __init__(
        self, params: SamplingParams, vocab_size: int, end_ids: frozenset[int], tokenizer: Tokenizer | None
    ) -> None:
        in_vocabulary("stop_ids", params.stop_ids, vocab_size)
        in_vocabulary("banned_ids", params.banned_ids, vocab_size)
        phrases = _phrases(params.banned_words, tokenizer)
        for phrase in phrases:
            in_vocabulary("banned_words", phrase, vocab_size)
        banned = params.banned_ids | {p[0] for p in phrases if len(p) == 1}
        self.banned = np.array(sorted(banned), dtype=np.int64)
        """The ids that may never be emitted."""
        self._phrases = tuple(sorted(p for p in phrases if len(p) > 1))
        self._reach = max((len(p) for p in self._phrases), default=1) - 1
        self._end_ids = end_ids
        self._min_tokens = params.min_tokens
        self.allowed: npt.NDArray[np.bool_] | None = None
        """The ids that were allowed by name, shape (vocab,); None if none was, and all but the banned ones are."""
        self._possible = np.ones(vocab_size, dtype=np.bool_)
        if params.allowed_ids is not None:
            in_vocabulary("allowed_ids", params.allowed_ids, vocab_size)
            self.allowed = np.zeros(vocab_size, dtype=np.bool_)
            self.allowed[list(params.allowed_ids)] = True
            self._possible = self.allowed.copy()
        self._possible[self.banned] = False

    @property
    def never(self) -> bool:
        """Whether nothing is ever masked."""
        return self.allowed is None and not (len(self.banned) or self._phrases or self._min_tokens)

    def __deepcopy__(self, memo: dict[int, object]) -> HardMasks:
        return self  # immutable

    def forbidden(self, answer: Seq[int], drafted: Seq[int]) -> frozenset[int]:
        """The ids that may not come here, after the answer and the drafted tokens; `banned` never may."""
        found: frozenset[int] = frozenset()
        if self._phrases:
            past = self._past(answer, drafted)
            found = frozenset(p[-1] for p in self._phrases if past[max(0, len(past) - len(p) + 1) :] == p[:-1])
        if len(answer) + len(drafted) < self._min_tokens:
            found |= self._end_ids
        return found

    def permits(self, token: int, answer: Seq[int], drafted: Seq[int]) -> bool:
        """Whether `token` may come here."""
        return bool(self._possible[token]) and token not in self.forbidden(answer, drafted)

    def some(self, also: npt.NDArray[np.bool_] | None) -> bool:
        """Whether any token may come first, with a grammar's mask `also`."""
        possible = self._possible if also is None else self._possible & also
        return bool(possible.sum() > sum(possible[i] for i in self.forbidden((), ())))

    def _past(self, answer: Seq[int], drafted: Seq[int]) -> tuple[int, ...]:
        """As many of the last tokens as the longest phrase looks back; fewer if there are fewer."""
        from_answer = max(0, self._reach - len(drafted))
        return (*answer[max(0, len(answer) - from_answer) :], *drafted[max(0, len(drafted) - self._reach) :])


def in_vocabulary(name: str, ids: Iterable[int], vocab_size: int) -> None:
    """Raise InvalidValue for an id that the model has no token for."""
    for i in ids:
        if i >= vocab_size:
            raise InvalidValue(f"{name}: id {i}", f"ids are 0..{vocab_size - 1}")


def _phrases(words: Seq[str | Seq[int]], tokenizer: Tokenizer | None) -> set[tuple[int, ...]]:
    found: set[tuple[int, ...]] = set()
    for word in words:
        if not isinstance(word, str):
            found.add(tuple(word))
            continue
        if tokenizer is None:
            raise InvalidValue(f"banned word {word!r} without a tokenizer", "give it as token ids")
        # In mid-sentence most tokenizers write a word together with the space before it.
        for text in (word, " " + word.lstrip()):
            ids = tuple(tokenizer.encode(text))
            if not ids:
                raise InvalidValue(f"banned word {word!r}", "a word that encodes to at least one token")
            found.add(ids)
    return found
