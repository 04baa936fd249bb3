"""The page of an audit: findings, the e-value over the tokens, the histograms of the probability transform.

Guarantees: one self-contained file without scripts and without anything from a network; every text is escaped. What
it does not do: compute; the curves are the results' own points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from importlib.resources import files
from typing import Any

import jinja2

from draftproof.audit.report import AuditReport, Statistic
from draftproof.proof.pit import PitHistogram
from draftproof.proof.sequential import SequentialResult

WIDTH, HEIGHT = 640, 220
LEFT, BOTTOM, TOP = 46, 26, 10
CEILING = 12.0  # log10 e beyond this is drawn at the edge: the figure beside the curve is exact


def audit_page(report: AuditReport) -> str:
    """The page's HTML."""
    source = files("draftproof.audit").joinpath("assets/audit.html").read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    statistics = [_statistic(name, s) for name, s in report.statistics.items()]
    return environment.from_string(source).render(
        report=report, statistics=statistics, width=WIDTH, height=HEIGHT, left=LEFT, bottom=HEIGHT - BOTTOM
    )


def _statistic(name: str, statistic: Statistic) -> dict[str, Any]:
    pit = statistic.pit if isinstance(statistic, SequentialResult) else ()
    return {
        "name": name,
        "text": str(statistic),
        "curve": _curve(statistic.path, statistic.level),
        "histograms": [_histogram(h) for h in pit if h.n],
    }


def _curve(path: Seq[tuple[int, float]], level: float) -> dict[str, Any]:
    """Points of the e-value's path in the drawing's units, and the line it must not reach."""
    steps = max(n for n, _ in path) or 1
    values = [min(max(e, -CEILING), CEILING) for _, e in path]
    goal = -math.log10(level)
    low, high = min(-1.0, *values), max(goal + 0.5, *values)
    inside = HEIGHT - BOTTOM - TOP

    def y(value: float) -> float:
        return round(TOP + inside * (high - value) / (high - low), 1)

    points = " ".join(
        f"{round(LEFT + (WIDTH - LEFT - 8) * n / steps, 1)},{y(v)}" for (n, _), v in zip(path, values, strict=True)
    )
    return {"points": points, "goal": y(goal), "zero": y(0.0), "steps": steps, "low": low, "high": high, "level": level}


def _histogram(histogram: PitHistogram) -> dict[str, Any]:
    top = max(*histogram.counts, histogram.expected + 4 * histogram.sigma)
    bars = len(histogram.counts)
    inside = HEIGHT - BOTTOM - TOP
    width = (WIDTH / 2 - LEFT) / bars

    def y(value: float) -> float:
        return round(TOP + inside * (1 - value / top), 1)

    return {
        "order": histogram.order,
        "n": histogram.n,
        "bars": [(round(LEFT + i * width, 1), y(c), round(width - 1, 1), c) for i, c in enumerate(histogram.counts)],
        "expected": y(histogram.expected),
        "band": (y(histogram.expected + 3 * histogram.sigma), y(max(0.0, histogram.expected - 3 * histogram.sigma))),
    }
