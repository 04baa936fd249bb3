"""The answer on a terminal: accepted tokens look different, finished lines stay, the status line goes."""

import io

from rich.console import Console

from draftproof.cli.live import show, summary
from draftproof.draft.scripted import ScriptedDrafter
from draftproof.engine import Engine
from draftproof.result import FinishEvent, TokenEvent
from draftproof.sampling.params import SamplingParams
from draftproof.schedule.fixed import FixedSchedule
from draftproof.target.table import TableModel, TableTarget
from draftproof.text import IdTokenizer

UNDERLINED_GREEN = "\x1b[4;32m"
YELLOW = "\x1b[33m"


def events():
    """Three tokens a round: one accepted, then a correction or bonus, with a line break in one of them."""
    engine = Engine(
        TableTarget(TableModel({(): [0.5, 0.25, 0.25]}, 3)),
        drafter=ScriptedDrafter(lambda history, drafted: 0),
        schedule=FixedSchedule(2),
        tokenizer=IdTokenizer(3),
    )
    for event in engine.stream([0], SamplingParams(max_tokens=12, seed=4)):
        broken = isinstance(event, TokenEvent) and event.index == 5
        yield TokenEvent(event.request, event.index, event.token, "end\nnew ", event.origin) if broken else event


def shown(**options):
    file = io.StringIO()
    result = show(events(), Console(file=file, width=100, highlight=False, **options))
    return file.getvalue(), result


def test_on_a_terminal_accepted_tokens_and_corrections_are_styled_and_counts_shown():
    text, result = shown(force_terminal=True, color_system="standard")
    assert UNDERLINED_GREEN in text
    assert YELLOW in text
    assert "tokens/round" in text
    assert result.usage.completion_tokens == 12


def test_elsewhere_the_plain_text_alone_is_printed():
    text, result = shown()
    assert "\x1b" not in text
    pieces = [e.text for e in events() if not isinstance(e, FinishEvent)]
    assert text == "".join(pieces) + "\n"
    assert result.finish_reason == "length"


def test_the_summary_says_what_happened():
    file = io.StringIO()
    _, result = shown()
    Console(file=file, width=120).print(summary(result))
    text = file.getvalue()
    for part in ("12 in", "rounds", "accepted", "target", "scripted", "length; seed 4"):
        assert part in text
