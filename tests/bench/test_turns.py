"""Turns: every mode meets every moment of the machine."""

from itertools import pairwise

import pytest
from bench_kit import PASS, SIZE, ClockedTarget, FakeClock, ScriptedMode, lookup, parts, plain, seconds

from draftproof.bench.modes import EngineMode, ModeFailed, Spec
from draftproof.bench.turns import answer_in_turns
from draftproof.sampling.params import SamplingParams

PROMPT = [*range(SIZE), 0, 1]
PARAMS = SamplingParams(temperature=0, max_tokens=65, seed=1)


class Diary(ClockedTarget):
    """Writes down whose tokens were scored; tells sequences apart by the order in which they joined."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.scored: list[int] = []

    def score(self, feeds):
        self.scored.append(feeds[0].handle)
        return super().score(feeds)


def test_modes_of_this_engine_come_forward_together() -> None:
    target = Diary(FakeClock())
    p = parts(target.clock, target)
    modes = [plain(p), EngineMode(Spec("lookup", "token", "fixed", 0), p)]
    answers = answer_in_turns(modes, PROMPT, PARAMS, floor=False)
    assert [len(answer.tokens) for answer in answers.values()] == [PARAMS.max_tokens] * 2
    assert answers["plain"].decode_seconds == 64 * PASS
    first, second = sorted(set(target.scored))
    ahead = [target.scored[:i].count(first) - target.scored[:i].count(second) for i in range(len(target.scored))]
    assert max(map(abs, ahead)) <= 17
    assert 5 <= sum(a != b for a, b in pairwise(target.scored)) <= 2 * 5 - 1


def test_no_mode_always_follows_the_same_one() -> None:
    target = Diary(FakeClock())
    p = parts(target.clock, target)
    modes = [plain(p), *(EngineMode(Spec("lookup", "token", "fixed", n), p) for n in (0, 1))]
    params = SamplingParams(temperature=0, max_tokens=16 * 12, seed=1)
    answer_in_turns(modes, PROMPT, params, floor=False)
    who = [target.scored[0], *(b for a, b in pairwise(target.scored) if a != b)]
    assert set(pairwise(who)) == {(a, b) for a in set(who) for b in set(who) if a != b}
    again = Diary(FakeClock())
    p = parts(again.clock, again)
    answer_in_turns(
        [plain(p), *(EngineMode(Spec("lookup", "token", "fixed", n), p) for n in (0, 1))], PROMPT, params, floor=False
    )
    assert again.scored == target.scored  # the seed decides


def test_a_machine_that_becomes_slow_leaves_ratios_alone() -> None:
    """Three times as slow from the middle of the run on: one answer after the other, so would the second one look."""
    clock = FakeClock()
    target = ClockedTarget(clock)
    p = parts(clock, target)
    modes = [plain(p), EngineMode(Spec("lookup", "token", "fixed", 0), p)]
    answer_in_turns(modes, PROMPT, PARAMS, floor=True)
    half, inner = len(target.fed) // 2, target.score
    target.fed.clear()

    def score(feeds):
        target.slower = 1 if len(target.fed) < half else 3
        return inner(feeds)

    target.score = score
    one, other = answer_in_turns(modes, PROMPT, PARAMS, floor=True).values()
    assert one.decode_seconds > 1.8 * 64 * PASS
    for slower, faster in ((one.decode_seconds, other.decode_seconds), (one.floor_seconds, one.decode_seconds)):
        assert slower / faster == pytest.approx(1, abs=0.15)


def test_modes_that_answer_in_one_piece_come_between_turns() -> None:
    diary = []
    target = Diary(FakeClock())
    p = parts(target.clock, target)
    others = [ScriptedMode(name, [seconds(1.0)], diary, baseline="x plain") for name in ("x plain", "x lookup")]
    for mode in others:
        answer = mode.answer
        mode.answer = lambda *a, answer=answer, **k: (target.scored.append(-1), answer(*a, **k))[1]
    answers = answer_in_turns([others[0], plain(p), others[1]], PROMPT, PARAMS, floor=False)
    assert set(answers) == {"x plain", "plain", "x lookup"}
    assert [name for name, _, _ in diary] == ["x plain", "x lookup"]
    at = [i for i, who in enumerate(target.scored) if who == -1]
    assert at[0] == 0
    assert 0 < at[1] < len(target.scored) - 16


def test_what_breaks_leaves_no_sequence_behind() -> None:
    clock = FakeClock()
    target = ClockedTarget(clock)
    p = parts(clock, target)
    modes = [plain(p), lookup(p, 4)]
    inner, passes = target.score, []

    def score(feeds):
        passes.append(feeds)
        if len(passes) == 20:
            raise MemoryError
        return inner(feeds)

    target.score = score
    with pytest.raises(MemoryError):
        answer_in_turns(modes, PROMPT, PARAMS, floor=True)
    assert target.open_sequences == 0


def test_a_mode_that_fails_is_told_apart_and_the_others_end() -> None:
    class Tired(ScriptedMode):
        def answer(self, prompt, params, *, floor):
            raise ModeFailed("tired")

    p = parts(FakeClock())
    answers = answer_in_turns([Tired("x plain", [], []), plain(p)], PROMPT, PARAMS, floor=False)
    assert str(answers["x plain"]).startswith("tired")
    assert len(answers["plain"].tokens) == PARAMS.max_tokens
