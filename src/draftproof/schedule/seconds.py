"""Seconds as schedules learn them: running averages that a hiccup does not move.

What it is for: a schedule compares seconds of drafting with seconds of passes. A first call that compiles something, a
machine busy for a moment: one such round can take twenty times as long, and a drafter that is then believed to be dear
is hardly asked any more, so that the belief stays.

Guarantees: a first round counts for nothing. One round in RARE that takes more than OUTLIER times what is known does
not count either; a second one does, so that a drafter which is slow now and then, or has become slower, is believed at
once. What it does not do: look at clocks.
"""

from __future__ import annotations

OUTLIER = 3.0
RARE = 16  # rounds
MEMORY = 0.9  # weight kept by a running average when a round adds its own
LINE_MEMORY = 1 - 1 / 16  # the same for the level of the line
SLOPE_MEMORY = 0.998  # and for its slope, of rounds of other lengths: a token costs little beside the noise of a block
LEVEL = 0.6  # share of a block's cost that does not depend on its length, before it was seen
DOUBT = 0.5  # sum of squares of lengths at which what was seen counts as much as that belief


class Seconds:
    """A running average. value: None until something was seen or given."""

    def __init__(self, known: float | None = None) -> None:
        self.value = known
        self._hiccups = _Hiccups()

    @property
    def expected(self) -> float:
        """The value; 0 until there is one."""
        return self.value or 0.0

    def observe(self, seen: float) -> None:
        """One more round."""
        if self._hiccups.usual(self.value, seen):
            self.value = seen if self.value is None else MEMORY * self.value + (1 - MEMORY) * seen


class RestSeconds:
    """What a round takes beside passes and drafting: less where no draft is verified."""

    def __init__(self) -> None:
        self._plain, self._judging = Seconds(), Seconds()

    def observe(self, seconds: float, *, judged: bool) -> None:
        """One more round. judged: drafts were verified in it."""
        (self._judging if judged else self._plain).observe(seconds)

    def __call__(self, *, judged: bool) -> float:
        """Expected seconds; 0 until something was seen, and no difference before both were."""
        plain, judging = self._plain.value, self._judging.value
        if plain is None or judging is None:
            return plain or judging or 0.0
        return max(plain, judging) if judged else plain


class DraftSeconds:
    """Seconds of drafting n tokens, as a line: a block costs its pass whatever it holds.

    Its level is that of late; its slope is that of the rounds whose lengths told something of it, however long ago, and
    before there were any, LEVEL of the cost is taken not to depend on lengths. None until something was seen.
    """

    def __init__(self) -> None:
        self._hiccups = _Hiccups()
        self._weight = self._tokens = self._seconds = 0.0  # of late
        self._spread = self._together = 0.0  # of tokens, squared, and of tokens and seconds, about those of late

    def counted(self, tokens: float, seconds: float, rounds: int) -> float:
        """What a block counts for that came so many rounds after the last one: a drafter that had to catch up with
        rounds without a block would take this at most, round after round.
        """
        return seconds if rounds <= 1 else min(seconds, self(tokens) or seconds)

    def observe(self, tokens: float, seconds: float) -> None:
        """A round drafted so many tokens for each of its requests, on the mean."""
        if not self._hiccups.usual(self(tokens), seconds):
            return
        if self._weight:
            apart = tokens - self._tokens / self._weight
            memory = SLOPE_MEMORY ** min(apart * apart, 1.0)
            self._spread = memory * self._spread + apart * apart
            self._together = memory * self._together + apart * (seconds - self._seconds / self._weight)
        self._weight = LINE_MEMORY * self._weight + 1
        self._tokens = LINE_MEMORY * self._tokens + tokens
        self._seconds = LINE_MEMORY * self._seconds + seconds

    @property
    def mean(self) -> float | None:
        """Seconds of a round's drafting of late."""
        return self._seconds / self._weight if self._weight else None

    @property
    def slope(self) -> float:
        """Seconds that one more token for each request takes; 0 until something was seen."""
        if not self._weight:
            return 0.0
        each = self._seconds / self._tokens
        slope = (self._together + DOUBT * (1 - LEVEL) * each) / (self._spread + DOUBT)
        return min(max(slope, 0.0), each)

    def __call__(self, tokens: float) -> float | None:
        """Expected seconds; 0 for no tokens."""
        if not self._weight or not tokens:
            return 0.0 if self._weight else None
        return (self._seconds + self.slope * (tokens * self._weight - self._tokens)) / self._weight


class _Hiccups:
    """Tells what is usual from what is not."""

    def __init__(self) -> None:
        self._seen = 0
        self._last = -RARE

    def usual(self, expected: float | None, seen: float) -> bool:
        """Whether the next round counts, given what was expected of it."""
        self._seen += 1
        if expected is None:
            return self._seen > 1
        if expected == 0 or seen <= OUTLIER * expected:
            return True
        again, self._last = self._seen - self._last <= RARE, self._seen
        return again
