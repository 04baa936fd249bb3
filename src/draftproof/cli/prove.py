"""`draftproof prove`: enumerate the production engine, and show that wrong rules are caught.

Guarantees: exit code 0 only if every case ran and every error is exactly zero (with --faults: if every planted fault
was caught and equals its figure); otherwise 1, with the first differing answer and both probabilities.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from time import perf_counter
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from draftproof.errors import UnknownName
from draftproof.proof.cases import Outcome, Provable, engine_cases
from draftproof.proof.control_cases import control_cases
from draftproof.proof.dspark_cases import dspark_cases
from draftproof.proof.faults import Caught, faults

EXPECTED = "errors are exactly 0 in rational arithmetic, at most 1e-12 where a control is irrational"


def all_cases() -> list[Provable]:
    """Everything there is to prove: the engine's parts, the semi-autoregressive drafter, then the controls."""
    return [*engine_cases(), *dspark_cases(), *control_cases()]


def prove(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    only: Annotated[str | None, typer.Option(help="Only cases (or faults) whose name contains this.")] = None,
    show_faults: Annotated[bool, typer.Option("--faults", help="Run the planted faults: each must be caught.")] = False,
    jobs: Annotated[int | None, typer.Option(help="Processes; default: one per core, at most 8.", min=1)] = None,
) -> None:
    """Enumerate every random branch of the engine on toy models and compare with the target's law."""
    if show_faults:
        _faults(as_json, only)
    else:
        _engine(as_json, only, jobs or min(os.cpu_count() or 1, 8))


def _engine(as_json: bool, only: str | None, jobs: int) -> None:
    cases = [case for case in all_cases() if only is None or only in case.name]
    if not cases:
        raise UnknownName("case", only or "", sorted({case.group for case in all_cases()}))
    started = perf_counter()
    outcomes = list(_watched(run_all(cases, jobs), len(cases), quiet=as_json))
    seconds = perf_counter() - started
    failed = [o for o in outcomes if not o.holds]
    if as_json:
        print(json.dumps({"proved": not failed, "seconds": seconds, "cases": [_as_json(o) for o in outcomes]}))
    else:
        _report(cases, outcomes, seconds)
    if failed:
        raise typer.Exit(1)


def run_all(cases: list[Provable], jobs: int) -> Iterator[Outcome]:
    """Outcomes in the order of the cases, from `jobs` processes."""
    if jobs == 1:
        yield from map(_run, cases)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(_run, cases)


def _run(case: Provable) -> Outcome:
    return case.run()


def _watched(outcomes: Iterable[Outcome], total: int, *, quiet: bool) -> Iterator[Outcome]:
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=quiet or not console.is_terminal) as progress:
        task = progress.add_task("enumerating", total=total)
        for outcome in outcomes:
            progress.advance(task)
            yield outcome


def _report(cases: list[Provable], outcomes: list[Outcome], seconds: float) -> None:
    groups: dict[str, list[Outcome]] = {}
    for case, outcome in zip(cases, outcomes, strict=True):
        groups.setdefault(case.group, []).append(outcome)
    table = Table(title="The engine's joint law against the target's, every branch walked")
    for name, right in (
        ("verifier x drafter x schedule, or controls", False),
        ("cases", True),
        ("answers", True),
        ("error", True),
    ):
        table.add_column(name, justify="right" if right else "left")
    for group, found in groups.items():
        error = max(o.error for o in found)
        style = "" if all(o.holds for o in found) else "bold red"
        table.add_row(group, str(len(found)), str(sum(o.answers for o in found)), _number(error), style=style)
    console = Console()
    console.print(table)
    failed = [o for o in outcomes if not o.holds]
    for outcome in failed[:1]:
        d = outcome.difference
        assert d is not None
        console.print(
            f"[bold red]differs:[/] {outcome.name}\n  first differing answer {list(d.answer)}: engine "
            f"{_number(d.got)}, target {_number(d.expected)}"
        )
    verdict = (
        f"[bold red]{len(failed)} of {len(outcomes)} cases differ" if failed else f"[bold green]proved:[/] {EXPECTED}"
    )
    console.print(f"{verdict} ({len(outcomes)} cases, {seconds:.1f} s)")


def _faults(as_json: bool, only: str | None) -> None:
    chosen = [fault for fault in faults() if only is None or only in fault.name]
    if not chosen:
        raise UnknownName("fault", only or "", [fault.name for fault in faults()])
    found = [fault.run() for fault in chosen]
    missed = [c for c in found if not (c.caught and c.equals_figure)]
    if as_json:
        print(json.dumps({"all_caught": not missed, "faults": [_caught_json(c) for c in found]}))
    else:
        table = Table(title="Planted faults in the production engine")
        for name in ("fault", "wrong rule", "first token", "right", "first TV", "answer TV", "caught"):
            table.add_column(name, overflow="fold")
        for c in found:
            how = "stream reused" if c.reuse else "yes" if c.caught else "MISSED"
            how += "" if c.equals_figure else ", NOT THE FIGURE"
            table.add_row(
                c.name, c.wrong_rule, _law(c.first_token), _law(c.right_first_token),
                f"{c.first_token_error:.4f}", f"{c.joint_error:.4f}", how,
            )  # fmt: skip
        Console().print(table)
    if missed:
        raise typer.Exit(1)


def _as_json(o: Outcome) -> dict[str, Any]:
    plain: dict[str, Any] = {"name": o.name, "answers": o.answers, "error": _number(o.error), "seconds": o.seconds}
    if o.difference is not None:
        plain["first_difference"] = {
            "answer": list(o.difference.answer),
            "engine": _number(o.difference.got),
            "target": _number(o.difference.expected),
        }
    return plain


def _caught_json(c: Caught) -> dict[str, Any]:
    return {
        "name": c.name,
        "wrong_rule": c.wrong_rule,
        "first_token": [float(x) for x in c.first_token],
        "right_first_token": [float(x) for x in c.right_first_token],
        "first_token_tv": c.first_token_error,
        "answer_tv": c.joint_error,
        "stream_reused": c.reuse,
        "caught": c.caught,
        "equals_figure": c.equals_figure,
    }


def _law(law: tuple[Any, ...]) -> str:
    return ", ".join(f"{float(x):.4f}" for x in law)


def _number(value: Any) -> str:
    return str(value) if value == 0 or not isinstance(value, float) else f"{value:.3g}"
