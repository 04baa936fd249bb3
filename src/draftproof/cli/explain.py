"""`draftproof explain`: the rule on two small distributions, path by path, in the terminal.

Guarantees: every number comes from `draftproof.rule`; decimals are taken as the Fractions they are written as, so
that what should sum to one does. p or q that do not sum to one are refused with their sum.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from draftproof import rule
from draftproof.cli.explain_page import open_explain_page, write_explain_page
from draftproof.errors import BadTable, InvalidValue


def explain(
    p: Annotated[str, typer.Option("--p", help="The target's distribution, comma-separated.")] = ".5,.3,.2",
    q: Annotated[str, typer.Option("--q", help="The draft's distribution, comma-separated.")] = ".7,.2,.1",
    html: Annotated[Path | None, typer.Option("--html", help="Write the page where p and q are dragged.")] = None,
    show: Annotated[bool, typer.Option("--open", help="Show that page in the browser.")] = False,
) -> None:
    """Show why the acceptance is a minimum and the correction a maximum, on p and q of your own."""
    if html is not None:
        write_explain_page(html)
        Console(stderr=True, highlight=False).print(f"written: {html}")
    if show:
        open_explain_page()
    if html is not None or show:
        return
    target, draft = parse("p", p), parse("q", q)
    if len(target) != len(draft):
        raise InvalidValue(f"p has {len(target)} tokens, q {len(draft)}", "one number per token in both")
    Console().print(rule_table(target, draft))
    z = rule.reject_prob(target, draft)
    Console(highlight=False).print(
        f"\nP(accept) = sum min(p,q) = {_show(1 - z)}    P(reject) = Z = sum max(0,p-q) = TV(p,q) = {_show(z)}\n"
        "accept path min(q,p) + reject path Z * residual = p, for every token: the output's law is the target's."
    )


def rule_table(p: np.ndarray, q: np.ndarray) -> Table:
    """One line per token: p, q, alpha, the accept path, the reject path, their sum. p, q: object arrays (vocab,)."""
    alpha, residual, z = rule.accept_prob(p, q), rule.residual(p, q), rule.reject_prob(p, q)
    output = rule.output_distribution(p, q)
    table = Table(title="One drafted token: X ~ q, accepted with min(1, p/q), else redrawn from the residual")
    names = [
        "token",
        "p",
        "q",
        "alpha = min(1,p/q)",
        "q*alpha = min(q,p)",
        "residual",
        "Z*residual = max(0,p-q)",
        "sum",
    ]
    for name in names:
        table.add_column(name, justify="right")
    for x in range(len(p)):
        columns = (p[x], q[x], alpha[x], q[x] * alpha[x], residual[x], z * residual[x], output[x])
        table.add_row(str(x), *map(_show, columns))
    accepted = (q * alpha).sum()
    table.add_section()
    totals = (p.sum(), q.sum(), None, accepted, residual.sum(), z * residual.sum(), output.sum())
    table.add_row("sum", *(("" if v is None else _show(v)) for v in totals))
    return table


def parse(name: str, text: str) -> np.ndarray:
    """Comma-separated decimals or fractions as an object array of Fractions that sums to one."""
    try:
        values = [Fraction(part.strip()) for part in text.split(",")]
    except (ValueError, ZeroDivisionError) as error:
        raise InvalidValue(f"--{name} {text}", "comma-separated numbers such as .5,.3,.2 or 1/2,1/2") from error
    if any(v < 0 for v in values):
        raise BadTable(f"--{name} has a negative entry", "probabilities are >= 0")
    if sum(values) != 1:
        raise BadTable(f"--{name} sums to {_show(sum(values, Fraction(0)))}", "probabilities sum to 1")
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def _show(value: Fraction) -> str:
    """A decimal if it is short, else six digits."""
    return f"{float(value):.6g}"
