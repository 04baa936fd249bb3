"""`draftproof bench --load` and `--curve FILE`: throughput against per-request speed, for every schedule.

Guarantees: everything that can be refused is refused before a model is loaded; JSON goes to standard output alone.
What it does not do: measure or simulate; see `draftproof.bench.load` and `draftproof.bench.simulate`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from rich.console import Console

from draftproof.bench.load import LoadPlan, measure_load
from draftproof.bench.load_report import LoadReport, save_plot, table
from draftproof.bench.policies import policies
from draftproof.bench.profile import Profile
from draftproof.bench.report import Machine
from draftproof.bench.simulate import SimulationOptions, simulate
from draftproof.bench.workloads import Workload
from draftproof.cli.generate import loading
from draftproof.engine import Engine
from draftproof.errors import InvalidValue
from draftproof.load import LoadOptions, load_target, load_target_for
from draftproof.models.cache import Progress
from draftproof.prompts import encode
from draftproof.registry import DraftContext, check_drafter, make_drafter, make_verifier
from draftproof.schedule.base import Schedule
from draftproof.target.base import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """What was asked for, checked. workloads: their prompts are used in turn, one of each."""

    model: str
    load: LoadOptions
    drafts: tuple[str, ...]
    verifier: str
    length: int
    requests: tuple[int, ...]
    workloads: tuple[Workload, ...]
    temperature: float
    max_tokens: int
    repeats: int
    seed: int
    chat: bool | None

    def __post_init__(self) -> None:
        if len(self.drafts) != 1 or self.drafts[0] == "none":
            raise InvalidValue(f"--load with the drafters {', '.join(self.drafts)}", "one that drafts, such as lookup")
        check_drafter(self.draft)
        make_verifier(self.verifier)
        policies(self.length)
        self.plan([[0]]).check_length(self.length)  # refuses what no run may have

    @property
    def draft(self) -> str:
        """The drafter."""
        return self.drafts[0]

    def plan(self, prompts: Seq[Seq[int]]) -> LoadPlan:
        """With the prompts' ids."""
        return LoadPlan(
            prompts=tuple(tuple(prompt) for prompt in prompts),
            temperature=self.temperature,
            concurrent=self.requests,
            max_tokens=self.max_tokens,
            repeats=self.repeats,
            seed=self.seed,
        )


def run_measured(asked: LoadRequest, here: Machine, *, as_json: bool, plot: Seq[Path]) -> None:
    """Load, measure, show."""
    with loading() as progress:
        report = measured(asked, here, progress)
    _show(report, as_json=as_json, plot=plot)


def run_simulated(file: Path, here: Machine, requests: Seq[int], seed: int, *, as_json: bool, plot: Seq[Path]) -> None:
    """Read the curve file, simulate, show."""
    profile = Profile.read(file)
    options = SimulationOptions(concurrent=tuple(requests), seed=seed)
    with loading() as progress:
        runs = simulate(profile, options, progress=progress)
    report = LoadReport(
        title=profile.name,
        simulated=True,
        machine=here,
        settings={"rounds": options.rounds, "warm": options.warm, "seed": seed},
        points=tuple(run.point for run in runs),
        profile=profile,
    )
    _show(report, as_json=as_json, plot=plot)


def measured(asked: LoadRequest, here: Machine, progress: Progress) -> LoadReport:
    """One run of an engine of our own."""
    target, tokenizer = load_target_for(asked.draft, asked.model, asked.load, progress)
    context = DraftContext("", target, tokenizer, lambda name: load_target(name, asked.load, progress=progress))
    verifier = make_verifier(asked.verifier)

    def build(schedule: Schedule, watched: Target) -> Engine:
        drafter = make_drafter(asked.draft, context)
        return Engine(watched, drafter=drafter, verifier=verifier, schedule=schedule, tokenizer=tokenizer)

    texts = in_turn(asked.workloads)
    prompts = [encode(text, tokenizer, target.vocab_size, chat=asked.chat) for text in texts]
    title = f"{asked.model}, {asked.draft}, T = {asked.temperature:g}"
    points, profile = measure_load(
        asked.plan(prompts), policies(asked.length), build, target, name=title, progress=progress
    )
    settings = {
        "model": asked.model,
        "backend": asked.load.backend_for(asked.model),
        "weights": asked.load.weights or "file",
        "activations": asked.load.activations or "float32",
        "dtype": asked.load.dtype or "float32",
        "threads": asked.load.threads,
        "draft": asked.draft,
        "verifier": asked.verifier,
        "draft_length": asked.length,
        "temperature": asked.temperature,
        "max_tokens": asked.max_tokens,
        "repeats": asked.repeats,
        "seed": asked.seed,
        "workloads": [workload.name for workload in asked.workloads],
    }
    return LoadReport(
        title=title, simulated=False, machine=here, settings=settings, points=tuple(points), profile=profile
    )


def in_turn(workloads: Seq[Workload]) -> list[str]:
    """Their prompts, one of each workload in turn: so a few requests at a time meet all of them."""
    turns = zip_longest(*(workload.prompts for workload in workloads))
    return [prompt for turn in turns for prompt in turn if prompt is not None]


def _show(report: LoadReport, *, as_json: bool, plot: Seq[Path]) -> None:
    if as_json:
        print(json.dumps(report.to_json(), ensure_ascii=False))
    else:
        console = Console(highlight=False)
        console = console if console.is_terminal else Console(highlight=False, width=160)
        console.print(table(report))
        if report.machine.busy and not report.simulated:
            console.print("[yellow]note:[/] the machine was busy when the run began: these figures are provisional")
    for path in plot:
        save_plot(report, path)
