"""Plots of a run: tokens per second with quartiles, and acceptance by position.

Guarantees: PNG or SVG by the file's ending, without a display; the numbers are those of the report. Needs matplotlib
(the extra `bench`). What it does not do: compute anything.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftproof.bench.report import Report
from draftproof.errors import InvalidValue, MissingExtra

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ENDINGS = (".png", ".svg")
# Okabe and Ito's colours, told apart by most readers with a colour deficiency.
COLOURS = ("#000000", "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")


def check(path: Path) -> None:
    """Refuse, before anything is measured, what `save` could not write."""
    if path.suffix.lower() not in ENDINGS:
        raise InvalidValue(f"plot file {path.name}", f"a name that ends in {' or '.join(ENDINGS)}")
    if not path.parent.is_dir():
        raise InvalidValue(f"plot file {path}: no such folder", "make it first")
    _figure_class()


def save(report: Report, path: Path) -> None:
    """One row of plots for each temperature. Raises InvalidValue and MissingExtra as `check` does."""
    check(path)
    temperatures = sorted({group.temperature for group in report.groups})
    figure = _figure_class()(figsize=(12, 1 + 3.5 * len(temperatures)), layout="constrained")
    axes = figure.subplots(len(temperatures), 2, squeeze=False)
    for row, temperature in zip(axes, temperatures, strict=True):
        _speed(row[0], report, temperature)
        _acceptance(row[1], report, temperature)
    figure.suptitle(f"{report.model}: {report.machine.processor}")
    figure.savefig(path)


def _figure_class() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("plots need matplotlib", "pip install 'draftproof[bench]'") from error
    return Figure


def _speed(axes: Axes, report: Report, temperature: float) -> None:
    groups = [g for g in report.groups if g.temperature == temperature]
    names = [mode.name for mode in groups[0].modes]
    width = 0.8 / len(names)
    for k, name in enumerate(names):
        spreads = [next(m for m in g.modes if m.name == name).tokens_per_second for g in groups]
        known = [(i, s) for i, s in enumerate(spreads) if s is not None]
        axes.bar(
            [i + (k - (len(names) - 1) / 2) * width for i, _ in known],
            [s.median for _, s in known],
            width,
            yerr=[[s.median - s.low for _, s in known], [s.high - s.median for _, s in known]],
            label=name,
            color=COLOURS[k % len(COLOURS)],
            error_kw={"elinewidth": 0.8, "ecolor": "#555555"},
        )
    axes.set_xticks(range(len(groups)), [g.workload for g in groups])
    axes.set_ylabel("tokens/s (decoding)")
    axes.set_title(f"T = {temperature:g}: median and quartiles", loc="left", fontsize=10)
    axes.legend(fontsize=7)


def _acceptance(axes: Axes, report: Report, temperature: float) -> None:
    shown = 0
    for group in report.groups:
        if group.temperature != temperature:
            continue
        for mode in group.modes:
            if mode.acceptance_by_position:
                values = mode.acceptance_by_position
                label = f"{group.workload}: {mode.name}"
                axes.plot(range(1, len(values) + 1), values, marker="o", markersize=3, linewidth=1, label=label)
                shown += 1
    axes.set_ylim(0, 1)
    axes.set_xlabel("position in the block")
    axes.set_ylabel("accepted / drafted")
    axes.set_title(f"T = {temperature:g}: acceptance by position", loc="left", fontsize=10)
    if shown:
        axes.legend(fontsize=7)
