"""What the engine adds to its models: time outside forward passes, and memory above models and caches.

Run: python benchmarks/overhead.py [--model smollm2] [--repeats 3]. Bounds: at draft length 4, on the transformers
backend in float32, at most 5 % of the time and at most 64 MB.

Time: wall time of decoding minus the wall time of every target and draft call, over the former; drafters lookup and a
draft model (the target's own weights), temperature 0 and 1; median of repeats.

Memory: the same model calls are made in two fresh processes, once by the engine and once bare (replayed from a list,
rows thrown away). What the process with the engine holds more of anonymous memory, at its peak after a round or call
and at the end, is the engine with its tokenizer, drafter and rows. (Weights mapped from a file are not anonymous, and
the system may drop and reread them at any time.) What Python and NumPy allocate within rounds while the engine runs is
traced in a third process and printed next to it; the largest of the three has to keep the bound.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

from draftproof.bench.calls import Log, RecordingTarget
from draftproof.bench.modes import EngineMode, Parts, Spec
from draftproof.bench.summary import outside
from draftproof.bench.workloads import builtin
from draftproof.draft.lookup import LookupDrafter
from draftproof.engine import Engine
from draftproof.load import LoadOptions, load_target
from draftproof.sampling.params import SamplingParams
from draftproof.schedule.costs import CostCurve
from draftproof.schedule.fixed import FixedSchedule
from draftproof.target.base import Feed
from draftproof.target.transformers import TransformersTarget

LENGTH = 4
MOST_TIME, MOST_MEGABYTES = 0.05, 64.0
OPTIONS = LoadOptions(backend="transformers", dtype="float32")


def parts(model: str) -> Parts:
    """The model, loaded once, also for its own draft model: two caches, one set of weights."""
    target, tokenizer = load_target(model, OPTIONS)
    return Parts(
        target=target,
        tokenizer=tokenizer,
        load_model=lambda name: (target, tokenizer),
        schedule=lambda name, length: FixedSchedule(length),
        curve=lambda: CostCurve({1: 1.0}),
    )


def time_outside(model: str, repeats: int, tokens: int) -> float:
    """Print and return the largest share of time outside model calls."""
    loaded = parts(model)
    worst = 0.0
    prompts = [loaded.tokenizer.chat([{"role": "user", "content": w.prompts[0]}]) for w in builtin()]  # type: ignore[union-attr]
    for draft in ("lookup", f"model:{model}"):
        mode = EngineMode(Spec(draft, "token", "fixed", LENGTH), loaded)
        for temperature in (0.0, 1.0):
            shares = []
            mode.answer(prompts[0], SamplingParams(max_tokens=8, temperature=temperature, seed=0), floor=False)
            for repeat in range(repeats):
                params = SamplingParams(max_tokens=tokens, temperature=temperature, seed=repeat, ignore_eos=True)
                share = outside([mode.answer(prompt, params, floor=False) for prompt in prompts])
                assert share is not None
                shares.append(share)
            median = statistics.median(shares)
            worst = max(worst, median)
            print(f"time outside model calls: {median:7.2%}  ({draft}, T = {temperature:g})", flush=True)
    return worst


def memory(model: str, repeats: int) -> float:
    """Print and return the megabytes that the engine adds."""
    with tempfile.TemporaryDirectory() as folder:
        calls = Path(folder) / "calls.json"
        traced = _child("record", model, calls)["traced"]
        pairs = [(_child("engine", model, calls), _child("bare", model, calls)) for _ in range(repeats)]
    added = {what: statistics.median(engine[what] - bare[what] for engine, bare in pairs) for what in ("peak", "last")}
    print(f"memory allocated by Python and NumPy while the engine runs, at its peak: {traced:6.1f} MB")
    for what, name in (("peak", "at its peak"), ("last", "after the last round")):
        print(f"anonymous memory above the bare model calls, {name}: {added[what]:6.1f} MB")
    return max(traced, *added.values())


def _child(role: str, model: str, calls: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--model", model, "--role", role, "--calls", str(calls)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def child(role: str, model: str, calls: Path) -> None:
    """One process of the comparison; prints its figures as JSON."""
    print(json.dumps({"bare": _bare, "engine": _engine, "record": _record}[role](model, calls)))


def _engine(model: str, calls: Path) -> dict[str, float]:
    held: list[float] = []
    _answer(parts(model), lambda: held.append(_anonymous()))
    return {"peak": max(held), "last": held[-1]}


def _record(model: str, calls: Path) -> dict[str, float]:
    """The engine once more, with every allocation traced, and its calls written down for the bare process."""
    loaded = parts(model)
    _answer(
        loaded, lambda: None
    )  # what is made once (compiled templates, caches of libraries) belongs to nobody's round
    tracemalloc.start()
    log = _answer(loaded, lambda: None)
    traced = tracemalloc.get_traced_memory()[1] / 2**20
    plain = [
        (c.kind, [(f.handle, list(f.tokens), f.rows) for f in c.argument] if c.kind == "score" else c.argument)
        for c in log.calls
    ]
    calls.write_text(json.dumps(plain), encoding="utf-8")
    return {"traced": traced}


def _answer(loaded: Parts, after_round: Callable[[], None]) -> Log:
    """One answer by the engine; the calls that it made."""
    target = RecordingTarget(loaded.target, perf_counter)
    target.log = Log(perf_counter)
    engine = Engine(target, drafter=LookupDrafter(), schedule=FixedSchedule(LENGTH), tokenizer=loaded.tokenizer)
    engine.add(builtin(["code"])[0].prompts[1], SamplingParams(max_tokens=96, seed=1, ignore_eos=True))
    while engine.live:
        engine.round()
        after_round()
    return target.log


def _bare(model: str, calls: Path) -> dict[str, float]:
    target = TransformersTarget.load(model, dtype="float32")
    handles: dict[int, int] = {}
    held: list[float] = []
    for kind, argument in json.loads(calls.read_text(encoding="utf-8")):
        if kind == "open":
            handles[argument] = target.open()
        elif kind == "rollback":
            target.rollback(handles[argument[0]], argument[1])
        elif kind == "close":
            target.close(handles.pop(argument))
        else:
            target.score([Feed(handles[handle], tokens, rows) for handle, tokens, rows in argument])
        held.append(_anonymous())
    return {"peak": max(held), "last": held[-1]}


def _anonymous() -> float:
    """Megabytes of memory of this process that no file backs."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024


def main() -> None:
    """Measure, print, and exit with 1 if a bound is broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=96, help="tokens of each timed answer")
    parser.add_argument("--role", choices=["bare", "engine", "record"], help=argparse.SUPPRESS)
    parser.add_argument("--calls", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        child(options.role, options.model, options.calls)
        return
    share, megabytes = (
        time_outside(options.model, options.repeats, options.tokens),
        memory(options.model, options.repeats),
    )
    print(f"time:   {share:6.2%}, bound {MOST_TIME:.0%}: {'held' if share <= MOST_TIME else 'BROKEN'}")
    held = megabytes <= MOST_MEGABYTES
    print(f"memory: {megabytes:5.1f} MB, bound {MOST_MEGABYTES:.0f} MB: {'held' if held else 'BROKEN'}")
    sys.exit(0 if share <= MOST_TIME and held else 1)


if __name__ == "__main__":
    main()
