"""What a user may ask of an answer.

Guarantees: refuses bad values on construction, by name, value and legal range. What it does not do: apply them;
that is `controls` for rows and `sequence` for stops.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from draftproof.errors import InvalidValue


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling controls and stop rules of one request.

    max_tokens: most tokens to emit, >= 1; None means up to the context limit.
    temperature: >= 0; 0 is argmax, ties to the smallest id, and uses no randomness.
    seed: 0..2**64-1; None takes one from the operating system and reports it.
    stop_ids: ids that end the answer as the model's own EOS ids do.
    ignore_eos: do not end at the model's EOS ids.
    """

    max_tokens: int | None = 256
    temperature: float = 1.0
    seed: int | None = None
    stop_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens is not None and (not isinstance(self.max_tokens, int) or self.max_tokens < 1):
            raise InvalidValue(f"max_tokens={self.max_tokens}", "an integer >= 1, or None for the context limit")
        if not math.isfinite(self.temperature) or self.temperature < 0:
            raise InvalidValue(f"temperature={self.temperature}", "a finite number >= 0")
        if self.seed is not None and not 0 <= self.seed < 2**64:
            raise InvalidValue(f"seed={self.seed}", "an integer in 0..2**64-1, or None")
        object.__setattr__(self, "stop_ids", frozenset(self.stop_ids))

    def __deepcopy__(self, memo: dict[int, object]) -> SamplingParams:
        return self  # immutable
