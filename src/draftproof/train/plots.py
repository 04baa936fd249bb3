"""Figures as PNG or SVG, for those who have matplotlib.

Guarantees: a file appears whole or not at all; MissingExtra, with the pip command, without matplotlib. No window is
ever opened. What it does not do: decide what is drawn.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from draftproof.errors import InvalidValue, MissingExtra
from draftproof.models.cache import fresh_file

KINDS = (".png", ".svg")


@contextmanager
def figure(path: str | Path, *, columns: int = 1) -> Iterator[Any]:
    """The panels of a figure with `columns` panels side by side; saved to `path` when the block ends."""
    file = Path(path)
    if file.suffix not in KINDS:
        raise InvalidValue(f"a figure called {file.name}", f"a name ending in {' or '.join(KINDS)}")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("figures need matplotlib", "pip install matplotlib") from error
    drawing = Figure(figsize=(3.2 * columns + 0.8, 3.4), layout="constrained")
    yield [drawing.add_subplot(1, columns, i + 1) for i in range(columns)]
    with fresh_file(file) as temporary:
        drawing.savefig(temporary, format=file.suffix[1:])


def losses(log: Path, path: str | Path) -> None:
    """The loss and the acceptance by position of a training's `log.jsonl`."""
    steps = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines() if line]
    trained = [step for step in steps if "loss" in step]
    if not trained:
        raise InvalidValue(f"{log} holds no steps", "train first")
    with figure(path, columns=2) as (left, right):
        left.plot([s["step"] for s in trained], [s["loss"] for s in trained], linewidth=1)
        left.set(xlabel="step", ylabel="loss")
        for k in range(len(trained[0]["acceptance"])):
            right.plot(
                [s["step"] for s in trained], [s["acceptance"][k] for s in trained], linewidth=1, label=f"{k + 1}"
            )
        right.set(xlabel="step", ylabel="acceptance in training, by position")
        right.legend(fontsize="small")
