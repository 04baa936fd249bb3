"""What an audit hands over: findings, one line each, and the statistics behind them.

Guarantees: every audit, whatever it looked at, is reported in the same words; a verdict is one of `Verdict`, and
"nothing found" always comes with what would have been found. What it does not do: decide; the checks do.
"""

from __future__ import annotations

import dataclasses
import enum
import platform
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from draftproof import __version__
from draftproof.proof.sequential import SequentialResult
from draftproof.proof.twosample import TwoSampleResult


class Verdict(enum.StrEnum):
    """What a check says."""

    HONOURED = "honoured"  # asked for and done, as far as the check can see
    REFUSED = "refused"  # an error that names it
    IGNORED = "ignored"  # accepted and not done
    WRONG = "wrong"  # done, and not right
    NOTHING = "nothing found"  # no difference; the detail says what would have been found
    UNKNOWN = "cannot tell"  # the detail says why


GOOD = {Verdict.HONOURED, Verdict.REFUSED, Verdict.NOTHING}
COLOURS = {
    Verdict.HONOURED: "green",
    Verdict.NOTHING: "green",
    Verdict.REFUSED: "cyan",
    Verdict.IGNORED: "red",
    Verdict.WRONG: "bold red",
    Verdict.UNKNOWN: "yellow",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of a report."""

    check: str
    verdict: Verdict
    detail: str


Statistic = SequentialResult | TwoSampleResult


@dataclass(frozen=True, slots=True)
class AuditReport:
    """One audit. subject: what was audited. facts: how (model, sizes, level). statistics: named tests behind findings.

    details: whatever else the audit measured, for the JSON.
    """

    subject: str
    facts: Mapping[str, str]
    findings: Seq[Finding]
    statistics: Mapping[str, Statistic]
    seconds: float
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Nothing ignored and nothing wrong ("cannot tell" is neither)."""
        return not any(f.verdict in (Verdict.IGNORED, Verdict.WRONG) for f in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Plain lists, numbers and strings."""
        return {
            "subject": self.subject,
            "facts": dict(self.facts),
            "ok": self.ok,
            "findings": [{**dataclasses.asdict(f), "verdict": str(f.verdict)} for f in self.findings],
            "statistics": {name: s.to_json() for name, s in self.statistics.items()},
            "seconds": self.seconds,
            "details": dict(self.details),
        }

    def print(self, console: Console) -> None:
        """The terminal's table, and under it what the tests of sampled text say."""
        table = Table(title=escape(self.subject), title_justify="left", show_edge=False, pad_edge=False)
        table.add_column("check")
        table.add_column("verdict", no_wrap=True)
        table.add_column("what was seen")
        for f in self.findings:
            table.add_row(escape(f.check), f"[{COLOURS[f.verdict]}]{f.verdict}[/]", escape(f.detail))
        console.print(table)
        for name, statistic in self.statistics.items():
            console.print(f"\n[bold]{escape(name)}[/]\n{escape(str(statistic))}")
        console.print("\n" + escape(", ".join(f"{k} {v}" for k, v in self.facts.items())), style="dim")


def sampled_finding(name: str, result: SequentialResult) -> Finding:
    """The line of a sequential test."""
    if result.rejected:
        detail = f"log10 e {result.log10_e:.1f} after {result.n} tokens; {result.bias}"
        return Finding(name, Verdict.WRONG, f"{detail}; grew most: {result.grew[0].bet} at {result.grew[0].watch}")
    shift = result.detectable.get("the argmax")
    power = "" if shift is None else f"; a shift of the argmax by {shift:.3f} would have been found"
    return Finding(name, Verdict.NOTHING, f"log10 e {result.log10_e:.1f} after {result.n} tokens{power}")


def pair_finding(name: str, result: TwoSampleResult) -> Finding:
    """The line of a two-sample test."""
    if result.rejected:
        best = result.guesses[0]
        detail = (
            f"log10 e {result.log10_e:.1f} after {result.pairs} pairs; {best.name}: right {best.right} of {best.of}"
        )
        return Finding(name, Verdict.WRONG, detail)
    detail = f"log10 e {result.log10_e:.1f} after {result.pairs} pairs; a guess right {0.5 + result.detectable:.2f} of "
    return Finding(name, Verdict.NOTHING, detail + "the time would have been found")


def versions(*packages: str) -> dict[str, str]:
    """Versions of this package, Python and whatever else took part, for `facts`."""
    found = {"draftproof": __version__, "python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
