"""The engine: requests join and leave, their answers come out; between that, rounds.

Guarantees: what is refused is refused before anything has joined; a request that has ended or was cancelled leaves
nothing behind; an interrupted call leaves the engine usable. What it does not do: rounds (`rounds`), load models
(`load`) or draw random numbers (`chance`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, TypedDict, Unpack

from draftproof import prompts
from draftproof.chance import fresh_seed
from draftproof.errors import InvalidValue
from draftproof.logprobs import prompt_logprobs
from draftproof.prompts import Prompt
from draftproof.result import Event, FinishEvent, Result
from draftproof.rounds import Observer, Rounds, Settled
from draftproof.sampling.controls import Controls
from draftproof.sampling.params import SamplingParams
from draftproof.sequence import Sequence

if TYPE_CHECKING:
    from draftproof.load import LoadOptions
    from draftproof.models.cache import Progress

__all__ = ["Engine", "Observer", "Prompt", "Settled"]


class LoadArguments(TypedDict, total=False):
    """The keywords of `Engine.load`; defaults and meaning: `draftproof.load.load_engine`."""

    draft: str
    verifier: str
    schedule: str
    draft_length: int
    options: LoadOptions | None
    progress: Progress


class Engine(Rounds):
    """Speculative decoding of one target with one drafter, one verifier and one schedule."""

    @staticmethod
    def load(model: str, **arguments: Unpack[LoadArguments]) -> Engine:
        """An engine ready to answer; the arguments are those of `draftproof.load.load_engine`."""
        from draftproof.load import load_engine

        return load_engine(model, **arguments)

    # -- requests ----------------------------------------------------------------------------------------

    def add(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        chat: bool | None = None,
        answered: Seq[int] = (),
        sample: int | None = None,
    ) -> int:
        """Join a request; it takes part from the next round on. Returns its id.

        prompt: text, chat messages, or token ids. Text goes through the chat template if the model has one,
        unless chat=False. sample: which of params.n answers this is (`add_all` joins them all).

        answered: tokens of the answer that an earlier request returned, to be continued. They count as answer for
        max_tokens, min_tokens, penalties, grammar and stop strings; the result is about the new tokens only. With the
        earlier result's seed, and in the modes whose text does not depend on rounds ("coupled", "match", or
        temperature 0), stopping and continuing gives what one request would have.

        Raises InvalidValue for an empty prompt, one that does not fit the context, or a budget that does not, and
        whatever the controls refuse; nothing has joined then. Prompt log-probabilities are computed here.
        """
        params = params or SamplingParams()
        if sample is None and params.n > 1:
            raise InvalidValue(f"n={params.n} for one sequence", "use add_all, or name the sample")
        ids = self.encode(prompt, chat=chat)
        prompts.check_ids(answered, self.target.vocab_size, "answered token")
        if params.stop and self.tokenizer is None:
            raise InvalidValue("stop strings without a tokenizer", "use stop_ids, or build the engine with one")
        limit, limit_reason = prompts.room(len(ids), len(answered), params, self.target.context_limit)
        controls = Controls(
            params,
            self.target.vocab_size,
            prompt=ids,
            eos_ids=self.target.eos_ids,
            tokenizer=self.tokenizer,
            processors=self.processors,
        )
        eos = frozenset() if params.ignore_eos else self.target.eos_ids
        sequence = Sequence(
            id=next(self._ids),
            handle=self.target.open(),
            prompt=ids,
            answered=answered,
            params=params,
            seed=fresh_seed() if params.seed is None else params.seed,
            sample=sample or 0,
            stop_ids=eos | params.stop_ids,
            limit=limit,
            limit_reason=limit_reason,
            controls=controls,
            tokenizer=self.tokenizer,
        )
        try:
            self._score_prompt(sequence)
            if sequence.speculates:
                self.drafter.open(sequence.id)
        except BaseException:
            self.target.close(sequence.handle)
            raise
        self.live[sequence.id] = sequence
        return sequence.id

    def add_all(self, prompt: Prompt, params: SamplingParams | None = None, *, chat: bool | None = None) -> list[int]:
        """Join params.n independent answers to one prompt, with one seed; their ids, sample 0 first."""
        params = params or SamplingParams()
        if params.n > 1 and params.seed is None:
            params = replace(params, seed=fresh_seed())
        joined: list[int] = []
        try:
            joined.extend(self.add(prompt, params, chat=chat, sample=sample) for sample in range(params.n))
        except BaseException:
            self._cancel_live(joined)
            raise
        return joined

    def cancel(self, request: int) -> Result:
        """End a live request now; what was committed stands, with finish_reason "cancelled"."""
        if request not in self.live:
            raise InvalidValue(f"request {request} is not live", "it has ended, or never joined")
        sequence = self.live[request]
        sequence.finish_reason = "cancelled"
        sequence.flush()
        return self._leave(sequence)

    def encode(self, prompt: Prompt, *, chat: bool | None = None) -> list[int]:
        """Token ids of a prompt, checked against the vocabulary (`prompts.encode`)."""
        return prompts.encode(prompt, self.tokenizer, self.target.vocab_size, chat=chat)

    # -- whole answers -----------------------------------------------------------------------------------

    def generate(self, prompt: Prompt, params: SamplingParams | None = None, *, chat: bool | None = None) -> Result:
        """The answer to one prompt. Other live requests go on meanwhile; their events are lost to `round`."""
        return self._await([self.add_all(prompt, params, chat=chat)])[0]

    def generate_all(
        self,
        prompts: Seq[Prompt],
        params: SamplingParams | Seq[SamplingParams] | None = None,
        *,
        chat: bool | None = None,
    ) -> list[Result]:
        """The answers to several prompts, decoded together; params for all of them or one for each."""
        each = [params or SamplingParams()] * len(prompts) if not isinstance(params, Seq) else params
        if len(each) != len(prompts):
            raise InvalidValue(f"{len(each)} params for {len(prompts)} prompts", "one for all, or one for each")
        return self._await(self.add_all(p, s, chat=chat) for p, s in zip(prompts, each, strict=True))

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, chat: bool | None = None
    ) -> Iterator[Event]:
        """The events of the answer (with n > 1: of all n) as they happen; closing the iterator cancels it."""
        requests = self.add_all(prompt, params, chat=chat)
        try:
            while any(request in self.live for request in requests):
                yield from (event for event in self.round() if event.request in requests)
        finally:
            self._cancel_live(requests)

    def _await(self, joining: Iterable[list[int]]) -> list[Result]:
        """Join requests, each a group of answers to one prompt, and run rounds until all have ended."""
        groups: list[list[int]] = []
        results: dict[int, Result] = {}
        try:
            groups.extend(joining)
            waiting = {request for group in groups for request in group}
            while waiting:
                for event in self.round():
                    if isinstance(event, FinishEvent) and event.request in waiting:
                        results[event.request] = event.result
                        waiting.remove(event.request)
        finally:
            self._cancel_live([request for group in groups for request in group])
        answers = [[results[request] for request in group] for group in groups]
        return [replace(first, alternatives=tuple(others)) if others else first for first, *others in answers]

    def _cancel_live(self, requests: Seq[int]) -> None:
        for request in requests:
            if request in self.live:
                self.cancel(request)

    def _score_prompt(self, s: Sequence) -> None:
        if s.params.prompt_logprobs is None:
            return
        started = perf_counter()
        prompt = s.tokens[: s.prompt_length]
        s.prompt_logprobs = prompt_logprobs(self.target, s.handle, prompt, s.controls, s.params.prompt_logprobs)
        seconds = perf_counter() - started
        s.tally.target_seconds += seconds
        s.tally.total_seconds += seconds
