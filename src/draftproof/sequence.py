"""One request: its tokens, stop rules, text, random streams and counters.

Guarantees: tokens are committed one at a time and the first event wins; ids, text, usage and statistics all end
at the same token. At one token, a stop comes before the budget. What it does not do: decide tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from draftproof.result import Result, Speculation, Timing, Usage
from draftproof.sampling.controls import Controls
from draftproof.sampling.params import SamplingParams
from draftproof.text import TextStream, Tokenizer
from draftproof.verify.base import Origin


@dataclass(slots=True)
class Tally:
    """Counters of one sequence; see `result.Speculation` for what they mean."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    surprises: int = 0
    drafted_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)
    target_seconds: float = 0.0
    draft_seconds: float = 0.0
    total_seconds: float = 0.0

    def count_round(self, drafted: int) -> None:
        """A round verified `drafted` tokens of this sequence."""
        self.rounds += 1
        self.drafted += drafted
        missing = drafted - len(self.drafted_at)
        if missing > 0:
            self.drafted_at.extend([0] * missing)
            self.accepted_at.extend([0] * missing)
        for k in range(drafted):
            self.drafted_at[k] += 1

    def count_accepted(self, position: int) -> None:
        """The drafted token at this position of the block was accepted and emitted."""
        self.accepted += 1
        self.accepted_at[position] += 1


class Sequence:
    """A live request. Owned by the engine; drafters and schedules see parts of it, read only."""

    __slots__ = (
        "controls",
        "finish_reason",
        "handle",
        "id",
        "limit",
        "origins",
        "params",
        "prompt_length",
        "sample",
        "seed",
        "stop_ids",
        "stream",
        "tally",
        "tokens",
    )

    def __init__(
        self,
        *,
        id: int,
        handle: int,
        prompt: list[int],
        params: SamplingParams,
        seed: int,
        stop_ids: frozenset[int],
        limit: int,
        controls: Controls,
        tokenizer: Tokenizer | None,
        sample: int = 0,
    ) -> None:
        self.id = id
        self.handle = handle
        self.tokens = list(prompt)
        self.prompt_length = len(prompt)
        self.params = params
        self.seed = seed
        self.sample = sample
        self.stop_ids = stop_ids
        self.limit = limit  # most tokens of the answer: the budget or what the context leaves, whichever is less
        self.controls = controls
        self.stream = TextStream(tokenizer) if tokenizer else None
        self.tally = Tally()
        self.origins: list[Origin] = []
        self.finish_reason: str | None = None

    @property
    def emitted(self) -> int:
        """Tokens of the answer so far."""
        return len(self.tokens) - self.prompt_length

    @property
    def remaining(self) -> int:
        """Tokens the answer may still get."""
        return self.limit - self.emitted

    def commit(self, token: int, origin: Origin) -> str:
        """Append one token; returns the text that became certain. Sets `finish_reason` when it ends the answer."""
        assert self.finish_reason is None
        assert self.remaining > 0
        self.tokens.append(token)
        self.origins.append(origin)
        self.controls.commit(token)
        text = ""
        if token in self.stop_ids:
            self.finish_reason = "stop"  # the stop token is part of the ids, not of the text
        elif self.stream is not None:
            text = self.stream.push(token)
        if self.finish_reason is None and self.remaining == 0:
            self.finish_reason = "length"
        return text

    def result(self, *, drafter: str, verifier: str, schedule: str, load: float, off_reason: str | None) -> Result:
        """The answer as it stands."""
        t = self.tally
        return Result(
            text=self.stream.text if self.stream else "",
            token_ids=tuple(self.tokens[self.prompt_length :]),
            finish_reason=self.finish_reason or "unfinished",
            usage=Usage(self.prompt_length, self.emitted),
            speculation=Speculation(
                drafter=drafter,
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
        )
