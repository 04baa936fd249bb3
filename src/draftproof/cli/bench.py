"""`draftproof bench`: plain and speculative decoding on this machine, side by side, and other programs if asked.

Guarantees: everything that can be refused is refused before a model is loaded; JSON goes to standard output alone.
What it does not do: measure; see `draftproof.bench`.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from draftproof.bench import peers as others
from draftproof.bench import plots, report, workloads
from draftproof.bench.modes import EngineMode, Mode, Parts, Spec
from draftproof.bench.policies import CONCURRENT
from draftproof.bench.run import GroupResult, RunOptions, run
from draftproof.cli import bench_load
from draftproof.cli import options as o
from draftproof.cli.generate import loading
from draftproof.errors import InvalidValue, UnknownName
from draftproof.load import LoadOptions, dspark_argument, load_target, load_target_for
from draftproof.models.cache import Progress
from draftproof.prompts import encode
from draftproof.registry import longest_draft, make_schedule
from draftproof.schedule.curves import load_or_measure

BENCH, PEERS, LOAD = "Benchmark", "Peers", "Under load"
_option = o._option

Workloads = Annotated[
    list[str] | None,
    typer.Argument(help="extractive, code, math, chat; default: all.", metavar="[WORKLOAD]...", show_default=False),
]
Prompts = Annotated[
    list[Path], _option(BENCH, 'Prompts of your own: {"prompt": "..."} a line; replaces the built-in.', "--prompts")
]
Limit = Annotated[int | None, _option(BENCH, "At most this many prompts of each workload.", "--limit")]
Drafts = Annotated[list[str], _option(o.DRAFT, "Drafters to compare; 'wrong' is never right.", "--draft", "-d")]
Fixed = Annotated[list[int], _option(o.DRAFT, "Fixed draft lengths to compare as well.", "--fixed")]
Temperatures = Annotated[list[float], _option(BENCH, "Temperatures; may be repeated.", "--temperature", "-t")]
MaxTokens = Annotated[int, _option(BENCH, "Most tokens of each answer.", "--max-tokens")]
Repeats = Annotated[int, _option(BENCH, "How often everything is measured.", "--repeats", "-r")]
Seed = Annotated[int, _option(BENCH, "The first seed.", "--seed", "-s")]
NoFloor = Annotated[bool, _option(BENCH, "Do not replay model calls: half the time, no efficiency.", "--no-floor")]
WithPeers = Annotated[bool, _option(PEERS, "Measure the other programs that are installed.", "--peers")]
Peer = Annotated[list[str], _option(PEERS, f"Only these: {', '.join(others.NAMES)}.", "--peer")]
PeerLookup = Annotated[list[int], _option(PEERS, "Lengths of the peers' prompt lookup.", "--peer-lookup")]
PeerPython = Annotated[
    list[str], _option(PEERS, "NAME=PATH: the Python that has this peer, if it is another one.", "--peer-python")
]
UnderLoad = Annotated[
    bool, _option(LOAD, "Throughput against per-request speed, for every schedule (last temperature).", "--load")
]
Requests = Annotated[list[int], _option(LOAD, "Requests at a time; may be repeated.", "--requests")]
Curve = Annotated[
    Path | None, _option(LOAD, "The same by simulation, no model: a curve file, or a --load --json report.", "--curve")
]
Plot = Annotated[list[Path], _option(o.OUT, "Write plots: FILE.png or FILE.svg; may be repeated.", "--plot")]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRequest:
    """Everything a run needs, checked. specs: our modes, plain first. peer_names: empty for none."""

    model: str
    load: LoadOptions
    specs: tuple[Spec, ...]
    run: RunOptions
    chat: bool | None = None
    peer_names: tuple[str, ...] = ()
    peer_lookups: tuple[int, ...] = (5,)
    peer_pythons: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if not self.specs or self.specs[0].draft != "none":
            raise InvalidValue("a benchmark without plain decoding", "the first mode drafts nothing")
        for name in self.peer_names:
            if name not in others.NAMES:
                raise UnknownName("peer", name, others.NAMES)
        if len(self.reading) > 1:
            raise InvalidValue(f"the drafters {', '.join(self.reading)} in one run", "one: they read different layers")

    @property
    def reading(self) -> list[str]:
        """Drafters that read hidden states, one for each checkpoint."""
        found = {dspark_argument(spec.draft): spec.draft for spec in self.specs}
        return [draft for argument, draft in found.items() if argument is not None]


def bench(
    names: Workloads = None,
    model: o.Model = "smollm2",
    backend: o.Backend = "auto",
    dtype: o.Dtype = None,
    weights: o.Weights = None,
    activations: o.Activations = None,
    narrow: o.Narrow = [],  # noqa: B006 - typer reads the default and never mutates it
    device: o.Device = "cpu",
    threads: o.Threads = None,
    trust_remote_code: o.RemoteCode = False,
    allow_pickle: o.Pickle = False,
    no_chat: o.NoChat = False,
    draft: Drafts = ["lookup"],  # noqa: B006
    verifier: o.Verifier = "token",
    schedule: o.Schedule = "adaptive",
    draft_length: o.DraftLength = 8,
    fixed: Fixed = [],  # noqa: B006
    prompts: Prompts = [],  # noqa: B006
    limit: Limit = None,
    temperature: Temperatures = [0.0, 1.0],  # noqa: B006
    max_tokens: MaxTokens = 128,
    repeats: Repeats = 3,
    seed: Seed = 1,
    ignore_eos: o.IgnoreEos = False,
    no_floor: NoFloor = False,
    peers: WithPeers = False,
    peer: Peer = [],  # noqa: B006
    peer_lookup: PeerLookup = [5],  # noqa: B006
    peer_python: PeerPython = [],  # noqa: B006
    as_json: o.AsJson = False,
    plot: Plot = [],  # noqa: B006
    load: UnderLoad = False,
    requests: Requests = list(CONCURRENT),  # noqa: B006
    curve: Curve = None,
) -> None:
    """Measure what speculation gains here: plain and speculative decoding, interleaved, with the same seeds."""
    here = report.Machine.here()
    for path in plot:
        plots.check(path)
    if curve is not None:
        bench_load.run_simulated(curve, here, requests, seed, as_json=as_json, plot=plot)
        return
    chosen = [workloads.from_file(path) for path in prompts]
    if names or not prompts:
        chosen += workloads.builtin(names or workloads.NAMES)
    how = LoadOptions(
        backend=backend,  # type: ignore[arg-type]  # checked on construction
        dtype=dtype,
        weights=weights,
        activations=activations,
        narrow=o.narrow_passes(narrow),
        device=device,
        threads=threads,
        trust_remote_code=trust_remote_code,
        allow_pickle=allow_pickle,
    )
    if load:
        asked = bench_load.LoadRequest(
            model=model,
            load=how,
            drafts=tuple(draft),
            verifier=verifier,
            length=draft_length,
            requests=tuple(requests),
            workloads=tuple(workload.first(limit) for workload in chosen),
            temperature=temperature[-1],
            max_tokens=max_tokens,
            repeats=repeats,
            seed=seed,
            chat=False if no_chat else None,
        )
        bench_load.run_measured(asked, here, as_json=as_json, plot=plot)
        return
    request = BenchRequest(
        model=model,
        load=how,
        specs=specs(draft, verifier, schedule, draft_length, fixed),
        run=RunOptions(
            workloads=tuple(workload.first(limit) for workload in chosen),
            temperatures=tuple(temperature),
            max_tokens=max_tokens,
            repeats=repeats,
            seed=seed,
            floor=not no_floor,
            ignore_eos=ignore_eos,
        ),
        chat=False if no_chat else None,
        peer_names=tuple(peer) or (others.NAMES if peers else ()),
        peer_lookups=tuple(peer_lookup),
        peer_pythons=tuple(pair(entry) for entry in peer_python),
    )
    with loading() as progress:
        finished = measure(request, here, progress)
    if as_json:
        print(json.dumps(finished.to_json(), ensure_ascii=False))
    else:
        console = Console(highlight=False)
        # A file or a pipe has no width of its own, and tables must not be cut to a guess.
        show(finished, console if console.is_terminal else Console(highlight=False, width=160))
    for path in plot:
        plots.save(finished, path)


def measure(request: BenchRequest, here: report.Machine, progress: Progress) -> report.Report:
    """Load, measure, report."""
    load = request.load
    target, tokenizer = load_target_for(next(iter(request.reading), "none"), request.model, load, progress)
    runtime = repr(load)
    parts = Parts(
        target=target,
        tokenizer=tokenizer,
        load_model=lambda name: load_target(name, load, progress=progress),
        schedule=lambda name, length: make_schedule(name, length, target, runtime),
        curve=lambda: load_or_measure(
            target, runtime, max(longest_draft(spec.schedule, spec.length, target) for spec in request.specs)
        ),
    )
    modes: list[Mode] = [EngineMode(spec, parts) for spec in request.specs]
    statuses: list[others.PeerStatus] = []
    failed: dict[str, str] = {}
    with ExitStack() as stack:
        if request.peer_names:
            files = others.model_files(request.model, load.weights or "file")
            job = others.PeerJob(
                files={name: files[name] for name in request.peer_names},
                threads=load.threads or _cores(),
                eos=tuple(sorted(target.eos_ids)),
                dtype=load.dtype or "float32",
                lookups=request.peer_lookups,
                pythons=dict(request.peer_pythons),
            )
            started = stack.enter_context(others.Peers(job, progress))
            modes += started.modes
            statuses += started.statuses
        groups: list[GroupResult] = run(
            request.run,
            modes,
            lambda text: encode(text, tokenizer, target.vocab_size, chat=request.chat),
            parts.curve,
            progress,
            failed,
        )
    statuses += [others.PeerStatus(name, "failed", why) for name, why in failed.items()]
    return report.Report(here, request.model, _settings(request), parts.curve().points, tuple(groups), tuple(statuses))


def show(finished: report.Report, console: Console) -> None:
    """Tables and notes on the terminal."""
    for table in report.tables(finished):
        console.print(table)
    console.print("predicted: Leviathan's closed form / the cost curve. outside: share of time not in model calls.")
    for note in report.notes(finished):
        console.print(f"[yellow]note:[/] {note.replace('[', chr(92) + '[')}")


def specs(drafts: list[str], verifier: str, schedule: str, length: int, fixed: list[int]) -> tuple[Spec, ...]:
    """Plain, every drafter under the schedule, and every drafter at each fixed length."""
    found = [Spec("none", "token", "fixed", 0)]
    for name in drafts:
        if name != "none":
            found.append(Spec(name, verifier, schedule, length))
            found += [Spec(name, verifier, "fixed", each) for each in fixed]
    return tuple(dict.fromkeys(found))


def _settings(request: BenchRequest) -> dict[str, Any]:
    r = request.run
    return {
        "backend": request.load.backend_for(request.model),
        "dtype": request.load.dtype or "float32",
        "weights": request.load.weights or "file",
        "activations": request.load.activations or "float32",
        "threads": request.load.threads or _cores(),
        "max_tokens": r.max_tokens,
        "repeats": r.repeats,
        "seed": r.seed,
    }


def _cores() -> int:
    from draftproof.target.openvino_compile import cap_threads

    return cap_threads(None)


def pair(entry: str) -> tuple[str, str]:
    """NAME=PATH taken apart; InvalidValue if it is not of that form."""
    name, separator, path = entry.partition("=")
    if not separator or not path:
        raise InvalidValue(f"--peer-python {entry}", "write NAME=PATH, such as llama-cpp-python=/usr/bin/python3")
    return name, path
