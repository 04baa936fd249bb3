"""Whether drafting pays: tokens and seconds of the rounds that drafted against those of plain rounds in their place.

What it is for: switching off a drafter that costs more than it brings, on the evidence of a few rounds. Guarantees: a
function of past rounds. What it does not do: compare lengths (`prefix`, `width`).
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from itertools import zip_longest

from draftproof.schedule.trust import Trust

KEPT = 0.95  # weight of a round one round later: about the last 20 decide


class Balance:
    """Tokens and seconds of the rounds that drafted, of late, and what plain rounds in their place would have given.

    What a few rounds really brought is mostly luck, which would switch a drafter off that pays a little. So tokens are
    what the confidences of late promised, times how much of such promises was kept over many rounds (`trust`): the same
    mean, a fraction of the noise.
    """

    def __init__(self, trust: Trust) -> None:
        self._trust = trust
        self.forget()

    def forget(self) -> None:
        """From now on other lengths are drafted: what these brought says nothing of them."""
        self.promised = [0.0] * len(self._trust.kept)  # by position
        self.plain_tokens = self.seconds = self.draft_seconds = self.plain_seconds = 0.0

    def add(
        self, requests: int, promised: Seq[float], seconds: float, plain_seconds: float, draft_seconds: float
    ) -> None:
        """One more round that drafted. promised: by position. seconds: of all of it, draft_seconds among them."""
        self.promised = [KEPT * old + new for old, new in zip_longest(self.promised, promised, fillvalue=0.0)]
        self.plain_tokens = KEPT * self.plain_tokens + requests
        self.seconds = KEPT * self.seconds + seconds
        self.draft_seconds = KEPT * self.draft_seconds + draft_seconds
        self.plain_seconds = KEPT * self.plain_seconds + plain_seconds

    @property
    def tokens(self) -> float:
        """Of the rounds that drafted."""
        return self.plain_tokens + sum(kept * a for kept, a in zip(self._trust.kept, self.promised, strict=True))

    @property
    def rate(self) -> float:
        """Tokens a second of the rounds that drafted; 0 before the first."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def worth(self) -> float:
        """Seconds that drafting for one request may take if it is to cost nothing; 0 before the first round."""
        if not self.plain_tokens:
            return 0.0
        as_plain = self.tokens * self.plain_seconds / self.plain_tokens
        return max(0.0, as_plain - (self.seconds - self.draft_seconds)) / self.plain_tokens

    @property
    def pays(self) -> bool:
        """Whether drafting made more tokens a second; true before the first round."""
        return self.tokens * self.plain_seconds >= self.plain_tokens * self.seconds

    def __str__(self) -> str:
        drafting, plain = self.tokens / self.seconds, self.plain_tokens / self.plain_seconds
        return f"{drafting:.3g} tokens a second with it, {plain:.3g} without"
