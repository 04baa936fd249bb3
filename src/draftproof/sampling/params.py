"""What a user may ask of an answer.

Guarantees: refuses bad values on construction, by name, value and legal range, and refuses what contradicts itself.
Every control has a neutral value that switches it off, and that is its default. What it does not do: apply them;
that is `controls` for rows and `sequence` for stops. What only the vocabulary, the tokenizer or the grammar library
can tell (an id out of range, a schema that is none) is refused when the request joins, before its first token.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, fields
from typing import Any, Literal

from draftproof.errors import InvalidValue, UnknownName
from draftproof.sampling import legal
from draftproof.sampling.constraint import TokenConstraint
from draftproof.sampling.legal import Number

GrammarKind = Literal["json_schema", "regex", "grammar"]
"""Which of the three grammar fields is set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling controls, stop rules and what is reported, of one request.

    Length and stops
    max_tokens: most tokens to emit, >= 1; None means up to the context limit.
    min_tokens: no stop id (the model's EOS ids among them, unless ignored) before this many tokens; 0 is off.
    ignore_eos: do not end at the model's EOS ids. Not together with a grammar, which ends there.
    stop_ids: ids that end the answer as the model's own EOS ids do.
    stop: strings that end the answer. include_stop: leave the one that matched in the text.

    Randomness
    seed: 0..2**64-1; None takes one from the operating system and reports it.
    n: answers to the same prompt, independent of each other.

    Controls of p, in the order in which they are applied (the order of vLLM's V1 sampler)
    json_schema, regex, grammar: at most one; a JSON schema (text or mapping), a regular expression, a Lark grammar
        (or, in Python, a `TokenConstraint` of one's own).
    allowed_ids: the only ids that may be emitted; None allows all. banned_ids: ids that may not.
    banned_words: phrases that may not appear, as strings or as sequences of ids. A phrase's last token is banned
        where the answer so far (not the prompt) ends with the rest of it.
    (min_tokens, as above.)
    logit_bias: {id: addend of its logit}; finite.
    processors: names of registered custom processors (`sampling.processors`), in this order.
    repetition_penalty: > 0, 1 is off; logits of tokens in prompt or answer are divided by it where positive,
        multiplied where not. frequency_penalty, presence_penalty: -2..2, 0 is off; taken from the logit, once per
        occurrence in the answer and once for any occurrence.
    temperature: >= 0, 1 is off; 0 is argmax, ties to the smallest id, and uses no randomness.
    min_p: 0..1, 0 is off; drops tokens less probable than min_p times the most probable one.
    top_k: >= 0, 0 is off; the k most probable, ties to smaller ids.
    top_p: > 0 up to 1, 1 is off; the fewest most probable tokens that reach this mass, ties to smaller ids.

    Reports
    logprobs: log-probabilities of the chosen token and of this many most probable ones; None for none of it.
    raw_logprobs: those of the model before any control instead of those the token was drawn from.
    prompt_logprobs: the same for the prompt's tokens, always before any control.

    Speculation
    draft: "none" decodes this request without a drafter; None leaves the engine's.

    Penalties, biases and temperatures other than 0 and 1 are irrational: exact tables become floats under them. Every
    number may be a Fraction; the rest of the controls are exact on exact tables.
    """

    max_tokens: int | None = 256
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_ids: frozenset[int] = frozenset()
    stop: Seq[str] = ()
    include_stop: bool = False
    seed: int | None = None
    n: int = 1
    json_schema: str | Mapping[str, Any] | None = None
    regex: str | None = None
    grammar: str | TokenConstraint | None = None
    allowed_ids: frozenset[int] | None = None
    banned_ids: frozenset[int] = frozenset()
    banned_words: Seq[str | Seq[int]] = ()
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = ()
    processors: Seq[str] = ()
    repetition_penalty: Number = 1.0
    frequency_penalty: Number = 0.0
    presence_penalty: Number = 0.0
    temperature: Number = 1.0
    min_p: Number = 0.0
    top_k: int = 0
    top_p: Number = 1.0
    logprobs: int | None = None
    raw_logprobs: bool = False
    prompt_logprobs: int | None = None
    draft: Literal["none"] | None = None

    def __post_init__(self) -> None:
        keep = self._keep
        if self.max_tokens is not None:
            keep("max_tokens", legal.integer("max_tokens", self.max_tokens, 1, otherwise=", or None for all there is"))
        keep("min_tokens", legal.integer("min_tokens", self.min_tokens, 0))
        if self.seed is not None:
            keep("seed", legal.integer("seed", self.seed, 0, 2**64 - 1, otherwise=", or None"))
        keep("n", legal.integer("n", self.n, 1))
        keep("top_k", legal.integer("top_k", self.top_k, 0))
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                keep(name, legal.integer(name, getattr(self, name), 0, otherwise=", or None"))
        for name in ("ignore_eos", "include_stop", "raw_logprobs"):
            legal.switch(name, getattr(self, name))
        for name in ("stop_ids", "banned_ids"):
            keep(name, legal.ids(name, getattr(self, name)))
        if self.allowed_ids is not None:
            keep("allowed_ids", legal.ids("allowed_ids", self.allowed_ids))
        keep("stop", legal.strings("stop", self.stop))
        keep("processors", legal.strings("processors", self.processors))
        keep("banned_words", legal.phrases("banned_words", self.banned_words))
        keep("logit_bias", _bias(self.logit_bias))
        positive = "a finite number > 0"
        keep(
            "repetition_penalty",
            legal.number("repetition_penalty", self.repetition_penalty, positive, 0, open_low=True),
        )
        for name in ("frequency_penalty", "presence_penalty"):
            keep(name, legal.number(name, getattr(self, name), "a number in -2..2", -2, 2))
        keep("temperature", legal.number("temperature", self.temperature, "a finite number >= 0", 0))
        keep("min_p", legal.number("min_p", self.min_p, "a number in 0..1", 0, 1))
        keep("top_p", legal.number("top_p", self.top_p, "a number > 0 and <= 1", 0, 1, open_low=True))
        if self.draft not in (None, "none"):
            raise InvalidValue(f"draft={self.draft!r}", "'none' for this request without a drafter, or None")
        self._check_grammar()
        self._check_contradictions()

    def __deepcopy__(self, memo: dict[int, object]) -> SamplingParams:
        return self  # immutable

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> SamplingParams:
        """The parameters in a mapping, as JSON requests and command lines have them.

        Raises UnknownName for a key that is no field here, with the nearest one; otherwise as the constructor.
        """
        known = cls.names()
        for name in values:
            if name not in known:
                raise UnknownName("sampling control", str(name), known)
        return cls(**values)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """All fields, in order."""
        return tuple(f.name for f in fields(cls))

    @property
    def constraint(self) -> tuple[GrammarKind, str] | TokenConstraint | None:
        """The constraint asked for, or which grammar it is and its text; None without one."""
        if self.json_schema is not None:
            assert isinstance(self.json_schema, str)
            return "json_schema", self.json_schema
        if self.regex is not None:
            return "regex", self.regex
        return ("grammar", self.grammar) if isinstance(self.grammar, str) else self.grammar

    def _keep(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check_grammar(self) -> None:
        given = [name for name in ("json_schema", "regex", "grammar") if getattr(self, name) is not None]
        if len(given) > 1:
            raise InvalidValue(" and ".join(given), "at most one of json_schema, regex, grammar")
        if isinstance(self.json_schema, Mapping | bool):
            self._keep("json_schema", json.dumps(self.json_schema))
        for name in given:
            text = getattr(self, name)
            if name == "grammar" and isinstance(text, TokenConstraint):
                continue
            if not isinstance(text, str) or not text.strip():
                raise InvalidValue(f"{name}={text!r}", "non-empty text")
        if given and self.ignore_eos:
            raise InvalidValue(f"ignore_eos=True with {given[0]}", "a grammar ends at EOS; leave one of them out")

    def _check_contradictions(self) -> None:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidValue(
                f"min_tokens={self.min_tokens} with max_tokens={self.max_tokens}", "min_tokens <= max_tokens"
            )
        if self.allowed_ids is not None:
            single = {w[0] for w in self.banned_words if not isinstance(w, str) and len(w) == 1}
            left = self.allowed_ids - self.banned_ids - single
            if not left:
                raise InvalidValue(
                    f"allowed_ids={sorted(self.allowed_ids)} leave no token",
                    "allow at least one id that is not banned",
                )
            if self.min_tokens and left <= self.stop_ids:
                raise InvalidValue(
                    f"min_tokens={self.min_tokens} with allowed_ids that are all stop ids",
                    "allow an id that does not end the answer",
                )


def _bias(value: Any) -> tuple[tuple[int, float], ...]:
    """Ascending (id, addend) pairs: immutable and hashable, unlike a mapping."""
    if isinstance(value, Mapping):
        pairs = list(value.items())
    elif isinstance(value, Iterable) and all(isinstance(p, tuple) and len(p) == 2 for p in value):
        pairs = list(value)
    else:
        raise InvalidValue(f"logit_bias={value!r}", "a mapping from token id to a finite number")
    found: dict[int, float] = {}
    for token, addend in pairs:
        # JSON has string keys only.
        as_id = int(token) if isinstance(token, str) and token.isascii() and token.isdigit() else token
        i = legal.integer("logit_bias key", as_id, 0)
        found[i] = float(legal.number(f"logit_bias[{i}]", addend, "a finite number", -float("inf")))
    return tuple(sorted(found.items()))
