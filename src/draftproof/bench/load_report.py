"""What a run under load found, measured or simulated: JSON, a table, a plot of throughput against per-request speed.

Guarantees: the JSON holds every figure of table and plot, with units in the names, and says whether it was simulated.
What it does not do: measure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from draftproof import __version__
from draftproof.bench import plots
from draftproof.bench.policies import LoadPoint
from draftproof.bench.profile import Profile
from draftproof.bench.report import Machine
from draftproof.bench.stats import standard_error

SCHEMA = "draftproof.bench.load/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """simulated: from a curve file. machine: where it ran. profile: the curve file, or what was measured as one."""

    title: str
    simulated: bool
    machine: Machine
    settings: dict[str, Any]
    points: tuple[LoadPoint, ...]
    profile: Profile | None

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers."""
        return {
            "schema": SCHEMA,
            "version": __version__,
            "title": self.title,
            "simulated": self.simulated,
            "machine": dataclasses.asdict(self.machine) | {"busy": self.machine.busy},
            "settings": self.settings,
            "profile": None if self.profile is None else self.profile.to_json(),
            "points": [
                {
                    "policy": point.policy,
                    "requests": point.requests,
                    "tokens_per_second": point.throughput,
                    "tokens_per_second_error": point.error,
                    "tokens_per_second_per_request": point.per_request,
                    "tokens_per_round": point.tokens_per_round,
                    "rows_per_round": point.rows_per_round,
                    "of_best_fixed": of_best_fixed(self.points, point),
                    "of_best_fixed_error": error_of_best_fixed(self.points, point),
                    "tokens_per_second_by_repeat": list(point.rates),
                }
                for point in self.points
            ],
        }

    @property
    def requests(self) -> list[int]:
        """The concurrencies, ascending."""
        return sorted({point.requests for point in self.points})


def of_best_fixed(points: Seq[LoadPoint], point: LoadPoint) -> float:
    """Throughput over the best of plain decoding and all fixed lengths with as many requests."""
    return point.throughput / _best_fixed(points, point).throughput


def error_of_best_fixed(points: Seq[LoadPoint], point: LoadPoint) -> float | None:
    """Standard error of `of_best_fixed`, from the ratios within each repeat: a machine that becomes slower from one
    repeat to the next does not count. None for fewer than two repeats.
    """
    pairs = zip(point.rates, _best_fixed(points, point).rates, strict=False)
    return standard_error([rate / best for rate, best in pairs])


def _best_fixed(points: Seq[LoadPoint], point: LoadPoint) -> LoadPoint:
    among = [p for p in points if p.requests == point.requests and is_fixed(p)]
    return max(among, key=lambda p: p.throughput)


def is_fixed(point: LoadPoint) -> bool:
    """Whether the point is of plain decoding or of a fixed length."""
    return point.policy == "plain" or point.policy.startswith("fixed ")


def table(report: LoadReport) -> Table:
    """One line a policy and concurrency."""
    found = Table(title=report.title, box=box.SIMPLE, title_justify="left")
    for heading in (
        "requests",
        "policy",
        "tokens/s",
        "+-",
        "each",
        "tokens/round",
        "rows/round",
        "x best fixed",
        "its error",
    ):
        found.add_column(heading, justify="left" if heading == "policy" else "right")
    for requests in report.requests:
        for point in report.points:
            if point.requests != requests:
                continue
            found.add_row(
                str(requests),
                point.policy,
                f"{point.throughput:.1f}",
                "" if point.error is None else f"{point.error:.1f}",
                f"{point.per_request:.2f}",
                f"{point.tokens_per_round:.2f}",
                f"{point.rows_per_round:.1f}",
                f"{of_best_fixed(report.points, point):.3f}",
                "" if (error := error_of_best_fixed(report.points, point)) is None else f"{error:.3f}",
            )
        found.add_section()
    return found


def save_plot(report: LoadReport, path: Path) -> None:
    """Throughput (upwards) against per-request speed: up and to the right is better.

    Raises InvalidValue and MissingExtra as `plots.check` does.
    """
    plots.check(path)
    figure = plots._figure_class()(figsize=(7.5, 5.5), layout="constrained")
    axes = figure.subplots()
    names = list(dict.fromkeys(point.policy for point in report.points))
    fixed = [name for name in names if name.startswith("fixed ")]
    colours = iter(plots.COLOURS[1:])
    for name in names:
        line = [point for point in report.points if point.policy == name]
        if name in fixed:
            grey = 0.8 - 0.4 * fixed.index(name) / max(len(fixed) - 1, 1)
            style: dict[str, Any] = {"color": str(grey), "linewidth": 0.9, "linestyle": "--"}
        else:
            style = {"color": "#000000" if name == "plain" else next(colours, "#777777"), "linewidth": 1.6}
        if name == "prefix-budget":
            style["linestyle"] = ":"  # it often lies on top of "prefix"
        axes.plot(
            [point.per_request for point in line],
            [point.throughput for point in line],
            marker="o",
            markersize=3.5,
            label=name,
            **style,
        )
    for requests in report.requests:
        top = max((p for p in report.points if p.requests == requests), key=lambda p: p.throughput)
        axes.annotate(
            f"{requests} at a time" if requests > 1 else "1 request",
            (top.per_request, top.throughput),
            textcoords="offset points",
            xytext=(4, 6),
            fontsize=8,
        )
    axes.set(xlabel="tokens/s of each request", ylabel="tokens/s of all requests", yscale="log")
    axes.set_title(report.title + (" (simulated)" if report.simulated else ""), loc="left", fontsize=10)
    axes.legend(fontsize=8, loc="lower left")
    figure.savefig(path)
