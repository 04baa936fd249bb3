"""Cost curves kept on disk, one per model, runtime, machine and thread count.

What it is for: starting without measuring again. Guarantees: a file is whole or absent; one that cannot be read, or
that real rounds have disproved, is measured again. What it does not do: share curves between machines.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from pathlib import Path

from draftproof.models.cache import cache_root, fresh_file
from draftproof.schedule.costs import CostCurve, measure
from draftproof.target.base import Target


def machine() -> str:
    """What a cost depends on besides the model: processor, cores."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        cpu = names[0] if names else cpu
    return f"{cpu} x{os.cpu_count()}"


def curve_file(target: Target, runtime: str, longest: int) -> Path:
    """Where the curve of this target is kept. runtime: backend, weight format, threads: whatever changes its speed."""
    key = "|".join([target.name, str(target.vocab_size), runtime, str(longest), machine()])
    return cache_root() / "costs" / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"


def load_or_measure(target: Target, runtime: str, longest: int) -> CostCurve:
    """The kept curve, or one measured now (under two seconds) and kept."""
    file = curve_file(target, runtime, longest)
    kept = read(file)
    if kept is not None:
        return kept
    return measure_and_keep(target, runtime, longest)


def measure_and_keep(target: Target, runtime: str, longest: int, *, budget: float = 1.0) -> CostCurve:
    """A curve measured now, in place of the one that is kept."""
    curve = measure(target, longest=longest, budget=budget)
    write(curve_file(target, runtime, longest), curve)
    return curve


def read(file: Path) -> CostCurve | None:
    """The curve in a file; None if there is none or it is damaged."""
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        points = {int(rows): float(seconds) for rows, seconds in kept["seconds_by_rows"].items()}
        return CostCurve(points, switch=float(kept["switch_seconds"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write(file: Path, curve: CostCurve) -> None:
    """Keep a curve; the file appears whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with fresh_file(file) as unfinished:
        unfinished.write_text(
            json.dumps({"seconds_by_rows": curve.points, "switch_seconds": curve.switch}), encoding="utf-8"
        )
