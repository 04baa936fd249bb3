"""Reports: every verdict is shown, "nothing found" says what would have been, and the page stands alone."""

from __future__ import annotations

import io
import json
import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest
import typer
from audit_tables import Markov
from rich.console import Console

from draftproof.audit.page import audit_page
from draftproof.audit.report import AuditReport, Finding, Statistic, Verdict, pair_finding, sampled_finding, versions
from draftproof.audit.self_audit import SelfAuditPlan, audit_self, self_report
from draftproof.cli.audit import deliver
from draftproof.draft.scripted import ScriptedDrafter
from draftproof.proof.mutants import ReplacementFromP, StaleCacheTarget
from draftproof.proof.sequential import SequentialTest
from draftproof.proof.twosample import TwoSampleTest
from draftproof.target.table import TableTarget
from draftproof.verify import TokenVerifier

MARKUP = "<script>alert(1)</script> [bold]x[/]"


@cache
def _statistics() -> dict[str, Statistic]:
    pairs = TwoSampleTest()
    pairs.update([1, 2], [1, 3])
    return {
        "right": Markov().audit(TokenVerifier(), tokens=200, seed=0, level=1e-3).result(),
        "wrong": Markov().audit(ReplacementFromP(), tokens=2000, seed=0, level=1e-3, stop=False).result(),
        "pairs": pairs.result(),
    }


def _report(*verdicts: Verdict) -> AuditReport:
    return AuditReport(
        subject=MARKUP,
        facts={"model": MARKUP, **versions("numpy", "no-such-package")},
        findings=[Finding(f"check {i}", v, MARKUP) for i, v in enumerate(verdicts)],
        statistics=_statistics(),
        seconds=1.5,
    )


@pytest.mark.parametrize(("verdict", "ok"), [(v, v not in (Verdict.WRONG, Verdict.IGNORED)) for v in Verdict])
def test_only_ignored_and_wrong_fail_an_audit(verdict: Verdict, ok: bool) -> None:
    report = _report(Verdict.HONOURED, verdict)
    assert report.ok is ok
    if ok:
        deliver(report, as_json=True, html=None)
    else:
        with pytest.raises(typer.Exit):
            deliver(report, as_json=True, html=None)


def test_the_terminal_shows_every_finding_and_text_as_it_is() -> None:
    stream = io.StringIO()
    _report(*Verdict).print(Console(file=stream, width=200))
    shown = stream.getvalue()
    assert all(str(verdict) in shown for verdict in Verdict)
    assert MARKUP in shown
    assert "would have been found" in shown


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [v or "" for k, v in attrs if k in ("src", "href", "action", "srcset", "data")]


def test_the_page_runs_nothing_loads_nothing_and_draws_every_statistic() -> None:
    html = audit_page(_report(*Verdict))
    page = _Page()
    page.feed(html)
    assert "script" not in page.tags
    assert page.addresses == []
    assert not re.search(r"url\(|@import|https?:", html)
    assert page.tags.count("polyline") == 3
    assert page.tags.count("svg") == 3 + 2 * 2  # a curve each, and two histograms for each test of tokens
    assert html.count("&lt;script&gt;") >= 1 + len(Verdict)


def test_the_json_has_no_infinities_and_keeps_the_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    report = _report(Verdict.NOTHING)
    deliver(report, as_json=True, html=None)
    plain = json.loads(capsys.readouterr().out)
    assert plain["ok"] is True
    assert plain["statistics"]["wrong"]["rejected"] is True
    assert plain["facts"]["no-such-package"] == "not installed"


def test_findings_of_tests_say_bias_or_power() -> None:
    right, wrong = _report().statistics["right"], _report().statistics["wrong"]
    assert "would have been found" in sampled_finding("x", right).detail  # type: ignore[arg-type]
    assert sampled_finding("x", wrong).verdict is Verdict.WRONG  # type: ignore[arg-type]
    assert "bias: at least 0.0" in sampled_finding("x", wrong).detail  # type: ignore[arg-type]
    assert "would have been found" in pair_finding("x", TwoSampleTest().result()).detail
    assert "no lower bound" in SequentialTest().result().bias


def test_a_self_audit_reports_all_its_evidence(tmp_path: Path) -> None:
    plan = SelfAuditPlan(verifiers=("token",), tokens=300, answer=50)
    for target, ok in ((TableTarget, True), (StaleCacheTarget, False)):
        audit = audit_self(target(Markov().model()), {"s": lambda: ScriptedDrafter(Markov().script)}, [[0, 1]], plan)
        report = self_report(audit)
        assert report.ok is audit.ok is ok
        assert [f.check for f in report.findings] == [
            "speculation on = off, coupled, s",
            "speculation on = off, greedy, s",
            "sampled text, token, s, T = 1",
        ]
        (tmp_path / "page.html").write_text(audit_page(report), encoding="utf-8")
