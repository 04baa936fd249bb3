"""What a round costs on the machine at hand: seconds of a target pass by rows and context.

What it is for: schedules weigh expected tokens against these seconds. A curve is measured on the loaded target in
well under two seconds, or given (simulation, proofs), and refined from real rounds. `switch` is what a pass costs more
when it has other rows than the one before it: some runtimes then prepare their kernels anew.

Guarantees: never decreasing in rows; between measured points it is linear, beyond them it goes on with the last slope
or that of the whole curve, whichever is steeper, until real rounds of such a width have shown what they cost. Real
rounds move the whole curve (by context), and what some rows cost beside others. What it does not do: know why a machine
is slow; rounds that are off by more than `DRIFT` mark the curve as stale.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left, insort
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from time import perf_counter

from draftproof.errors import InvalidValue
from draftproof.schedule.base import RoundRecord
from draftproof.target.base import Feed, Target

ROWS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
DRIFT = 0.3  # share by which real rounds may disagree with the curve before it is measured again
DEEP = 512  # tokens of context that may make a pass twice as dear, and are then no disagreement
MEMORY = 0.9  # weight kept by what was known when a round adds its own time
SHAPE = 0.05  # share by which two passes of other rows, one after the other, move what the curve says of either
SCRATCH = 16  # tokens of context on which passes are timed
RUN = 4  # passes of one width in a row, when a curve is measured
NOTICED = 0.1  # of a pass of one row: a change of width that costs less is taken to cost nothing
STEADY = 16  # rounds that must agree that the curve is wrong


class CostCurve:
    """seconds(rows, context), from points {rows: seconds} measured at a short context.

    refine=False keeps the points as given: proofs and simulations need schedules that do not read clocks.
    """

    def __init__(self, points: Mapping[int, float], *, refine: bool = True, switch: float = 0.0) -> None:
        if not points or any(rows < 1 or not 0 < seconds < math.inf for rows, seconds in points.items()):
            raise InvalidValue(f"cost curve {dict(points)}", "{rows >= 1: seconds > 0}, at least one point")
        if not 0 <= switch < math.inf:
            raise InvalidValue(f"switch={switch}", "seconds >= 0")
        self.switch = switch
        self._last_rows = 0
        self._rows = tuple(sorted(points))
        self._seconds = tuple(_rising([points[rows] for rows in self._rows]))
        self._wide = _Wide(self._rows[-1], self._seconds[-1], self._slope())
        self._measured = [self._between(rows) for rows in range(self._rows[-1] + 1)]
        self._narrow = self._measured  # with `_shape`; asked many times a round
        self.refine = refine
        self._scale: dict[int, float] = {}
        self._shape: dict[int, float] = {}  # by rows: what they cost beside others, as a share of what was measured
        self._before: tuple[int, float] | None = None
        self._disagreed = 0

    @property
    def points(self) -> dict[int, float]:
        """The measured points, made non-decreasing."""
        return dict(zip(self._rows, self._seconds, strict=True))

    @property
    def stale(self) -> bool:
        """Whether the last STEADY rounds all took another time than was measured, by more than DRIFT and context."""
        return self._disagreed >= STEADY

    def seconds(self, rows: int, context: int = 0) -> float:
        """Expected seconds of one target pass over `rows` rows in all."""
        return self._base(rows) * self._scale_at(context)

    def at(self, context: int) -> Callable[[int], float]:
        """`seconds` at one context, for those who ask about many numbers of rows."""
        base, scale = self._base, self._scale_at(context)
        return lambda rows: base(rows) * scale

    def changes(self, rows: int) -> bool:
        """Whether a pass over these rows has other rows than the last one."""
        return rows != self._last_rows

    def other_pass(self) -> None:
        """A pass that is no round's (it read a prompt): nothing is learnt of it, and the next one is a change."""
        self._last_rows = 0
        self._before = None

    def observe(self, rows: int, context: int, seconds: float) -> None:
        """A round's pass took this long."""
        changed, self._last_rows = self.changes(rows), rows
        if not self.refine or seconds <= 0 or (self.switch and changed):
            return
        known = self._scale_at(context)
        if rows > self._rows[-1]:
            self._wide.observe(rows, seconds / known)
            return
        ratio = seconds / self._base(rows)
        wrong = not 1 / (1 + DRIFT) <= ratio <= (1 + DRIFT) * (1 + context / DEEP)
        self._disagreed = self._disagreed + 1 if wrong else 0
        self._scale[_bucket(context)] = MEMORY * known + (1 - MEMORY) * ratio
        self._learn_shape(rows, ratio)

    def _learn_shape(self, rows: int, ratio: float) -> None:
        """What rows cost beside others is not what it was when they were timed: two passes in a row tell, whatever else
        has made the machine slow or fast.
        """
        before, self._before = self._before, (rows, ratio)
        if before is None or before[0] == rows:
            return
        off = min(max(ratio / before[1], 1 / (1 + DRIFT)), 1 + DRIFT) - 1  # a hiccup is no cost
        for each, sign in ((rows, 1), (before[0], -1)):
            self._shape[each] = self._shape.get(each, 1.0) * (1 + sign * SHAPE * off)
        self._narrow = _rising([s * self._shape.get(rows, 1.0) for rows, s in enumerate(self._measured)])

    def _base(self, rows: int) -> float:
        return self._narrow[rows] if rows < len(self._narrow) else max(self._narrow[-1], self._wide.seconds(rows))

    def _between(self, rows: int) -> float:
        at, seconds = self._rows, self._seconds
        if rows <= at[0]:
            return seconds[0]
        i = bisect_left(at, rows)
        slope = (seconds[i] - seconds[i - 1]) / (at[i] - at[i - 1])
        return seconds[i] + slope * (rows - at[i])

    def _slope(self) -> float:
        """Seconds of a further row. A last point that came out too low must not make all further rows free."""
        at, seconds = self._rows, self._seconds
        if len(at) == 1:
            return seconds[0] / at[0]  # one point alone: as many times as dear
        last = (seconds[-1] - seconds[-2]) / (at[-1] - at[-2])
        return max(last, (seconds[-1] - seconds[0]) / (at[-1] - at[0]))

    def _scale_at(self, context: int) -> float:
        if not self._scale:
            return 1.0
        bucket = _bucket(context)
        known = self._scale.get(bucket)
        if known is not None:
            return known
        return self._scale[min(self._scale, key=lambda known: abs(known - bucket))]


class _Wide:
    """Passes beyond the measured points: a line, bent to what real rounds of such widths took."""

    def __init__(self, rows: int, seconds: float, slope: float) -> None:
        self._from, self._first, self._slope = rows, seconds, slope
        self._known: dict[int, float] = {}
        self._at: list[int] = []

    def observe(self, rows: int, seconds: float) -> None:
        """A round of so many rows took this long, had its context been short."""
        known = self._known.get(rows)
        if known is None:
            insort(self._at, rows)
        self._known[rows] = seconds if known is None else MEMORY * known + (1 - MEMORY) * seconds

    def seconds(self, rows: int) -> float:
        """Between known widths linear, beyond the last with the slope of the line; never less than a narrower one."""
        i = bisect_left(self._at, rows)
        low_at, low = (self._from, self._first) if not i else (self._at[i - 1], self._highest(i))
        if i == len(self._at):
            return low + self._slope * (rows - low_at)
        high = max(low, self._known[self._at[i]])
        return low + (high - low) * (rows - low_at) / (self._at[i] - low_at)

    def _highest(self, count: int) -> float:
        return max(self._first, *(self._known[rows] for rows in self._at[:count]))


def learn_pass(costs: CostCurve, record: RoundRecord, width: int) -> None:
    """Refine the curve from a round whose parts were filled up to `width`, unless its pass read a prompt."""
    requests = len(record.slots)
    if record.read_prompt:
        costs.other_pass()
        return
    context = max((slot.length for slot in record.slots), default=0)
    costs.observe(max(record.rows, requests * width), context, record.target_seconds)


def measure(
    target: Target, *, longest: int, budget: float = 1.0, clock: Callable[[], float] = perf_counter
) -> CostCurve:
    """Time passes of 1..longest+1 rows on a scratch sequence: medians of interleaved repeats in `budget` seconds, or
    three passes of every width where those take longer.
    """
    widest = max(longest + 1, 2)
    wanted = [*(rows for rows in ROWS if rows < widest), widest]
    if target.context_limit is not None:
        wanted = [rows for rows in wanted if rows + SCRATCH <= target.context_limit] or [1]
    seconds, switch = time_passes(target, 1, wanted, budget=budget, clock=clock)
    return CostCurve(seconds, switch=switch)


def time_passes(
    target: Target, sequences: int, rows: Seq[int], *, budget: float = 1.0, clock: Callable[[], float] = perf_counter
) -> tuple[dict[int, float], float]:
    """Median seconds of passes of so many sequences, by rows of each, and what a change of rows costs more.

    In `budget` seconds: RUN passes of every width in turn, repeated; two, where a round of that takes longer than the
    budget. The first of a run has other rows than the pass before it. Less than NOTICED of the narrowest pass is noise,
    and given as 0.
    """
    token = next(i for i in range(target.vocab_size) if i not in target.eos_ids or target.vocab_size == 1)
    handles = [target.open() for _ in range(sequences)]
    times: dict[int, list[float]] = {each: [] for each in rows}
    firsts: dict[int, list[float]] = {each: [] for each in rows}

    def once(each: int) -> float:
        started = clock()
        target.score([Feed(handle, [token] * each, rows=each) for handle in handles])
        for handle in handles:
            target.rollback(handle, SCRATCH)
        return clock() - started

    try:
        target.score([Feed(handle, [token] * SCRATCH, rows=1) for handle in handles])
        first_calls = sum(once(each) for each in rows)  # which compile or allocate: not the cost of a round
        run = RUN if RUN * first_calls <= budget else 2
        ends = clock() + budget
        while clock() < ends or not all(times.values()):
            for each in rows:
                first, *others = [once(each) for _ in range(run)]
                firsts[each].append(first)
                times[each] += others
    finally:
        for handle in handles:
            target.close(handle)
    medians = {each: statistics.median(seconds) for each, seconds in times.items()}
    switch = statistics.median(statistics.median(firsts[each]) - medians[each] for each in rows)
    return medians, switch if len(rows) > 1 and switch > NOTICED * medians[rows[0]] else 0.0


def _rising(seconds: Seq[float]) -> list[float]:
    rising: list[float] = []
    for value in seconds:
        rising.append(max(value, rising[-1]) if rising else value)
    return rising


def _bucket(context: int) -> int:
    return max(context, 1).bit_length()
