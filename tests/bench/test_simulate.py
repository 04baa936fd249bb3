"""Throughput under load from a curve file: production schedules on simulated acceptance and cost."""

from __future__ import annotations

import json
from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from draftproof.bench import simulate as module
from draftproof.bench.policies import Policy, policies
from draftproof.bench.profile import Profile
from draftproof.bench.simulate import Run, SimulationOptions, simulate
from draftproof.draft.base import Proposal
from draftproof.errors import InvalidValue
from draftproof.schedule.base import RoundRecord, Slot
from draftproof.schedule.fixed import FixedSchedule
from draftproof.schedule.prefix import PROBE_SHARE, PrefixSchedule

# Costs that rise ever faster, as those of real machines between their steps do.
CURVES = {
    "gpu": {1: 0.02, 32: 0.0205, 64: 0.022, 128: 0.028, 256: 0.05},
    "cpu": {1: 0.0095, 2: 0.0105, 4: 0.0125, 8: 0.017, 16: 0.027, 32: 0.047, 192: 0.26},
    "flat": {1: 0.02, 256: 0.021},
    "steep": {1: 0.01, 2: 0.018, 256: 2.3},
}
DRAFTERS = {
    "good": (0.8, 0.76, 0.72, 0.7, 0.68),
    "fair": (0.36, 0.42, 0.45, 0.45, 0.45),
    "poor": (0.25, 0.2, 0.2, 0.2, 0.2),
}
CASES = [  # every curve, every drafter, blocks all alike and blocks that differ
    ("gpu", "good", 0.2),
    ("gpu", "poor", 0.0),
    ("cpu", "good", 0.2),
    ("cpu", "fair", 0.2),
    ("cpu", "poor", 0.0),
    ("flat", "fair", 0.0),
    ("flat", "poor", 0.5),
    ("steep", "good", 0.2),
]
ROUNDS = {1: 1500, 8: 400, 32: 160}  # the more requests, the less a round is chance
Z = 4.5  # one-sided: 3.4e-6 a comparison, under 1e-3 for all of them together, were all schedules alike


def _profile(curve: str = "cpu", drafter: str = "good", spread: float = 0.2) -> Profile:
    one = CURVES[curve][1]
    return Profile(
        name=f"{curve} {drafter}",
        target_seconds=CURVES[curve],
        draft_seconds={1: 0.06 * one, 32: 0.1 * one},
        acceptance=DRAFTERS[drafter],
        spread=spread,
    )


def _by_name(runs: Seq[Run]) -> dict[str, Run]:
    return {run.point.policy: run for run in runs}


@pytest.mark.parametrize("requests", [1, 8, 32])
@pytest.mark.parametrize(("curve", "drafter", "spread"), CASES)
def test_throughput_of_the_prefix_scheduler_is_at_least_every_fixed_length(
    curve: str, drafter: str, spread: float, requests: int
) -> None:
    """Up to Z standard errors of the ratio of the two on the same blocks: at most 1 % for the closest one, 0 where all
    blocks are alike. Against plain decoding: less the share of all time in which a drafter that is switched off may
    be tried again, and the one try more that can fall into the counted rounds.
    """
    among = [policy for policy in policies(5) if policy.fixed or policy.schedule == "prefix"]
    options = SimulationOptions(concurrent=(requests,), rounds=ROUNDS[requests], warm=100)
    profile = _profile(curve, drafter, spread)
    runs = _by_name(simulate(profile, options, among=among))
    assert len(runs) == 7
    gains = {name: runs["prefix"].gain(run) for name, run in runs.items() if name != "prefix"}
    assert Z * min(gains.values())[1] < 0.01
    tries = PROBE_SHARE + profile.draft(requests) / runs["prefix"].seconds.sum()
    for name, (gain, error) in gains.items():
        assert gain >= (1 - tries if name == "plain" else 1) - Z * error - 1e-9, name


STEADY = {1: 6.8e-3, 2: 6.9e-3, 3: 7.1e-3, 4: 7.7e-3, 8: 9.2e-3, 16: 14.3e-3, 32: 21.5e-3, 64: 28e-3, 192: 70e-3}
"""Seconds by rows of two cores with 8-bit integers, where a change of width costs 4.5 ms."""


@pytest.mark.parametrize("requests", [1, 8, 32])
@pytest.mark.parametrize("drafter", list(DRAFTERS))
def test_where_a_change_of_width_is_dear_it_keeps_to_the_best_width(drafter: str, requests: int) -> None:
    """Within 3 % of the best of plain and every fixed length, which never change and never try: seeds are fixed."""
    profile = Profile(
        name="two cores",
        target_seconds=STEADY,
        draft_seconds={1: 2.2e-3, 8: 6e-3, 32: 20e-3},
        acceptance=DRAFTERS[drafter],
        spread=0.1,
        switch_seconds={1: 4.5e-3},
    )
    among = [policy for policy in policies(5) if policy.schedule in ("fixed", "prefix")]
    options = SimulationOptions(concurrent=(requests,), rounds=ROUNDS[requests], warm=100)
    runs = _by_name(simulate(profile, options, among=among))
    best = max(run.point.throughput for name, run in runs.items() if name != "prefix")
    assert runs["prefix"].point.throughput > 0.97 * best


def test_a_change_of_width_costs_what_the_profile_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts of 0, 0, 2, 2, ... tokens that nothing fills up: a change in every second round, the first included."""

    class Changing(FixedSchedule):
        asked = 0

        def lengths(self, slots: Seq[Slot]) -> list[int]:
            self.asked += 1
            return [2 * ((self.asked - 1) // 2 % 2)] * len(slots)

        @property
        def width(self) -> int:
            return 0

    monkeypatch.setattr(Policy, "make", lambda self, costs: Changing(2))
    profile = replace(_profile("cpu", "good", 0.0), switch_seconds={1: 0.005})
    (run,) = simulate(profile, SimulationOptions(concurrent=(1,), rounds=40, warm=0), among=[Policy("fixed", 2)])
    costs = profile.costs(1)
    whole = 20 * (costs.seconds(1) + costs.seconds(3) + profile.draft(1)) + 20 * 0.005
    assert run.seconds.sum() == pytest.approx(whole)


def test_passes_are_filled_up_to_the_schedules_width(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wide(FixedSchedule):
        @property
        def width(self) -> int:
            return 4

    monkeypatch.setattr(Policy, "make", lambda self, costs: Wide(1))
    profile = replace(_profile(), switch_seconds={1: 0.005}, rest_seconds=0.001)
    (run,) = simulate(profile, SimulationOptions(concurrent=(2,), rounds=40, warm=1), among=[Policy("fixed", 1)])
    assert run.seconds.sum() == pytest.approx(40 * (profile.costs(2).seconds(8) + profile.draft(2) + 2 * 0.001))
    assert run.point.rows_per_round == 4


def test_it_gains_where_blocks_differ_and_rows_cost() -> None:
    """The opposite of a schedule that is merely never worse: by more than ten standard errors."""
    options = SimulationOptions(concurrent=(32,), rounds=160, warm=100)
    runs = _by_name(simulate(_profile("gpu", "good", 0.5), options))
    best = max((run for run in runs.values() if run.point.policy.startswith("fixed")), key=lambda r: r.point.throughput)
    gain, error = runs["prefix"].gain(best)
    assert gain > 1.05
    assert gain - 1 > 10 * error


def test_a_fixed_length_has_the_throughput_of_the_closed_form() -> None:
    """Blocks all alike: (1 + a1 + a1 a2) / seconds, exactly."""
    profile = _profile("cpu", "good", 0.0)
    for requests in (1, 8):
        (run,) = simulate(
            profile, SimulationOptions(concurrent=(requests,), rounds=40, warm=0), among=[Policy("fixed", 2)]
        )
        seconds = profile.costs(requests).seconds(3 * requests) + profile.draft(requests)
        assert run.point.throughput == pytest.approx(requests * (1 + 0.8 + 0.8 * 0.76) / seconds, rel=1e-12)
        assert run.point.error == pytest.approx(0, abs=1e-9)
        assert run.point.per_request == pytest.approx(run.point.throughput / requests)
        assert run.point.rows_per_round == 3 * requests


def test_plain_decoding_pays_for_no_drafts() -> None:
    (run,) = simulate(_profile(), SimulationOptions(concurrent=(8,), rounds=40, warm=0), among=[Policy("fixed", 0)])
    assert run.point.throughput == pytest.approx(8 / CURVES["cpu"][8])


def test_the_same_seed_gives_the_same_figures_and_another_one_others() -> None:
    def points(seed: int) -> list[float]:
        options = SimulationOptions(concurrent=(2,), rounds=60, warm=10, seed=seed)
        return [run.point.throughput for run in simulate(_profile(), options)]

    assert points(1) == points(1)
    assert points(1) != points(2)


@pytest.mark.parametrize("spread", [0.0, 0.2, 1.0])
def test_confidences_have_the_profiles_mean_and_spread_and_tokens_are_accepted_with_them(spread: float) -> None:
    """200 000 draws a position: 5 standard errors of a mean are at most 0.0056, of a variance less."""
    blocks = module._Blocks(_profile("cpu", "fair", spread), 100, SimulationOptions(rounds=2000, warm=0))
    for k, mean in enumerate(DRAFTERS["fair"]):
        drawn = blocks.confidence[:, :, k]
        assert drawn.mean() == pytest.approx(mean, abs=0.006)
        assert drawn.var() == pytest.approx(spread * mean * (1 - mean), abs=0.006)
        assert (blocks.luck[:, :, k] < drawn).mean() == pytest.approx(mean, abs=0.006)


def test_schedules_are_asked_and_told_as_the_engine_does(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[RoundRecord] = []

    class Spy(FixedSchedule):
        def admit(self, slots: Seq[Slot], proposals: Seq[Proposal]) -> list[int]:
            return [max(0, len(p.tokens) - i) for i, p in enumerate(proposals)]  # fewer for later requests

        def observe(self, record: RoundRecord) -> None:
            seen.append(record)

    monkeypatch.setattr(Policy, "make", lambda self, costs: Spy(3))
    profile = replace(_profile(), draft_token_seconds={1: 1e-4})
    assert profile.draft(3, 9) == pytest.approx(profile.draft(3) - 2e-4) != profile.draft(3)
    (run,) = simulate(profile, SimulationOptions(concurrent=(3,), rounds=40, warm=0), among=[Policy("fixed", 3)])
    blocks = module._Blocks(profile, 3, SimulationOptions(concurrent=(3,), rounds=40, warm=0))
    expected = 0.0
    for t, record in enumerate(seen):
        assert list(record.admitted) == [3, 2, 1]
        assert record.rows == 3 + 6
        assert record.target_seconds == profile.costs(3).seconds(9)
        assert record.draft_seconds == profile.draft(3, 9)
        for i, proposal in enumerate(record.proposals):
            assert list(proposal.confidence or ()) == blocks.confidence[t, i, :3].tolist()
            assert proposal.q is not None  # drafted tokens are no point masses: no schedule may take them for free ones
            hits = blocks.luck[t, i] < blocks.confidence[t, i]
            accepted = next((k for k in range(record.admitted[i]) if not hits[k]), record.admitted[i])
            assert record.accepted[i] == accepted
            assert len(record.emitted[i]) == accepted + 1
            expected += 1 + np.cumprod(blocks.confidence[t, i, : record.admitted[i]]).sum()
    assert len(seen) == 40
    assert run.tokens.sum() == pytest.approx(expected)


def test_blocks_end_where_the_schedules_thresholds_say_and_cost_what_was_drafted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[RoundRecord] = []

    class Stops(FixedSchedule):
        def thresholds(self, slots: Seq[Slot]) -> Seq[float]:
            return [0.5, 0.4]

        def observe(self, record: RoundRecord) -> None:
            seen.append(record)

    monkeypatch.setattr(Policy, "make", lambda self, costs: Stops(3))
    profile = replace(_profile("cpu", "good", 0.3), draft_token_seconds={1: 1e-4})
    simulate(profile, SimulationOptions(concurrent=(4,), rounds=60, warm=0), among=[Policy("fixed", 3)])
    blocks = module._Blocks(profile, 4, SimulationOptions(concurrent=(4,), rounds=60, warm=0))
    lengths = set()
    for t, record in enumerate(seen):
        drafted = []
        for i, proposal in enumerate(record.proposals):
            first, second, _ = np.cumprod(blocks.confidence[t, i, :3])
            drafted.append(0 if first < 0.5 else 1 if second < 0.4 else 3)
            assert len(proposal.tokens) == drafted[-1]
        assert record.draft_seconds == profile.draft(sum(n > 0 for n in drafted), sum(drafted))
        lengths |= set(drafted)
    assert lengths == {0, 1, 3}


def test_policies_are_production_schedules_on_curves_of_their_own() -> None:
    costs = _profile().costs(1)
    made = {policy.name: policy.make(costs) for policy in policies(3)}
    assert list(made) == ["plain", "fixed 1", "fixed 2", "fixed 3", "adaptive", "prefix", "prefix-budget"]
    assert isinstance(made["prefix"], PrefixSchedule)
    assert [made[name].name for name in ("plain", "adaptive", "prefix", "prefix-budget")] == [
        "fixed",
        "adaptive",
        "prefix",
        "prefix-budget",
    ]
    with pytest.raises(InvalidValue):
        policies(0)
    with pytest.raises(InvalidValue, match="schedule 'best'"):
        Policy("best", 3)


def _file(folder: Path, **changes: object) -> Path:
    values = _profile().to_json() | changes
    path = folder / "curve.json"
    path.write_text(json.dumps({k: v for k, v in values.items() if v is not None}))
    return path


def test_a_curve_file_comes_back_as_it_was_written(tmp_path: Path) -> None:
    assert Profile.read(_file(tmp_path)) == _profile()
    dear = replace(_profile(), switch_seconds={1: 0.004}, rest_seconds=0.001)
    mixed = Profile.read(_file(tmp_path, switch_seconds={"1": 0, "9": 0.004}))
    assert [mixed.costs(n).switch for n in (1, 5, 9)] == pytest.approx([0, 0.002, 0.004])
    assert Profile.read(_file(tmp_path, **mixed.to_json())) == mixed
    assert Profile.read(_file(tmp_path, switch_seconds=0.004, rest_seconds=0.001)) == dear
    assert Profile.read(_file(tmp_path, switch_seconds=None)) == _profile()
    same = Profile.read(_file(tmp_path, draft_seconds=0.002, name=None, spread=None))
    assert (same.draft(1), same.draft(32), same.name, same.spread) == (0.002, 0.002, "curve", 0.2)
    free = Profile.read(_file(tmp_path, draft_seconds=0))
    assert free.draft(8) == 0
    line = Profile.read(_file(tmp_path, draft_seconds={"1": 0, "5": 0.004, "9": 0.004}))
    assert [line.draft(n) for n in (1, 2, 5, 7, 32)] == pytest.approx([0, 0.001, 0.004, 0.004, 0.004])
    assert Profile.read(_file(tmp_path, draft_seconds={"8": 0.004})).draft(32) == 0.004
    lengths = Profile.read(_file(tmp_path, draft_seconds={"1": 0.004, "3": 0.008}, draft_token_seconds={"1": 0.0005}))
    assert [lengths.draft(1, n) for n in (1, 4, 5)] == pytest.approx([0.002, 0.0035, 0.004])
    assert [lengths.draft(3, n) for n in (3, 9)] == pytest.approx([0.006, 0.007])
    assert lengths.draft(0, 0) == 0
    assert lengths.to_json()["draft_token_seconds"] == {"1": 0.0005}
    own = Profile.read(_file(tmp_path, target_seconds_by_requests={"8": {"8": 0.5, "16": 0.7}}))
    assert [own.costs(n).seconds(8) for n in (1, 8)] == [CURVES["cpu"][8], 0.5]
    assert own.to_json()["target_seconds_by_requests"] == {"8": {"8": 0.5, "16": 0.7}}
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"profile": _profile().to_json(), "points": []}))
    assert Profile.read(report) == _profile()


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"acceptance": None}, "lacks acceptance"),
        ({"speed": 3}, "unknown fields speed"),
        ({"acceptance": [0.5, 1.2]}, "acceptance"),
        ({"acceptance": []}, "acceptance"),
        ({"spread": 1.5}, "spread"),
        ({"switch_seconds": -0.1}, "switch_seconds"),
        ({"target_seconds_by_requests": {"8": {"8": 0}}}, "target_seconds_by_requests of 8"),
        ({"target_seconds_by_requests": {"8": 0.1}}, r"curve\.json"),
        ({"rest_seconds": float("inf")}, "rest_seconds"),
        ({"rest_seconds": "much"}, "much"),
        ({"target_seconds": {}}, "target_seconds"),
        ({"target_seconds": {"0": 1.0}}, "target_seconds"),
        ({"target_seconds": {"1": 0.0}}, "target_seconds"),
        ({"target_seconds": {"one": 1.0}}, r"curve\.json: invalid literal"),
        ({"target_seconds": [1.0]}, r"curve\.json"),
        ({"draft_seconds": {"1": -1.0}}, "draft_seconds"),
        ({"draft_token_seconds": {"1": -1.0}}, "draft_token_seconds"),
        ({"draft_token_seconds": {"1": 1.0}}, "no more than a block"),
        ({"draft_token_seconds": 0.1}, "curve"),
        ({"draft_seconds": {"1": float("nan")}}, "draft_seconds"),
    ],
)
def test_bad_curve_files_are_named(tmp_path: Path, changes: dict[str, object], match: str) -> None:
    with pytest.raises(InvalidValue, match=match):
        Profile.read(_file(tmp_path, **changes))


def test_bad_options_are_refused() -> None:
    for bad in ({"concurrent": ()}, {"concurrent": (0,)}, {"rounds": 10}, {"warm": -1}, {"seed": -1}):
        with pytest.raises(InvalidValue):
            SimulationOptions(**bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="draft length 6 with acceptance at 5 positions"):
        simulate(_profile(), among=[Policy("fixed", 6)])
