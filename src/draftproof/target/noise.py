"""Row noise: by how much a model's rows depend on how many tokens a pass takes.

What it is for: a difference between plain and speculative decoding counts as a fault only if rounding cannot explain
it. The same text is scored in one pass and in passes of 1, 2, 4, ... tokens; kernels round differently, and that is
all the difference there is. A target that must not depend on the width at all is refused by it (`openvino_compile`).

Guarantees: measured on this machine, model and dtype. What it does not do: bound what was not measured; `bound` is
twice the largest difference seen.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from draftproof.target.base import Feed, LogitRows, Rows, Target

WIDTHS = (1, 2, 4, 5, 8)
SAFETY = 2.0


@dataclass(frozen=True, slots=True)
class RowNoise:
    """logit: largest difference of a logit; log_p: of a log-probability; rows: how many were compared."""

    logit: float
    log_p: float
    rows: int

    @property
    def bound(self) -> float:
        """What the sequential test is told to allow for in |log p' - log p|."""
        return SAFETY * self.log_p

    @property
    def margin(self) -> float:
        """A top-2 difference of logits up to this may be decided by rounding: both may move by `logit`."""
        return SAFETY * 2 * self.logit


def measure_noise(target: Target, text: Seq[int], prompt_length: int, widths: Seq[int] = WIDTHS) -> RowNoise:
    """Compare the rows after the prompt between one pass and passes of each width."""
    reference = _rows(target, text, prompt_length, len(text))
    logit = log_p = 0.0
    compared = 0
    for width in widths:
        rows = _rows(target, text, prompt_length, width)
        logit = max(logit, float(np.abs(rows - reference).max()))
        log_p = max(log_p, float(np.abs(_log_p(rows) - _log_p(reference)).max()))
        compared += len(rows)
    return RowNoise(logit, log_p, compared)


def _rows(target: Target, text: Seq[int], prompt_length: int, width: int) -> npt.NDArray[np.float64]:
    """Rows that predict text[prompt_length:], from passes of `width` new tokens after the prompt's own pass."""
    handle = target.open()
    try:
        fed = list(text[:-1])
        parts = [] if width >= len(text) else [fed[:prompt_length]]
        rest = fed if width >= len(text) else fed[prompt_length:]
        step = len(rest) if width >= len(text) else width
        parts += [rest[i : i + step] for i in range(0, len(rest), step)]
        wanted = len(text) - prompt_length
        rows: list[npt.NDArray[np.float64]] = []
        done = 0
        for part in parts:
            done += len(part)
            count = min(len(part), done - prompt_length + 1)
            [scored] = target.score([Feed(handle, part, rows=count)])
            rows.append(_values(scored))
        stacked: npt.NDArray[np.float64] = np.concatenate(rows)
        assert len(stacked) == wanted
        return stacked
    finally:
        target.close(handle)


def _values(rows: Rows) -> npt.NDArray[np.float64]:
    if isinstance(rows, LogitRows):
        return rows.values.astype(np.float64)
    with np.errstate(divide="ignore"):
        logs: npt.NDArray[np.float64] = np.log(rows.values.astype(np.float64))
    return np.where(np.isfinite(logs), logs, np.finfo(np.float64).min)


def _log_p(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    normal: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return normal
