"""The run: interleaved, same seeds, warm, and summarised as stated."""

import pytest
from bench_kit import CURVE, SIZE, FakeClock, ScriptedMode, lookup, parts, plain, seconds

from draftproof.bench.modes import ModeFailed
from draftproof.bench.run import RunOptions, run
from draftproof.bench.workloads import Workload
from draftproof.errors import InvalidValue
from draftproof.schedule.costs import CostCurve

TWO = Workload("two", ("0 1", "2 3"))


def options(**changed) -> RunOptions:
    return RunOptions(**{"workloads": (TWO,), "temperatures": (0.0,), "repeats": 2, "seed": 7, **changed})


def encode(text: str) -> list[int]:
    return [int(word) for word in text.split()]


def test_every_prompt_is_answered_by_all_modes_in_turn_with_one_seed():
    diary = []
    modes = [ScriptedMode(name, [seconds(1.0)], diary) for name in ("plain", "b", "c")]
    run(options(), modes, encode)
    warm, measured = diary[:3], diary[3:]
    assert [name for name, _, _ in warm] == ["plain", "b", "c"]
    turns = [measured[i : i + 3] for i in range(0, len(measured), 3)]
    assert [[name for name, _, _ in turn] for turn in turns] == [
        ["plain", "b", "c"],
        ["b", "c", "plain"],
        ["c", "plain", "b"],
        ["plain", "b", "c"],
    ]
    assert [{(prompt, seed) for _, prompt, seed in turn} for turn in turns] == [
        {((0, 1), 7)},
        {((2, 3), 8)},
        {((0, 1), 1007)},
        {((2, 3), 1008)},
    ]


def test_modes_start_anew_on_every_workload_and_temperature():
    mode = ScriptedMode("plain", [seconds(1.0)], [])
    run(options(workloads=(TWO, Workload("one", ("0",))), temperatures=(0.0, 1.0)), [mode], encode)
    assert mode.begun == 4


def test_the_warm_up_counts_for_nothing():
    diary = []
    mode = ScriptedMode("plain", [seconds(1.0)], diary)
    (group,) = run(options(repeats=1), [mode], encode)
    assert len(diary) == 3
    assert group.modes[0].answers == 2


def test_a_rate_pools_a_repeat_and_the_spread_is_over_repeats():
    # Two prompts of 10 decoded tokens each a repeat: 20 / (1 + 3) and 20 / (2 + 8).
    mode = ScriptedMode("plain", [seconds(1.0), seconds(3.0), seconds(2.0), seconds(8.0)], [])
    (group,) = run(options(), [mode], encode)
    rate = group.modes[0].tokens_per_second
    assert (rate.low, rate.median, rate.high, rate.count) == (2.75, 3.5, 4.25, 2)
    whole = group.modes[0].answer_tokens_per_second
    assert whole.median == pytest.approx((22 / 6 + 22 / 12) / 2)
    assert group.modes[0].first_seconds.median == 1.0


def test_a_speed_up_is_taken_within_a_repeat():
    # The machine is ten times slower in the second repeat; the ratios are 2 and 4, whatever it does.
    diary = []
    slow = ScriptedMode("plain", [seconds(s) for s in (2.0, 2.0, 20.0, 20.0)], diary)
    fast = ScriptedMode("b", [seconds(s) for s in (1.0, 1.0, 5.0, 5.0)], diary)
    (group,) = run(options(), [slow, fast], encode)
    speedup = group.modes[1].speedup
    assert (speedup.low, speedup.median, speedup.high) == (2.5, 3.0, 3.5)
    assert group.modes[0].speedup is None
    assert group.modes[1].same_text == 1.0


def test_our_modes_are_set_against_the_fastest_of_the_others():
    diary = []
    modes = [
        ScriptedMode("plain", [seconds(2.0)], diary),
        ScriptedMode("lookup", [seconds(1.0)], diary),
        ScriptedMode("x plain", [seconds(4.0)], diary, baseline="x plain"),
        ScriptedMode("x lookup", [seconds(3.0)], diary, baseline="x plain"),
    ]
    (group,) = run(options(), modes, encode)
    assert group.best_peer == "x lookup"
    assert {name: spread.median for name, spread in group.against_best_peer.items()} == {"plain": 1.5, "lookup": 3.0}
    assert group.modes[3].speedup.median == pytest.approx(4 / 3)


def test_the_engine_on_a_known_machine_gives_the_known_figures():
    clock = FakeClock()
    p = parts(clock)
    once_round = " ".join(str(i % SIZE) for i in range(SIZE + 2))
    wanted = options(workloads=(Workload("count", (once_round,)),), max_tokens=21, repeats=1)
    (group,) = run(wanted, [plain(p), lookup(p, 4)], encode, lambda: CostCurve(CURVE, refine=False))
    slow, fast = group.modes
    # 5 tokens come with the prompt's pass, 15 in rounds of 5 rows at 14 s, one more at 10 s.
    assert slow.tokens_per_second.median == pytest.approx(1 / 10)
    assert fast.tokens_per_second.median == pytest.approx(16 / (3 * 14 + 10))
    assert fast.speedup.median == pytest.approx(16 / (3 * 14 + 10) * 10)
    assert fast.tokens_per_round == 4.0
    assert fast.acceptance_by_position == (1.0, 1.0, 1.0, 1.0)
    assert fast.mean_draft_length == 3.0
    assert fast.outside.median == pytest.approx(0.0)
    assert fast.efficiency.median == pytest.approx(1.0)
    assert fast.same_text == 1.0
    # The closed form believes that five rows cost what one does. Real seconds of drafting are in both, hence the room.
    assert fast.predicted_leviathan == pytest.approx((3 * 5 + 1) / 4, rel=1e-2)
    assert fast.predicted_curve == pytest.approx(fast.speedup.median, rel=1e-2)
    assert slow.predicted_leviathan is None


def test_an_answer_that_ended_with_its_first_token_gives_no_rate_and_no_error():
    mode = ScriptedMode("plain", [seconds(0.0, tokens=1)], [])
    (group,) = run(options(), [mode], encode)
    assert group.modes[0].tokens_per_second is None
    assert group.modes[0].answer_tokens_per_second.median == 1.0


@pytest.mark.parametrize(
    "changed",
    [
        {"workloads": ()},
        {"temperatures": ()},
        {"temperatures": (-1.0,)},
        {"repeats": 0},
        {"max_tokens": 1},
        {"seed": -1},
    ],
)
def test_senseless_options_are_refused(changed):
    with pytest.raises(InvalidValue):
        options(**changed)


def test_one_mode_twice_is_refused():
    modes = [ScriptedMode("plain", [seconds(1.0)], []) for _ in range(2)]
    with pytest.raises(InvalidValue, match="each mode once"):
        run(options(), modes, encode)


class Failing(ScriptedMode):
    """Gives up at its third answer, the warm-up included."""

    def answer(self, prompt, params, *, floor):
        if len(self._diary) >= 2:
            raise ModeFailed("tired")
        return super().answer(prompt, params, floor=floor)


def test_a_mode_that_fails_is_left_out_with_its_reason_and_the_rest_is_measured():
    failed: dict[str, str] = {}
    modes = [ScriptedMode("plain", [seconds(1.0)], []), Failing("x plain", [seconds(1.0)], [], baseline="x plain")]
    groups = run(options(temperatures=(0.0, 1.0)), modes, encode, failed=failed)
    assert failed == {"x plain": "tired"}
    assert [[m.name for m in g.modes] for g in groups] == [["plain"], ["plain"]]
    assert [g.modes[0].answers for g in groups] == [4, 4]
    with pytest.raises(ModeFailed):
        run(options(), [Failing("plain", [seconds(1.0)], [])], encode)
