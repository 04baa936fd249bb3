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
LINE_MEMORY = 1 - 1 / 16  # the same for the line
LEVEL = 0.6  # share of a block's cost that does not depend on its length, before it was seen
DOUBT = 0.1  # variance of lengths at which what was seen counts as much as that belief


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
    """Seconds of drafting n tokens, as a line through what was seen of late: a block costs its pass whatever it holds.

    Before lengths have differed, `level` of the cost is taken not to depend on them. memory: weight kept when a round
    adds its own. None until something was seen.
    """

    def __init__(self, *, level: float = LEVEL, memory: float = LINE_MEMORY) -> None:
        self._level, self._memory = level, memory
        self._hiccups = _Hiccups()
        self._count = self._x = self._y = self._xx = self._xy = 0.0

    def observe(self, tokens: int, seconds: float) -> None:
        """A round drafted so many tokens in all of its longest block."""
        if not self._hiccups.usual(self(tokens), seconds):
            return
        self._count = self._memory * self._count + 1
        self._x = self._memory * self._x + tokens
        self._y = self._memory * self._y + seconds
        self._xx = self._memory * self._xx + tokens * tokens
        self._xy = self._memory * self._xy + tokens * seconds

    def __call__(self, tokens: int) -> float | None:
        """Expected seconds; 0 for no tokens."""
        if not self._count or not tokens:
            return 0.0 if self._count else None
        x, y = self._x / self._count, self._y / self._count
        spread, together = self._xx / self._count - x * x, self._xy / self._count - x * y
        believed = (1 - self._level) * y / x
        slope = (together + DOUBT * believed) / (max(spread, 0.0) + DOUBT)
        return y + min(max(slope, 0.0), y / x) * (tokens - x)


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
