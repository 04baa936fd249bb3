"""Calibration of the confidence head, and the reliability diagram that shows what it does.

First the head's bias is moved until the first position's mean confidence is its mean acceptance: training makes the
drafter better on what it has seen than on other text, which no temperature can undo. Then sequential temperature
scaling: left to right, one temperature per block position, the one on a grid that minimises the expected calibration
error (ECE) of the prefix survival c_1 ... c_k over held-out rounds, those of earlier positions kept. Both keep the
order of a position's confidences.

Guarantees: only how much is verified can change, never what is emitted (algorithms.md, section 7.1). Outcomes are the
rounds' own acceptance, or its exact probability where it is known, which has the same mean and less noise. What it does
not do: run a drafter. Source: dspark.md, "Calibration".
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from draftproof.errors import InvalidValue

Array = npt.NDArray[Any]

BINS = 10
GRID = np.geomspace(0.25, 8.0, 121)
MOST = 8.0  # logits by which the bias may move


@dataclass(frozen=True, slots=True)
class Rounds:
    """Held-out blocks. logits: of the confidence head, (rounds, block). survived: (rounds, block), the chance (or 0/1)
    that everything up to and including position k is accepted. real: (rounds, block), False past the end of the text.
    """

    logits: Array
    survived: Array
    real: Array

    def __post_init__(self) -> None:
        shapes = {self.logits.shape, self.survived.shape, self.real.shape}
        if len(shapes) != 1 or self.logits.ndim != 2:
            raise InvalidValue(f"calibration arrays of shapes {sorted(shapes)}", "(rounds, block), all three")
        if not len(self.logits):
            raise InvalidValue("calibration without rounds", "give held-out sequences")
        if not np.isfinite(self.logits).all():
            raise InvalidValue("confidence logits that are not finite", "the drafter is broken; train it again")
        if not ((self.survived >= 0) & (self.survived <= 1 + 1e-6)).all():
            raise InvalidValue("survivals that are no probabilities", "each in [0, 1]")


@dataclass(frozen=True, slots=True)
class Bin:
    """Rounds whose predicted survival fell into one bin: how many, the mean predicted, the mean observed."""

    count: int
    predicted: float
    observed: float


def shift(rounds: Rounds) -> float:
    """What to add to the head's bias, so that the first position is right on average; 0 if no addition makes it so."""
    real = rounds.real[:, 0]
    logits, wanted = rounds.logits[real, 0], float(rounds.survived[real, 0].mean()) if real.any() else 0.0
    if not 0 < wanted < 1:
        return 0.0
    low, high = -MOST, MOST
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if float(_sigmoid(logits + middle).mean()) > wanted else (middle, high)
    return (low + high) / 2


def moved(rounds: Rounds, bias: float) -> Rounds:
    """The rounds as a head with that much more bias would have given them."""
    return Rounds(rounds.logits + bias, rounds.survived, rounds.real)


def fit(rounds: Rounds) -> tuple[float, ...]:
    """The temperatures, one per position."""
    temperatures: list[float] = []
    before = np.ones(len(rounds.logits))
    for k in range(rounds.logits.shape[1]):
        real = rounds.real[:, k]
        errors = [_ece(before[real] * _sigmoid(rounds.logits[real, k] / t), rounds.survived[real, k]) for t in GRID]
        best = float(GRID[int(np.argmin(errors))]) if real.any() else 1.0
        temperatures.append(best)
        before = before * _sigmoid(rounds.logits[:, k] / best)
    return tuple(temperatures)


def survivals(logits: Array, temperatures: Seq[float]) -> Array:
    """Predicted prefix survivals c_1 ... c_k, (rounds, block)."""
    product: Array = np.cumprod(_sigmoid(logits / np.asarray(temperatures)), axis=1)
    return product


def ece(rounds: Rounds, temperatures: Seq[float]) -> tuple[float, ...]:
    """The expected calibration error of the prefix survival at each position."""
    predicted = survivals(rounds.logits, temperatures)
    return tuple(
        _ece(predicted[rounds.real[:, k], k], rounds.survived[rounds.real[:, k], k]) if rounds.real[:, k].any() else 0.0
        for k in range(predicted.shape[1])
    )


def reliability(rounds: Rounds, temperatures: Seq[float], position: int) -> list[Bin]:
    """The bins of a reliability diagram at one position, empty ones left out."""
    real = rounds.real[:, position]
    predicted = survivals(rounds.logits, temperatures)[real, position]
    return _bins(predicted, rounds.survived[real, position])


def plot(before: Rounds, rounds: Rounds, temperatures: Seq[float], path: str) -> None:
    """Write the reliability diagram (PNG or SVG by the file's name), one panel per position, before and after.

    before, rounds: of the head as it was, and with its bias moved.

    Raises MissingExtra without matplotlib.
    """
    from draftproof.train.plots import figure

    block = rounds.logits.shape[1]
    with figure(path, columns=block) as panels:
        for k, panel in enumerate(panels):
            panel.plot([0, 1], [0, 1], color="0.7", linewidth=1)
            for label, seen, scale in (("before", before, (1.0,) * block), ("after", rounds, temperatures)):
                bins = reliability(seen, scale, k)
                error = ece(seen, scale)[k]
                panel.plot(
                    [b.predicted for b in bins],
                    [b.observed for b in bins],
                    marker="o",
                    label=f"{label}, ECE {100 * error:.1f} %",
                )
            panel.set(title=f"first {k + 1} accepted", xlabel="predicted", xlim=(0, 1), ylim=(0, 1))
            panel.legend(loc="upper left", fontsize="small")
        panels[0].set_ylabel("observed")


def _ece(predicted: Array, observed: Array) -> float:
    bins = _bins(predicted, observed)
    return sum(b.count * abs(b.predicted - b.observed) for b in bins) / max(len(predicted), 1)


def _bins(predicted: Array, observed: Array) -> list[Bin]:
    index = np.minimum((predicted * BINS).astype(int), BINS - 1)
    count = np.bincount(index, minlength=BINS)
    total_predicted = np.bincount(index, predicted, minlength=BINS)
    total_observed = np.bincount(index, observed, minlength=BINS)
    return [
        Bin(int(n), float(p / n), float(o / n))
        for n, p, o in zip(count, total_predicted, total_observed, strict=True)
        if n
    ]


def _sigmoid(x: Array) -> Array:
    # exp of a non-positive number on either side: no overflow, and saturation to exactly 0 or 1 where floats end
    small = np.exp(-np.abs(x))
    value: Array = np.where(x >= 0, 1, small) / (1 + small)
    return value
