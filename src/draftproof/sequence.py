"""One request: its tokens, stop rules, text, random streams and counters.

Guarantees: tokens are committed one at a time and the first event wins; ids, text, offsets, log-probabilities, usage
and statistics all end at the same token. At one token, a stop comes before the budget. What it does not do: decide
tokens.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from draftproof.logprobs import TokenLogprob
from draftproof.result import Result, Speculation, Timing, Usage
from draftproof.sampling.controls import Controls
from draftproof.sampling.params import SamplingParams
from draftproof.stops import AnswerText
from draftproof.tally import Tally
from draftproof.text import TextStream, Tokenizer
from draftproof.verify.base import Origin


class Sequence:
    """A live request. Owned by the engine; drafters and schedules see parts of it, read only.

    tokens: prompt, what was answered before (a continuation), and the answer, in one list. prompt_length: tokens of
    the prompt; start: where the answer of this request begins, which differs from prompt_length in a continuation.
    limit: the most tokens of the answer, and limit_reason the finish reason when it reaches them.
    """

    __slots__ = (
        "_stream",
        "answer",
        "controls",
        "finish_reason",
        "handle",
        "id",
        "limit",
        "limit_reason",
        "logprobs",
        "offsets",
        "origins",
        "params",
        "prompt_length",
        "prompt_logprobs",
        "sample",
        "seed",
        "speculates",
        "start",
        "stop_ids",
        "stop_reason",
        "tally",
        "tokens",
    )

    def __init__(
        self,
        *,
        id: int,
        handle: int,
        prompt: Seq[int],
        params: SamplingParams,
        seed: int,
        stop_ids: frozenset[int],
        limit: int,
        limit_reason: str,
        controls: Controls,
        tokenizer: Tokenizer | None,
        sample: int = 0,
        answered: Seq[int] = (),
    ) -> None:
        self.id = id
        self.handle = handle
        self.tokens = [*prompt, *answered]
        self.prompt_length = len(prompt)
        self.start = len(self.tokens)
        self.params = params
        self.seed = seed
        self.sample = sample
        self.stop_ids = stop_ids
        self.limit = limit
        self.limit_reason = limit_reason
        self.controls = controls
        self.speculates = params.draft != "none"
        self.tally = Tally()
        self.origins: list[Origin] = []
        self.offsets: list[int] = []
        self.logprobs: list[TokenLogprob] | None = None if params.logprobs is None else []
        self.prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self._stream: TextStream | None = None
        self.answer: AnswerText | None = None
        if tokenizer is not None:
            self._stream = TextStream(tokenizer, prompt)
            before = "".join(self._stream.push(token) for token in answered)
            self.answer = AnswerText(params.stop, include=params.include_stop, before=before)
        for token in answered:
            controls.commit(token)

    @property
    def emitted(self) -> int:
        """Tokens of the answer so far."""
        return len(self.tokens) - self.start

    @property
    def remaining(self) -> int:
        """Tokens the answer may still get."""
        return self.limit - self.emitted

    def commit(self, token: int, origin: Origin, logprob: TokenLogprob | None = None) -> str:
        """Append one token; returns the text that may be shown now. Sets `finish_reason` when it ends the answer."""
        assert self.finish_reason is None
        assert self.remaining > 0
        self.tokens.append(token)
        self.origins.append(origin)
        self.controls.commit(token)
        if self.logprobs is not None and logprob is not None:
            self.logprobs.append(logprob)
        text = ""
        if token in self.stop_ids:
            self.finish_reason, self.stop_reason = "stop", token
            text = self._show(token, watch=False, silent=not self.params.include_stop)
        else:
            # The first min_tokens tokens end nothing, be it an id (the controls forbid those) or a string.
            text = self._show(token, watch=len(self.tokens) - self.prompt_length > self.params.min_tokens)
            if self.answer is not None and self.answer.stopped is not None:
                self.finish_reason, self.stop_reason = "stop", self.answer.stopped
        if self.finish_reason is None and self.remaining == 0:
            self.finish_reason = self.limit_reason
        return text

    def flush(self) -> str:
        """The text that was held back: the answer is over."""
        if self._stream is None or self.answer is None:
            return ""
        if self.answer.stopped is not None:
            return self.answer.flush()
        return self.answer.push(self._stream.flush(), watch=False) + self.answer.flush()

    def result(self, *, drafter: str, verifier: str, schedule: str, load: float, off_reason: str | None) -> Result:
        """The answer as it stands."""
        t = self.tally
        text = self.answer.text if self.answer is not None else ""
        return Result(
            text=text,
            token_ids=tuple(self.tokens[self.start :]),
            finish_reason=self.finish_reason or "unfinished",
            stop_reason=self.stop_reason,
            usage=Usage(self.start, self.emitted),
            speculation=Speculation(
                drafter=drafter if self.speculates else "none",
                verifier=verifier,
                schedule=schedule,
                rounds=t.rounds,
                drafted=t.drafted,
                accepted=t.accepted,
                emitted=self.emitted,
                drafted_at=tuple(t.drafted_at),
                accepted_at=tuple(t.accepted_at),
                surprises=t.surprises,
                off_reason=off_reason,
            ),
            timing=Timing(
                total=t.total_seconds,
                target=t.target_seconds,
                draft=t.draft_seconds,
                other=t.total_seconds - t.target_seconds - t.draft_seconds,
                load=load,
            ),
            seed=self.seed,
            origins=tuple(self.origins),
            # Tokens of a stop string that was cut off lie at the end of the text.
            offsets=tuple(min(offset, len(text)) for offset in self.offsets),
            logprobs=None if self.logprobs is None else tuple(self.logprobs),
            prompt_logprobs=self.prompt_logprobs,
        )

    def _show(self, token: int, *, watch: bool, silent: bool = False) -> str:
        if self._stream is None or self.answer is None:
            return ""
        self.offsets.append(len(self.answer))
        return "" if silent else self.answer.push(self._stream.push(token), watch=watch)
