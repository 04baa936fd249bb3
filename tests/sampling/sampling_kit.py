"""Small helpers for the tests of the controls."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from fractions import Fraction
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from draftproof.dist import Dist
from draftproof.sampling.controls import Controls
from draftproof.sampling.params import SamplingParams
from draftproof.target.base import LogitRows, ProbRows

EOS_TEXT = "<eos>"


def logits(*rows: Seq[float]) -> LogitRows:
    """float32 rows."""
    return LogitRows(np.array(rows, dtype=np.float32))


def table(*rows: Seq[Any]) -> ProbRows:
    """Exact rows from anything Fraction understands."""
    values = np.empty((len(rows), len(rows[0])), dtype=object)
    for i, row in enumerate(rows):
        values[i] = [Fraction(x) for x in row]
    return ProbRows(values)


def probs(p: Dist) -> list[Any]:
    """All probabilities as a list."""
    return list(p.dense().tolist())


def controls(size: int, *, prompt: Seq[int] = (), answer: Seq[int] = (), eos: Seq[int] = (), **asked: Any) -> Controls:
    """Controls after prompt and answer."""
    made = Controls(SamplingParams(**asked), size, prompt=prompt, eos_ids=frozenset(eos))
    for token in answer:
        made.commit(token)
    return made


class SmallTokenizer:
    """A byte-level tokenizer of printable ASCII, a few longer tokens, and EOS; the package's protocol around it."""

    has_chat = False

    def __init__(self) -> None:
        merges = [("t", "r"), ("tr", "u"), ("tru", "e"), ("Ġ", "n"), ("Ġn", "o"), ("n", "o"), ('"', ":")]
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        words = [*alphabet, *("".join(pair) for pair in merges)]
        self.backend = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges))
        self.backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self.backend.decoder = decoders.ByteLevel()
        self.backend.add_special_tokens([AddedToken(EOS_TEXT, special=True)])
        self.eos = self.backend.token_to_id(EOS_TEXT)
        self.size = self.backend.get_vocab_size() + 3  # a model's head may have more rows than the tokenizer ids

    def to_str(self) -> str:
        return self.backend.to_str()

    def encode(self, text: str) -> list[int]:
        return list(self.backend.encode(text, add_special_tokens=False).ids)

    prompt = encode

    def decode(self, ids: Seq[int], *, skip_special: bool = True) -> str:
        return str(self.backend.decode(list(ids), skip_special_tokens=skip_special))

    def chat(self, messages: Seq[dict[str, str]]) -> list[int]:
        raise NotImplementedError

    def fingerprint(self) -> str:
        return "small"
