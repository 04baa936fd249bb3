"""Whether drafting pays: tokens and seconds of the rounds that drafted against those of plain rounds in their place.

What it is for: switching off a drafter that costs more than it brings, on the evidence of a few rounds. Guarantees: a
function of past rounds. What it does not do: compare lengths (`prefix`, `width`).
"""

from __future__ import annotations

from dataclasses import dataclass

KEPT = 0.95  # weight of a round one round later: about the last 20 decide
LONG = 0.998  # the same for how far confidences are trusted: about the last 500 rounds
FADING = 0.97  # weight of what is known of promises after a block that was seen and not verified
BELIEF = 8.0  # tokens' worth of belief that confidences are true, before anything was seen
LEAST = 4.0  # tokens' worth of what was seen long ago
HOPE = 1e-6  # share of promises that is believed whatever was seen: thresholds divide by it


@dataclass(slots=True)
class Balance:
    """Tokens and seconds of the rounds that drafted, of late, and what plain rounds in their place would have given.

    What a few rounds really brought is mostly luck, which would switch a drafter off that pays a little. So tokens are
    what the confidences of late promised, times how much of such promises was kept over many rounds: the same mean, a
    fraction of the noise.
    """

    plain_tokens: float = 0.0
    promised: float = 0.0
    seconds: float = 0.0
    draft_seconds: float = 0.0  # of those
    plain_seconds: float = 0.0
    long_promised: float = BELIEF
    long_accepted: float = BELIEF

    def doubt(self) -> None:
        """A block was seen and not verified: less is known of promises than before, and they are believed again."""
        self.long_promised = FADING * self.long_promised + (1 - FADING) * BELIEF
        self.long_accepted = FADING * self.long_accepted + (1 - FADING) * BELIEF

    def trust(self, promised: float, accepted: int, rounds: int = 1) -> None:
        """Learn how much of promises is kept. rounds: since last time; what was known is older by as much, and is
        worth no less than LEAST tokens.
        """
        memory = max(LONG**rounds, min(1.0, LEAST / self.long_promised))
        self.long_promised = memory * self.long_promised + promised
        self.long_accepted = memory * self.long_accepted + accepted

    def add(self, requests: int, promised: float, seconds: float, plain_seconds: float, draft_seconds: float) -> None:
        """One more round that drafted. seconds: of all of it, draft_seconds among them."""
        self.plain_tokens = KEPT * self.plain_tokens + requests
        self.promised = KEPT * self.promised + promised
        self.seconds = KEPT * self.seconds + seconds
        self.draft_seconds = KEPT * self.draft_seconds + draft_seconds
        self.plain_seconds = KEPT * self.plain_seconds + plain_seconds

    def forget(self) -> None:
        """From now on other lengths are drafted: what these brought says nothing of them."""
        self.plain_tokens = self.promised = self.seconds = self.draft_seconds = self.plain_seconds = 0.0

    @property
    def kept(self) -> float:
        """The share of promises that was kept over many rounds."""
        return max(self.long_accepted / self.long_promised, HOPE)

    @property
    def tokens(self) -> float:
        """Of the rounds that drafted."""
        return self.plain_tokens + self.kept * self.promised

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
