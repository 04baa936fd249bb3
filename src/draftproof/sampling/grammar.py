"""JSON schemas, regular expressions and Lark grammars as constraints, through the `llguidance` library.

What it is for: `controls` asks for the matcher of a request; this module turns the request's text and the model's
tokenizer into one.

Guarantees: a text that is no schema, regex or grammar raises InvalidValue with the library's own message and place,
before the first token; so does one that nothing can satisfy. EOS ids are allowed exactly where the grammar may end.
What it does not do: parse anything itself, or work without the extra `grammar` (MissingExtra).
"""

from __future__ import annotations

import copy
from collections.abc import Hashable
from typing import Any, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import numpy as np

from draftproof.errors import InvalidValue, MissingExtra, Unsupported
from draftproof.sampling.constraint import Mask, TokenMatcher
from draftproof.sampling.params import GrammarKind


@runtime_checkable
class Serializable(Protocol):
    """A tokenizer that can be written down: `tokenizers.Tokenizer`, and the package's own."""

    def to_str(self) -> str:
        """The contents of its tokenizer.json."""
        ...


class Grammar:
    """A `TokenConstraint` from the text of a JSON schema, regular expression or Lark grammar.

    tokenizer: anything `Serializable`. Raises Unsupported for a tokenizer that is not, and MissingExtra.
    """

    def __init__(self, kind: GrammarKind, text: str, tokenizer: object) -> None:
        if not isinstance(tokenizer, Serializable):
            raise Unsupported(
                f"{kind} with a tokenizer that has no tokenizer.json", "use a model with a fast tokenizer"
            )
        self.kind = kind
        self.text = text
        self._tokenizer = tokenizer
        self._library = _library()

    def start(self, vocab_size: int, eos_ids: frozenset[int]) -> TokenMatcher:
        vocabulary = self._vocabulary(vocab_size, eos_ids)
        build = self._library.LLMatcher
        convert = {
            "json_schema": build.grammar_from_json_schema,
            "regex": build.grammar_from_regex,
            "grammar": build.grammar_from_lark,
        }[self.kind]
        try:
            compiled = convert(self.text)
        except ValueError as error:
            raise self._invalid(str(error)) from error
        matcher = build(vocabulary, compiled, log_level=0)
        if matcher.is_error():
            raise self._invalid(matcher.get_error())
        started = _Matcher(matcher, vocab_size, eos_ids)
        if not started.mask().any():
            raise self._invalid("nothing can satisfy it")
        return started

    def _vocabulary(self, vocab_size: int, eos_ids: frozenset[int]) -> Any:
        """The library's picture of the tokenizer: expensive, so kept while the tokenizer lives."""
        known = _VOCABULARIES.setdefault(self._tokenizer, {})
        key = (vocab_size, eos_ids)
        if key not in known:
            known[key] = self._library.LLTokenizer(
                self._tokenizer.to_str(), n_vocab=vocab_size, eos_token=sorted(eos_ids)
            )
        return known[key]

    def _invalid(self, message: str) -> InvalidValue:
        return InvalidValue(f"{self.kind}: {message.strip()}", "correct it, or leave it out")


_VOCABULARIES: WeakKeyDictionary[Serializable, dict[Hashable, Any]] = WeakKeyDictionary()  # a memo, no state


class _Matcher:
    """llguidance's matcher with the end of the answer kept outside it.

    EOS is never fed to the library: in a state that allows nothing else it would not count as a token there, and the
    number to roll back would be off by one. The tokens taken are kept because a dead end, where the library finds no
    token, leaves its matcher unusable: it is then made anew.
    """

    def __init__(self, matcher: Any, vocab_size: int, eos_ids: frozenset[int]) -> None:
        self._first = matcher.deep_copy()
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._eos_ids = eos_ids
        self._taken: list[int] = []
        self._ended = False

    def advance(self, token: int) -> bool:
        if self._ended:
            return False
        if token in self._eos_ids:
            self._ended = bool(self._matcher.is_accepting())
            return self._ended
        if not self._matcher.try_consume_tokens([token]):
            self._check()
            return False
        self._taken.append(token)
        return True

    def rollback(self, count: int) -> None:
        if self._ended and count:
            self._ended = False
            count -= 1
        if count:
            self._matcher.rollback(count)
            self._check()
            del self._taken[-count:]

    def mask(self) -> Mask:
        if self._ended:
            return np.zeros(self._vocab_size, dtype=np.bool_)
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if self._matcher.get_error().startswith("NoExtensionBias"):  # its name for: nothing can come, found late
            self._matcher = self._first.deep_copy()
            self._matcher.consume_tokens(self._taken)
            return np.zeros(self._vocab_size, dtype=np.bool_)
        self._check()
        mask = np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(np.bool_)
        mask[list(self._eos_ids)] = self._matcher.is_accepting()
        return mask

    def copy(self) -> TokenMatcher:
        twin = copy.copy(self)
        twin._matcher = self._matcher.deep_copy()
        twin._taken = list(self._taken)
        return twin

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = self._matcher.get_error().strip().split("\n")[0]
            raise Unsupported(f"the grammar library gave up: {reason}", "simplify the grammar")


def _library() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise MissingExtra("grammars need llguidance", "pip install 'draftproof[grammar]'") from error
    return llguidance
