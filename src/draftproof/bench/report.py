"""What was measured, as one object: JSON, a table for the terminal, Markdown.

Guarantees: the JSON holds every figure the tables are made from, with units in the names; a figure that does not exist
is null, never 0. A machine that was busy when the run began is named as such. What it does not do: plots; see `plots`.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table

from draftproof import __version__
from draftproof.bench.peers import PeerStatus
from draftproof.bench.run import GroupResult
from draftproof.bench.stats import Spread
from draftproof.bench.summary import ModeResult
from draftproof.schedule.curves import machine as processor

SCHEMA = "draftproof.bench/1"
BUSY = 0.25
"""Load per core above which a machine counts as busy: other programs took that share of it."""

_LIBRARIES = ("numpy", "openvino", "torch", "transformers")


@dataclass(frozen=True, slots=True)
class Machine:
    """Where it ran. load: runnable processes per core when the run began, None where the system does not say."""

    processor: str
    system: str
    python: str
    libraries: dict[str, str]
    load: float | None

    @classmethod
    def here(cls) -> Machine:
        """To be asked before anything is loaded."""
        versions = {}
        for library in _LIBRARIES:
            try:
                versions[library] = importlib.metadata.version(library)
            except importlib.metadata.PackageNotFoundError:
                continue
        load = os.getloadavg()[0] / (os.cpu_count() or 1) if hasattr(os, "getloadavg") else None
        return cls(processor(), platform.system(), platform.python_version(), versions, load)

    @property
    def busy(self) -> bool:
        """Whether other programs were running: then the figures are provisional."""
        return self.load is not None and self.load > BUSY


@dataclass(frozen=True, slots=True)
class Report:
    """A finished run. model, settings: as they were asked for. curve: seconds of a pass by rows."""

    machine: Machine
    model: str
    settings: dict[str, Any]
    curve: dict[int, float] | None
    groups: tuple[GroupResult, ...]
    peers: tuple[PeerStatus, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers."""
        return {
            "schema": SCHEMA,
            "version": __version__,
            "machine": dataclasses.asdict(self.machine) | {"busy": self.machine.busy},
            "model": self.model,
            "settings": self.settings,
            "cost_curve_seconds": self.curve,
            "results": [_group_json(group) for group in self.groups],
            "peers": [dataclasses.asdict(peer) for peer in self.peers],
        }


def tables(report: Report) -> list[Table]:
    """For each workload and temperature: how fast, and, for our own modes, where the rounds' time went."""
    found = []
    for group in report.groups:
        title = f"{group.workload}, T = {group.temperature:g}, {group.prompts} prompts"
        found.append(_table(group, title, _SPEED, group.modes))
        own = [mode for mode in group.modes if mode.tokens_per_round is not None]
        found.append(_table(group, "", _ROUNDS, own))
    return found


def notes(report: Report) -> list[str]:
    """What the reader of the tables must know besides."""
    said = []
    if report.machine.busy:
        said.append(
            f"the machine was busy when the run began ({report.machine.load:.2f} runnable processes per core): "
            "these figures are provisional"
        )
    said += [f"{peer.name} {peer.status}: {peer.detail}" for peer in report.peers if peer.status != "measured"]
    said += [
        f"{group.workload} T={group.temperature:g} {mode.name}: off at the end; {mode.off_reason}"
        for group in report.groups
        for mode in group.modes
        if mode.off_reason and mode.drafts
    ]
    return said


def markdown(report: Report) -> str:
    """A table with one line for each workload, temperature and mode."""
    lines = [
        "| Workload | T | Mode | tokens/s | spread | x plain | tokens/round | predicted | efficiency | x best peer |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for group in report.groups:
        for mode in group.modes:
            cells = [
                group.workload,
                f"{group.temperature:g}",
                mode.name,
                _median(mode.tokens_per_second, ".1f"),
                _range(mode.tokens_per_second, ".1f"),
                _median(mode.speedup, ".2f"),
                _number(mode.tokens_per_round, ".2f"),
                _predicted(mode),
                _median(mode.efficiency, ".3f"),
                _median(group.against_best_peer.get(mode.name), ".2f"),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", _conditions(report), *(f"\n{note[0].upper()}{note[1:]}." for note in notes(report))])


def brief(report: Report) -> str:
    """A table with one line for each workload and temperature: our plain tokens/s, and every mode's ratio to it."""
    first = report.groups[0].modes
    names = [m.name for m in first if m.baseline == first[0].baseline and m.name != first[0].name]
    lines = [
        f"| Workload | T | {first[0].name}, tokens/s | {' | '.join(names)} | best other program |",
        f"|---|---|{'---:|' * (len(names) + 2)}",
    ]
    for group in report.groups:
        modes = {mode.name: mode for mode in group.modes}
        plain = group.modes[0]
        other = group.against_best_peer.get(plain.name)
        cells = [
            group.workload,
            f"{group.temperature:g}",
            _median(plain.tokens_per_second, ".1f"),
            *(_median(modes[name].speedup, ".2f") if name in modes else "" for name in names),
            f"{1 / other.median:.2f} ({group.best_peer})" if other is not None else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", _conditions(report)])


def _conditions(report: Report) -> str:
    m = report.machine
    libraries = ", ".join(f"{name} {version}" for name, version in m.libraries.items())
    return (
        f"{report.model}; {', '.join(f'{k} {v}' for k, v in report.settings.items())}. {m.processor}, {m.system}, "
        f"Python {m.python}, {libraries}. Medians over repeats, quartiles as spread; decoding only, without the "
        "prompt's pass. Predicted: Leviathan's closed form / the cost curve."
    )


_Columns = dict[str, Callable[[GroupResult, ModeResult], str]]

_SPEED: _Columns = {
    "tokens/s": lambda group, mode: _median(mode.tokens_per_second, ".1f"),
    "quartiles": lambda group, mode: _range(mode.tokens_per_second, ".1f"),
    "x plain": lambda group, mode: _median(mode.speedup, ".2f"),
    "quartiles ": lambda group, mode: _range(mode.speedup, ".2f"),
    "first token": lambda group, mode: _milliseconds(mode.first_seconds),
    "same text": lambda group, mode: _number(mode.same_text, ".0%"),
    "x best peer": lambda group, mode: _median(group.against_best_peer.get(mode.name), ".2f"),
}
_ROUNDS: _Columns = {
    "tokens/round": lambda group, mode: _number(mode.tokens_per_round, ".2f"),
    "accepted": lambda group, mode: _number(mode.acceptance_rate, ".0%"),
    "by position, %": lambda group, mode: " ".join(f"{100 * a:.0f}" for a in mode.acceptance_by_position),
    "predicted": lambda group, mode: _predicted(mode),
    "outside": lambda group, mode: _median(mode.outside, ".1%"),
    "efficiency": lambda group, mode: _median(mode.efficiency, ".3f"),
}


def _table(group: GroupResult, title: str, columns: _Columns, modes: Seq[ModeResult]) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    table.add_column("mode", no_wrap=True)
    cells = {name: [show(group, mode) for mode in modes] for name, show in columns.items()}
    # A column in which nothing applies (no peers, say) would only take room.
    shown = {name: column for name, column in cells.items() if any(column)}
    for name in shown:
        table.add_column(name.strip(), justify="right", no_wrap=True)
    for i, mode in enumerate(modes):
        table.add_row(mode.name, *(column[i] for column in shown.values()))
    return table


def _group_json(group: GroupResult) -> dict[str, Any]:
    return {
        "workload": group.workload,
        "temperature": group.temperature,
        "prompts": group.prompts,
        "modes": [dataclasses.asdict(mode) for mode in group.modes],
        "best_peer": group.best_peer,
        "against_best_peer": {
            name: None if spread is None else dataclasses.asdict(spread)
            for name, spread in group.against_best_peer.items()
        },
    }


def _predicted(mode: ModeResult) -> str:
    both: Seq[float | None] = (mode.predicted_leviathan, mode.predicted_curve)
    return " / ".join(_number(p, ".2f") or "-" for p in both) if any(p is not None for p in both) else ""


def _median(spread: Spread | None, format: str) -> str:
    return "" if spread is None else f"{spread.median:{format}}"


def _range(spread: Spread | None, format: str) -> str:
    return "" if spread is None else f"{spread.low:{format}}-{spread.high:{format}}"


def _milliseconds(spread: Spread | None) -> str:
    return "" if spread is None else f"{1e3 * spread.median:.0f} ms"


def _number(value: float | None, format: str) -> str:
    return "" if value is None else f"{value:{format}}"
