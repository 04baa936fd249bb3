"""The control matrix: which sampling controls a server honours, refuses, ignores or gets wrong. One line each.

Guarantees: each check is a handful of short requests whose right outcome is certain (equal texts, forbidden tokens,
counts that add up), so a verdict needs no statistics; what cannot be decided is "cannot tell", with the reason. What it
does not do: sampled text; that is `http`.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import numpy as np

from draftproof.audit.client import Client, Completion, Refused, ServerTrouble
from draftproof.audit.reference import Reference
from draftproof.audit.report import Finding, Verdict

SHORT = 12  # tokens of a check's answers
AGREES = 0.1  # median difference of log-probabilities that another precision can make

Outcome = tuple[Verdict, str]


@dataclass(frozen=True, slots=True)
class Matrix:
    """The checks of one server. neutral: request fields that switch every control off. prompts: a few texts."""

    client: Client
    neutral: dict[str, Any]
    prompts: Seq[str]
    reference: Reference | None

    def run(self) -> list[Finding]:
        """Every check, in this order; trouble in one does not stop the others."""
        checks: dict[str, Callable[[], Outcome]] = {
            "temperature 0 repeats itself": self._greedy_repeats,
            "temperature 1 varies": self._sampling_varies,
            "a seed repeats its answer": self._seed_repeats,
            "unseeded answers differ": self._unseeded_differ,
            "top_k = 1": lambda: self._only_argmax(top_k=1),
            "min_p = 1": lambda: self._only_argmax(min_p=1.0),
            "top_p near 0": lambda: self._only_argmax(top_p=1e-6),
            "logit_bias": self._logit_bias,
            "stop": self._stop,
            "max_tokens": self._max_tokens,
            "usage adds up": self._usage,
            "log-probabilities": self._logprobs,
            "a stream says the same": self._stream,
        }
        return [Finding(name, *self._safely(check)) for name, check in checks.items()]

    def _safely(self, check: Callable[[], Outcome]) -> Outcome:
        try:
            return check()
        except Refused as refusal:
            return Verdict.REFUSED, str(refusal)
        except ServerTrouble as trouble:
            return Verdict.UNKNOWN, str(trouble)

    def _ask(self, prompt: int = 0, **settings: Any) -> Completion:
        return self.client.complete(self.prompts[prompt], **{**self.neutral, "max_tokens": SHORT, **settings})

    def _greedy(self, prompt: int = 0, **settings: Any) -> Completion:
        return self._ask(prompt, temperature=0.0, **settings)

    # -- checks ------------------------------------------------------------------------------------------

    def _greedy_repeats(self) -> Outcome:
        tried = range(min(3, len(self.prompts)))
        equal = sum(self._greedy(i).text == self._greedy(i).text for i in tried)
        detail = f"{equal} of {len(tried)} prompts gave the same text twice"
        if equal == len(tried):
            return Verdict.HONOURED, detail
        return (Verdict.UNKNOWN, f"{detail}; rounding can do that") if equal else (Verdict.IGNORED, detail)

    def _sampling_varies(self) -> Outcome:
        texts = [self._ask(seed=seed).text for seed in range(6)]
        if len(set(texts)) > 1:
            return Verdict.HONOURED, f"{len(set(texts))} of 6 seeds gave distinct texts"
        same = " and it is the text of temperature 0" if texts[0] == self._greedy().text else ""
        return Verdict.IGNORED, f"6 seeds gave one and the same text{same}"

    def _seed_repeats(self) -> Outcome:
        pairs = [(self._ask(seed=s).text, self._ask(seed=s).text) for s in (11, 12, 13)]
        equal = sum(a == b for a, b in pairs)
        detail = f"{equal} of 3 seeds gave the same text twice"
        return (Verdict.HONOURED if equal == 3 else Verdict.IGNORED), detail

    def _unseeded_differ(self) -> Outcome:
        texts = [self._ask().text for _ in range(4)]
        if len(set(texts)) > 1:
            return Verdict.HONOURED, f"{len(set(texts))} of 4 answers without a seed are distinct"
        if len({self._ask(seed=seed).text for seed in range(4)}) == 1:
            return Verdict.UNKNOWN, "seeded answers do not vary either"
        return Verdict.WRONG, "4 answers without a seed are one and the same, answers with seeds are not"

    def _only_argmax(self, **cut: Any) -> Outcome:
        greedy = self._greedy().text
        texts = [self._ask(seed=seed, **cut).text for seed in range(4)]
        equal = sum(text == greedy for text in texts)
        if equal < 4:
            if self._greedy().text != greedy:
                return Verdict.UNKNOWN, "temperature 0 does not repeat itself"
            return Verdict.IGNORED, f"{4 - equal} of 4 seeds left the text of temperature 0"
        if all(self._ask(seed=seed).text == greedy for seed in range(4)):
            return Verdict.UNKNOWN, "answers without it are those of temperature 0 too"
        return Verdict.HONOURED, "4 seeds gave the text of temperature 0"

    def _logit_bias(self) -> Outcome:
        if self.reference is None:
            return Verdict.UNKNOWN, "needs the ids of a reference"
        [banned, *_] = self.reference.read(self._greedy())
        bias = {str(i): -100 for i in banned}
        first = [self.reference.read(self._ask(seed=seed, logit_bias=bias, temperature=t))[0] for seed, t in _BIASED]
        hits = sum(bool(set(f) & set(banned)) for f in first)
        if hits:
            return Verdict.IGNORED, f"the banned token came first in {hits} of {len(first)} answers"
        return Verdict.HONOURED, f"the banned token came first in none of {len(first)} answers"

    def _stop(self) -> Outcome:
        text = self._greedy(max_tokens=2 * SHORT).text
        words = [w for w in text.split() if len(w) > 2 or w.isdigit()]
        if len(words) < 3:
            return Verdict.UNKNOWN, "the answer has too few words to stop at one"
        stop = words[len(words) // 2]
        stopped = self._greedy(max_tokens=2 * SHORT, stop=[stop])
        if stop in stopped.text and not stopped.text.endswith(stop):
            return Verdict.IGNORED, f"the text goes on past the stop string {stop!r}"
        if not text.startswith(stopped.text.removesuffix(stop)) or stopped.finish != "stop":
            return Verdict.WRONG, f"stop {stop!r}: finish reason {stopped.finish!r}, text {stopped.text[-40:]!r}"
        return Verdict.HONOURED, f"the text ends before {stop!r}, finish reason 'stop'"

    def _max_tokens(self) -> Outcome:
        answers = [self._ask(i % len(self.prompts), seed=i, max_tokens=5) for i in range(4)]
        counts = [_count(answer) for answer in answers]
        seen = [(n, a.finish) for n, a in zip(counts, answers, strict=True) if n is not None]
        if not seen:
            return Verdict.UNKNOWN, "neither usage nor tokens are sent"
        most = max(n for n, _ in seen)
        if most > 5:
            return Verdict.IGNORED, f"{most} tokens, asked for at most 5"
        full = {finish for n, finish in seen if n == 5}
        if not full:
            return Verdict.UNKNOWN, "every answer ended before its limit"
        if "length" not in full:
            return Verdict.WRONG, f"5 of 5 tokens, but finish reason {', '.join(map(repr, full))}"
        return Verdict.HONOURED, "5 of at most 5 tokens, finish reason 'length'"

    def _usage(self) -> Outcome:
        answer = self._ask(seed=1)
        usage = answer.usage
        if usage is None:
            return Verdict.UNKNOWN, "no usage is sent"
        prompt, completion, total = (usage.get(f"{n}_tokens", -1) for n in ("prompt", "completion", "total"))
        if prompt + completion != total:
            return Verdict.WRONG, f"{prompt} + {completion} tokens are not {total}"
        seen = answer.ids or answer.tokens
        if seen is not None and not 0 <= completion - len(seen) <= 1:  # an end-of-text token may be counted, not shown
            return Verdict.WRONG, f"{len(seen)} tokens are shown, {completion} counted"
        return Verdict.HONOURED, f"{prompt} + {completion} = {total}"

    def _logprobs(self) -> Outcome:
        answer = self._ask(seed=3, max_tokens=2 * SHORT)
        values = answer.logprobs
        if values is None:
            return Verdict.UNKNOWN, "none are sent"
        if all(v == 0 for v in values):
            return Verdict.WRONG, f"all {len(values)} are 0"
        if not all(v <= 1e-6 for v in values):
            return Verdict.WRONG, f"{sum(not v <= 1e-6 for v in values)} of {len(values)} are positive or missing"
        if self.reference is None:
            return Verdict.UNKNOWN, f"{len(values)} are sent; whether they are right needs a reference"
        readings = self.reference.read(answer)
        prompt = self.reference.prompt_ids(self.prompts[0], self.client.options.api)
        laws = list(self.reference.distributions(prompt, readings))[: len(values)]
        own = np.array([_log(sum(float(p.prob(i)) for i in r)) for p, r in zip(laws, readings, strict=False)])
        sent = np.array(values[: len(own)])
        off = float(np.median(np.abs(sent - own)))
        if off <= AGREES:
            return Verdict.HONOURED, f"median difference from the reference {off:.2g} over {len(own)} tokens"
        for shift in (1, -1):
            if len(own) > 4 and float(np.median(np.abs(np.roll(own, shift) - sent)[1:-1])) <= AGREES:
                return Verdict.WRONG, f"they are those of the row {'before' if shift == 1 else 'after'}"
        return Verdict.WRONG, f"median difference from the reference {off:.2g} over {len(own)} tokens"

    def _stream(self) -> Outcome:
        whole = self._greedy().text
        pieces = self._streamed()
        if pieces == whole:
            return Verdict.HONOURED, f"{len(whole)} characters are equal"
        if self._greedy().text != whole:
            return Verdict.UNKNOWN, "temperature 0 does not repeat itself"
        return Verdict.WRONG, f"{pieces[:40]!r} streamed, {whole[:40]!r} whole"

    def _streamed(self) -> str:
        settings = {**self.neutral, "max_tokens": SHORT, "temperature": 0.0}
        return self.client.complete(self.prompts[0], streamed=not self.client.options.stream, **settings).text


_BIASED = ((0, 0.0), (1, 1.0), (2, 1.0), (3, 1.0))  # (seed, temperature)


def _count(answer: Completion) -> int | None:
    seen = answer.ids or answer.tokens
    counted = (answer.usage or {}).get("completion_tokens")
    return counted if counted is not None else None if seen is None else len(seen)


def _log(value: float) -> float:
    return float(np.log(value)) if value > 0 else -np.inf
