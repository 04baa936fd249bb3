"""An answer on a terminal while it is being made: the text, and a status line under it.

Guarantees: accepted draft tokens look different from the target's own (colour and underline); finished lines scroll
away as ordinary text, so the answer can be copied and survives the end of the program. What it does not do: anything
when standard output is not a terminal; then the text alone is printed.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from draftproof.result import Event, FinishEvent, Result, TokenEvent
from draftproof.verify.base import Origin

STYLES = {
    Origin.ACCEPTED: "green underline",
    Origin.RESIDUAL: "yellow",
    Origin.BONUS: "",
    Origin.PLAIN: "",
}
LEGEND = "[green underline]accepted draft[/]  [yellow]correction[/]  target's own"


def show(events: Iterator[Event], console: Console) -> Result:
    """Stream the events to the console; returns the result. Not on a terminal: the plain text."""
    return _show_live(events, console) if console.is_terminal else _show_plain(events, console)


def _show_plain(events: Iterator[Event], console: Console) -> Result:
    for event in events:
        ended = isinstance(event, FinishEvent)
        console.file.write(event.text + "\n" * ended)
        console.file.flush()
        if isinstance(event, FinishEvent):
            return event.result
    raise AssertionError("a stream ends with a FinishEvent")


def _show_live(events: Iterator[Event], console: Console) -> Result:
    line = Text()
    counted = _Counts()
    with Live(console=console, refresh_per_second=12, transient=True) as live:
        for event in events:
            style = STYLES[event.origin] if isinstance(event, TokenEvent) else ""
            first, *others = event.text.split("\n")
            line.append(first, style)
            for rest in others:
                live.console.print(line)  # a finished line goes above the live part
                line = Text(rest, style)
            if isinstance(event, FinishEvent):
                live.console.print(line)
                return event.result
            counted.add(event)
            live.update(Group(line, counted.line()))
    raise AssertionError("a stream ends with a FinishEvent")


class _Counts:
    """The status line."""

    def __init__(self) -> None:
        self.started = perf_counter()
        self.tokens = self.accepted = self.rounds = 0

    def add(self, event: TokenEvent) -> None:
        self.tokens += 1
        self.accepted += event.origin is Origin.ACCEPTED
        self.rounds += event.origin is not Origin.ACCEPTED  # every round ends with a token of the target's own

    def line(self) -> Text:
        seconds = perf_counter() - self.started
        return Text(
            f"{self.tokens} tokens  {self.tokens / seconds:.1f} tokens/s  {self.accepted} from the draft  "
            f"{self.tokens / max(self.rounds, 1):.2f} tokens/round",
            "dim reverse",
        )


def summary(result: Result) -> Table:
    """What speculation did, as a small table."""
    s, t = result.speculation, result.timing
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    rate = result.usage.completion_tokens / t.total if t.total else 0.0
    table.add_row("tokens", f"{result.usage.completion_tokens} in {t.total:.2f} s = {rate:.1f} tokens/s")
    table.add_row("rounds", f"{s.rounds}, {s.tokens_per_round:.2f} tokens each")
    by_position = " ".join(f"{a:.2f}" for a in s.acceptance_by_position)
    rates = f"{s.acceptance_rate:.2f}" + (f", by position {by_position}" if by_position else "")
    table.add_row("accepted", f"{s.accepted} of {s.drafted} drafted = {rates}" if s.drafted else "nothing was drafted")
    table.add_row("time", f"target {t.target:.2f} s, draft {t.draft:.2f} s, rest {t.other:.2f} s (load {t.load:.2f} s)")
    table.add_row("parts", f"draft {s.drafter}, verifier {s.verifier}, schedule {s.schedule}")
    table.add_row("ended", f"{result.finish_reason}; seed {result.seed}")
    if s.off_reason:
        table.add_row("speculation off", s.off_reason)
    if s.surprises:
        table.add_row("surprises", f"{s.surprises} residuals without mass, drawn from p instead")
    return table
