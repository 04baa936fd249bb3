"""One prompt, answered by every mode in small turns.

What it is for: a machine that is a fifth slower now than a minute ago. Modes that can (`TakesTurns`) bring their
answers forward by TURN tokens each, again and again, so that all of them meet every moment of the machine, and the
same contexts, alike. Modes that cannot answer in one piece; they come one at a time, between the turns.

Guarantees: modes come in the order given at first, then in every turn in another one, drawn with the request's seed:
what one leaves behind in caches, or a machine that is slow once a second, would otherwise always meet the same one. A
mode that fails is left out, the others go on; nothing is left behind when anything else breaks. What it does not do:
look at clocks.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from random import Random

from draftproof.bench.answers import Answer, Answering
from draftproof.bench.modes import Mode, ModeFailed, TakesTurns
from draftproof.sampling.params import SamplingParams

TURN = 16  # tokens: a tenth of a second of plain decoding of a small model


def answer_in_turns(
    modes: Seq[Mode], prompt: Seq[int], params: SamplingParams, *, floor: bool
) -> dict[str, Answer | ModeFailed]:
    """The answer of every mode, by its name, or why there is none."""
    answers: dict[str, Answer | ModeFailed] = {}
    started: dict[str, Answering] = {}
    waiting, order = list(modes), Random(params.seed)
    try:
        for mode in modes:
            if isinstance(mode, TakesTurns):
                started[mode.name] = mode.start(prompt, params, floor=floor)
        goal = 0
        while waiting:
            goal += TURN
            whole = next((mode for mode in waiting if mode.name not in started), None)
            due = [mode for mode in waiting if mode.name in started or mode is whole]
            if goal > TURN:
                order.shuffle(due)
            for mode in due:
                found: Answer | ModeFailed | None
                try:
                    found = mode.answer(prompt, params, floor=floor) if mode is whole else started[mode.name].go(goal)
                except ModeFailed as error:
                    found = error
                if found is not None:
                    answers[mode.name] = found
                    waiting.remove(mode)
    finally:
        for answering in started.values():
            answering.close()
    return answers
