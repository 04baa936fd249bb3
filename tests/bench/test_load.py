"""The engine under load, on a machine whose time is known: a point is a steady state, and the arithmetic is exact."""

from __future__ import annotations

import json
from collections.abc import Callable
from collections.abc import Sequence as Seq
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer
from bench_kit import PASS, ROW, SIZE, ClockedTarget, FakeClock, Overhead
from typer.testing import CliRunner, Result

from draftproof.bench.load import LoadPlan, measure_load, measure_passes
from draftproof.bench.policies import Policy, policies
from draftproof.bench.workloads import Workload
from draftproof.cli import bench, bench_load
from draftproof.draft.base import Proposal
from draftproof.draft.lookup import LookupDrafter
from draftproof.engine import Engine
from draftproof.errors import DraftproofError, InvalidValue
from draftproof.schedule.adaptive import AdaptiveSchedule
from draftproof.schedule.base import RoundRecord, Schedule, Slot
from draftproof.schedule.costs import CostCurve
from draftproof.target.base import Feed, Rows, Target
from draftproof.text import IdTokenizer

ROUND = tuple(i % SIZE for i in range(2 * SIZE + 3))
DRAFTING = 2.0


def _seconds(rows: int) -> float:
    return PASS + ROW * (rows - 1)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def target(clock: FakeClock) -> ClockedTarget:
    return ClockedTarget(clock)


def _build(clock: FakeClock) -> Callable[[Schedule, Target], Engine]:
    def build(schedule: Schedule, target: Target) -> Engine:
        drafter = Overhead(LookupDrafter(), clock, DRAFTING)
        return Engine(target, drafter=drafter, schedule=schedule)  # type: ignore[arg-type]

    return build


def _noting(made: list[Engine], note: Callable[[Engine, Any, Any], object]) -> Callable[[Schedule, Target], Engine]:
    """Builds engines, kept in `made`, whose `asked` holds a note of every request."""

    def build(schedule: Schedule, target: Target) -> Engine:
        engine = Engine(target, drafter=LookupDrafter(), schedule=schedule)
        engine.asked = []  # type: ignore[attr-defined]
        add = engine.add

        def noting(prompt: Any, params: Any) -> int:
            engine.asked.append(note(engine, prompt, params))  # type: ignore[attr-defined]
            return add(prompt, params)

        engine.add = noting  # type: ignore[method-assign]
        made.append(engine)
        return engine

    return build


def test_throughput_is_that_of_the_rounds_in_which_all_were_live(target: ClockedTarget, clock: FakeClock) -> None:
    """A counter and a drafter that is always right: every round makes length + 1 tokens a request, exactly."""
    plan = LoadPlan(prompts=(ROUND,), concurrent=(1, 3), max_tokens=40, repeats=2)
    among = [Policy("fixed", 0), Policy("fixed", 2)]
    points, profile = measure_load(plan, among, _build(clock), target, clock=clock)
    found = {(point.policy, point.requests): point for point in points}
    for requests in (1, 3):
        plain, two = found["plain", requests], found["fixed 2", requests]
        assert plain.throughput == pytest.approx(requests / _seconds(requests))
        assert two.throughput == pytest.approx(3 * requests / (_seconds(3 * requests) + DRAFTING))
        assert two.per_request == pytest.approx(two.throughput / requests)
        assert (plain.tokens_per_round, two.tokens_per_round) == (1, 3)
        assert (plain.rows_per_round, two.rows_per_round) == (requests, 3 * requests)
        assert plain.error == pytest.approx(0)
    assert target.open_sequences == 0
    assert profile is not None
    assert profile.acceptance == (1.0, 1.0)
    assert profile.target_seconds == pytest.approx({n: _seconds(n) for n in (1, 2, 3, 6, 9)})
    assert {n: set(points) for n, points in profile.target_seconds_by_requests.items()} == {
        1: {1, 2, 3},
        3: {1, 3, 6, 9},
    }
    assert set(profile.draft_seconds) == {1, 3}
    assert set(profile.switch_seconds.values()) == {0}
    assert 0 < profile.rest_seconds < 0.05  # the engine's own, on the real clock


def test_a_machine_that_becomes_slow_is_slow_for_all_of_them(target: ClockedTarget, clock: FakeClock) -> None:
    """Three times as slow from the middle of the only counted group on: policies come forward together."""
    plan = LoadPlan(prompts=(ROUND,), concurrent=(2,), max_tokens=140, answers=2, repeats=1)
    among = [Policy("fixed", 0), Policy("fixed", 1), Policy("adaptive", 1)]
    passes, inner = len(target.fed), target.score

    def ratios() -> tuple[float, float]:
        target.fed.clear()
        points, _ = measure_load(plan, among, _build(clock), target, clock=clock)
        return points[1].throughput / points[0].throughput, points[2].throughput / points[0].throughput

    def score(feeds: Seq[Feed]) -> list[Rows]:
        target.slower = 1 if len(target.fed) < 0.75 * passes else 3
        return inner(feeds)

    calm = ratios()
    passes = len(target.fed)
    target.score = score  # type: ignore[method-assign]
    assert ratios() == pytest.approx(calm, rel=0.1)
    assert target.slower == 3


def test_no_policy_pays_for_the_width_of_another_ones_passes(clock: FakeClock) -> None:
    target = ClockedTarget(clock, switch=3 * PASS)
    plan = LoadPlan(prompts=(ROUND,), concurrent=(2,), max_tokens=40, answers=2, repeats=1)
    among = [Policy("fixed", 0), Policy("fixed", 1)]
    alone, _ = measure_load(plan, among[:1], _build(clock), target, clock=clock)
    together, _ = measure_load(plan, among, _build(clock), target, clock=clock)
    assert together[0].throughput == pytest.approx(alone[0].throughput, rel=0.01)


def test_no_policy_always_follows_the_same_one(target: ClockedTarget, clock: FakeClock) -> None:
    """What it leaves behind in caches, or a machine that is slow once a second, would always meet the same next one."""
    scored: list[int] = []
    inner = target.score
    target.score = lambda feeds: (scored.append(feeds[0].handle), inner(feeds))[1]  # type: ignore[method-assign]
    plan = LoadPlan(prompts=(ROUND,), concurrent=(1,), max_tokens=8 * 12, answers=1, repeats=1)
    measure_load(plan, [Policy("fixed", n) for n in (0, 1, 2)], _build(clock), target, clock=clock)
    last = sorted(set(scored))[-3:]  # of the last group; its prompts are read in the first turn
    who = [h for h in scored if h in last]
    turns = [who[0], *(b for a, b in pairwise(who) if a != b)]
    assert set(pairwise(turns)) == {(a, b) for a in last for b in last if a != b}


def test_policies_take_turns_group_by_group_and_each_is_first_as_often(target: ClockedTarget, clock: FakeClock) -> None:
    """A machine that is slow for a while is slow for all of them."""
    turns: list[str] = []
    build = _noting([], lambda engine, prompt, params: turns.append(f"{engine.schedule.name} {params.seed}"))
    plan = LoadPlan(prompts=(ROUND,), concurrent=(1,), max_tokens=16, answers=2, repeats=1)
    measure_load(plan, [Policy("fixed", 1), Policy("adaptive", 1)], build, target, clock=clock)
    assert turns[4:] == ["fixed 1", "adaptive 1", "adaptive 2", "fixed 2"]


def test_what_a_change_of_width_costs_goes_into_the_profile(clock: FakeClock) -> None:
    target = ClockedTarget(clock, switch=3 * PASS)
    plan = LoadPlan(prompts=(ROUND,), concurrent=(1, 3), max_tokens=12, repeats=1)
    _, profile = measure_load(plan, [Policy("fixed", 2)], _build(clock), target, clock=clock)
    assert profile is not None
    assert profile.switch_seconds == pytest.approx(dict.fromkeys(profile.switch_seconds, 3 * PASS))
    assert profile.target_seconds == pytest.approx({n: _seconds(n) for n in (1, 2, 3, 6, 9)})


def test_one_repeat_has_no_error_and_plain_alone_no_profile(target: ClockedTarget, clock: FakeClock) -> None:
    plan = LoadPlan(prompts=(ROUND,), concurrent=(2,), max_tokens=12, repeats=1)
    points, profile = measure_load(plan, [Policy("fixed", 0)], _build(clock), target, clock=clock)
    assert points[0].error is None
    assert profile is None


def test_every_policy_answers_the_same_prompts_with_the_same_seeds_and_keeps_what_it_learnt(
    target: ClockedTarget, clock: FakeClock
) -> None:
    made: list[Engine] = []
    build = _noting(made, lambda engine, prompt, params: (prompt, params))
    plan = LoadPlan(prompts=(ROUND, ROUND[:9]), concurrent=(3,), max_tokens=12, answers=3, repeats=2)
    measure_load(plan, policies(2), build, target, clock=clock)
    assert len(made) == len(policies(2))
    first = made[0].asked  # type: ignore[attr-defined]
    assert [prompt for prompt, _ in first[3:]] == [ROUND, ROUND[:9], ROUND, ROUND[:9], ROUND, ROUND[:9]]
    assert [params.seed for _, params in first[3:]] == [1, 2, 3, 1001, 1002, 1003]
    assert [params.seed for _, params in first[:3]] == [2001, 2002, 2003]  # thrown away, on texts of its own
    assert all(engine.asked == first for engine in made)  # type: ignore[attr-defined]


def test_fewer_requests_at_a_time_come_in_more_groups(target: ClockedTarget, clock: FakeClock) -> None:
    engines: list[Engine] = []
    build = _noting(engines, lambda engine, prompt, params: (len(engine.live), params.seed))
    plan = LoadPlan(prompts=(ROUND,), concurrent=(1, 2, 5), max_tokens=12, answers=4, repeats=1)
    measure_load(plan, [Policy("fixed", 1)], build, target, clock=clock)
    counted = [engine.asked[len(engine.asked) // 2 :] for engine in engines]  # type: ignore[attr-defined]
    assert counted == [
        [(0, 1), (0, 2), (0, 3), (0, 4)],
        [(0, 1), (1, 2), (0, 3), (1, 4)],
        [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)],
    ]


def test_passes_are_timed_on_as_many_sequences_as_there_are_requests(target: ClockedTarget, clock: FakeClock) -> None:
    found, switch = measure_passes(target, 4, 2, clock=clock)
    assert found == pytest.approx({1: _seconds(1), 4: _seconds(4), 8: _seconds(8), 12: _seconds(12)})
    assert switch == 0
    assert target.open_sequences == 0


def test_a_drafter_that_many_requests_make_dear_is_not_taken_for_cheap() -> None:
    """A block for one of four requests takes 1.75 % of a row's pass, 1.35 % of that of all: the row's counts.
    Blocks of a drafter that is cheap are drafted whole, however little of them is verified.
    """
    clock = FakeClock()
    curve, _ = measure_passes(ClockedTarget(clock, switch=PASS), 4, 4, clock=clock)
    schedule, slots = AdaptiveSchedule(CostCurve(curve, switch=PASS), 4), [Slot(i, 10, 50, "d") for i in range(4)]
    drafted = 0
    for _ in range(40):
        lengths = schedule.lengths(slots)
        proposals = [Proposal([0] * n, [None] * n, "d") if n else Proposal(drafter="d") for n in lengths]
        admitted = schedule.admit(slots, proposals)
        assert admitted == lengths
        accepted = [min(n, 1) for n in admitted]
        emitted = [[0] * (n + 1) for n in accepted]
        rows, seconds = 4 + sum(admitted), curve[4 * max(1, schedule.width)]
        schedule.observe(RoundRecord(slots, proposals, admitted, accepted, emitted, rows, seconds, 0.7, 0.0))
        drafted += sum(lengths)
    assert drafted


def test_a_failure_leaves_nothing_behind(target: ClockedTarget, clock: FakeClock) -> None:
    engines: list[Engine] = []

    def build(schedule: Schedule, target: Target) -> Engine:
        engines.append(_build(clock)(schedule, target))
        engines[-1].round = lambda: 1 / 0  # type: ignore[method-assign, assignment, return-value]
        return engines[-1]

    with pytest.raises(ZeroDivisionError):
        measure_load(LoadPlan(prompts=(ROUND,)), policies(1), build, target, clock=clock)
    assert target.open_sequences == 0
    assert not any(engine.live for engine in engines)


@pytest.mark.parametrize(
    "bad",
    [
        {"prompts": ()},
        {"prompts": ((),)},
        {"concurrent": ()},
        {"concurrent": (0,)},
        {"repeats": 0},
        {"answers": 0},
        {"max_tokens": 7},
        {"temperature": -1.0},
    ],
)
def test_bad_plans_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(InvalidValue):
        LoadPlan(**{"prompts": (ROUND,), **bad})  # type: ignore[arg-type]


def test_answers_of_too_few_blocks_are_refused(target: ClockedTarget, clock: FakeClock) -> None:
    plan = LoadPlan(prompts=(ROUND,), max_tokens=19)
    with pytest.raises(InvalidValue, match="19 tokens a request with blocks of 4"):
        measure_load(plan, policies(4), _build(clock), target, clock=clock)


# -- command ---------------------------------------------------------------------------------------------

Call = Callable[..., tuple[Result, list[str]]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Call:
    loaded: list[str] = []
    clock = FakeClock()

    def load_target_for(draft: str, model: str, options: object, progress: object) -> tuple[ClockedTarget, IdTokenizer]:
        loaded.append(draft)
        return ClockedTarget(clock), IdTokenizer(SIZE)

    def on_this_clock(*arguments: object, **named: object) -> object:
        return measure_load(*arguments, **named, clock=clock)  # type: ignore[arg-type]

    monkeypatch.setattr(bench_load, "load_target_for", load_target_for)
    monkeypatch.setattr(bench_load, "measure_load", on_this_clock)
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(bench.bench)
    prompts = tmp_path / "count.jsonl"
    prompts.write_text(json.dumps({"prompt": " ".join(map(str, ROUND))}))

    def run(*arguments: str) -> tuple[Result, list[str]]:
        return CliRunner().invoke(app, [*arguments, "--prompts", str(prompts), "-r", "1"]), loaded

    return run


def test_a_measured_run_gives_all_policies_at_all_concurrencies_and_its_profile_can_be_simulated(
    call: Call, tmp_path: Path
) -> None:
    arguments = (
        "--load",
        "-d",
        "lookup",
        "--draft-length",
        "3",
        "--requests",
        "1",
        "--requests",
        "4",
        "--max-tokens",
        "24",
    )
    result, loaded = call(*arguments, "--json")
    assert result.exit_code == 0, result.output
    assert loaded == ["lookup"]
    data = json.loads(result.stdout)
    assert data["simulated"] is False
    assert {(p["policy"], p["requests"]) for p in data["points"]} == {(p.name, n) for p in policies(3) for n in (1, 4)}
    assert data["settings"]["temperature"] == 1.0
    (tmp_path / "report.json").write_text(result.stdout)
    again, loaded = call("--curve", str(tmp_path / "report.json"), "--requests", "4", "--json")
    assert again.exit_code == 0, again.output
    simulated = json.loads(again.stdout)
    assert simulated["simulated"] is True
    assert loaded == ["lookup"]  # no model for a simulation
    for side in (data, simulated):
        by = {p["policy"]: p["tokens_per_second"] for p in side["points"] if p["requests"] == 4}
        assert by["fixed 3"] / by["plain"] == pytest.approx(16 / _seconds(16) * _seconds(4) / 4, rel=0.01)


def test_the_table_and_the_plot_come_from_a_curve_file(call: Call, tmp_path: Path) -> None:
    curve = tmp_path / "curve.json"
    values = {
        "name": "my GPU",
        "target_seconds": {"1": 0.02, "64": 0.03},
        "draft_seconds": 0.001,
        "acceptance": [0.7, 0.6],
    }
    curve.write_text(json.dumps(values))
    result, _ = call("--curve", str(curve), "--plot", str(tmp_path / "a.svg"))
    assert result.exit_code == 0, result.output
    assert "my GPU" in result.stdout
    assert "prefix-budget" in result.stdout
    assert (tmp_path / "a.svg").is_file()


@pytest.mark.parametrize(
    "arguments",
    [
        ("--load", "-d", "none"),
        ("--load", "-d", "lookup", "-d", "suffix"),
        ("--load", "-d", "nothing"),
        ("--load", "--draft-length", "0"),
        ("--load", "--requests", "0"),
        ("--load", "--max-tokens", "4"),
        ("--load", "--plot", "here.pdf"),
        ("--curve", "nowhere.json"),
    ],
)
def test_what_can_be_refused_is_refused_before_a_model_is_loaded(call: Call, arguments: tuple[str, ...]) -> None:
    result, loaded = call(*arguments)
    assert isinstance(result.exception, DraftproofError), result.output
    assert loaded == []


def test_prompts_come_from_every_workload_in_turn() -> None:
    workloads = [Workload("a", ("a1", "a2", "a3")), Workload("b", ("b1",)), Workload("c", ("c1", "c2"))]
    assert bench_load.in_turn(workloads) == ["a1", "b1", "c1", "a2", "c2", "a3"]
