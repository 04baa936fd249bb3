"""Temperatures make the predicted survival true, keep its order, and are found left to right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from dspark_kit import checkpoint_of, tiny_module

from draftproof.draft.dspark.calibration import GRID, Rounds, ece, fit, moved, plot, reliability, shift, survivals
from draftproof.errors import InvalidValue
from draftproof.train.pipeline import recalibrated


def _rounds(scale: tuple[float, ...], count: int = 20_000) -> Rounds:
    """A head whose logits are `scale` times too large: its outcomes are the exact probabilities."""
    true = np.random.default_rng(0).normal(0.5, 1.2, (count, len(scale)))
    survived = np.cumprod(1 / (1 + np.exp(-true)), axis=1)
    return Rounds(true * np.array(scale), survived, np.ones(true.shape, dtype=np.bool_))


def test_temperatures_that_were_wrong_are_found_position_by_position() -> None:
    scale = (2.0, 0.5, 3.0)
    found = fit(_rounds(scale))
    step = GRID[1] / GRID[0]
    for got, expected in zip(found, scale, strict=True):
        assert expected / step**2 <= got <= expected * step**2


def test_calibration_lowers_the_error_at_every_position() -> None:
    rounds = _rounds((2.5, 2.5, 2.5))
    before, after = ece(rounds, (1.0,) * 3), ece(rounds, fit(rounds))
    assert all(b > 0.05 for b in before)
    assert all(a < 0.01 for a in after)


def test_a_head_that_is_too_sure_by_a_constant_is_moved_back_by_it() -> None:
    sure = _rounds((1.0, 1.0))
    rounds = Rounds(sure.logits + 0.7, sure.survived, sure.real)
    assert ece(rounds, fit(rounds))[0] > 0.05  # temperatures alone cannot
    assert shift(rounds) == pytest.approx(-0.7, abs=1e-9)
    assert max(ece(moved(rounds, shift(rounds)), (1.0, 1.0))) < 1e-9


@pytest.mark.parametrize(("scale", "off", "moves"), [(1.0, 0.6, True), (2.5, 0.0, False), (1.5, -0.4, True)])
def test_the_bias_moves_only_where_that_leaves_a_smaller_worst_error(scale: float, off: float, moves: bool) -> None:
    """A head too sure by a constant needs its bias moved; one too sure by a factor does not, though its mean is off."""
    exact = _rounds((scale,) * 3)
    rounds = Rounds(exact.logits + off, exact.survived, exact.real)
    assert abs(shift(rounds)) > 0.1
    checkpoint = checkpoint_of(tiny_module())
    found = recalibrated(checkpoint, rounds)
    bias = float(checkpoint.tensors["confidence.bias"][0])
    moved_by = float(found.tensors["confidence.bias"][0]) - bias
    assert (moved_by != 0) == moves
    stored = float(np.float16(bias + shift(rounds))) - bias
    alone = [max(ece(moved(rounds, by), fit(moved(rounds, by)))) for by in (0.0, stored)]
    assert max(ece(moved(rounds, moved_by), found.temperatures)) == pytest.approx(min(alone))
    assert found.record["ece"]["after"] == pytest.approx(ece(moved(rounds, moved_by), found.temperatures))


def test_a_position_that_is_always_or_never_accepted_moves_no_bias() -> None:
    for outcome in (0.0, 1.0):
        assert shift(Rounds(np.ones((4, 2)), np.full((4, 2), outcome), np.ones((4, 2), np.bool_))) == 0


def test_a_position_keeps_its_order() -> None:
    logits = np.sort(np.random.default_rng(1).normal(0, 30, (500, 1)), axis=0)
    values = survivals(logits, (3.0,))[:, 0]
    assert (np.diff(values) >= 0).all()
    assert values[0] >= 0
    assert values[-1] <= 1


def test_the_error_is_the_mean_gap_of_the_bins_on_a_case_computed_by_hand() -> None:
    logit = float(np.log(3.0))  # 0.75
    rounds = Rounds(
        np.array([[logit], [logit], [-logit], [-logit]]),
        np.array([[1.0], [0.0], [0.0], [0.0]]),
        np.array([[True], [True], [True], [False]]),
    )
    assert ece(rounds, (1.0,)) == pytest.approx(((2 * 0.25 + 1 * 0.25) / 3,))
    bins = reliability(rounds, (1.0,), 0)
    assert [(b.count, b.predicted, b.observed) for b in bins] == [
        (1, pytest.approx(0.25), 0.0),
        (2, pytest.approx(0.75), 0.5),
    ]


def test_saturated_logits_do_not_overflow() -> None:
    values = survivals(np.array([[1e5, -1e5]]), (0.25, 0.25))
    assert values.tolist() == [[1.0, 0.0]]


def test_bad_rounds_are_refused() -> None:
    ones = np.ones((3, 2))
    real = ones.astype(np.bool_)
    with pytest.raises(InvalidValue, match="shapes"):
        Rounds(ones, np.ones((3, 1)), real)
    with pytest.raises(InvalidValue, match="without rounds"):
        Rounds(ones[:0], ones[:0], real[:0])
    for bad in (float("nan"), 1.5, -0.1):
        with pytest.raises(InvalidValue, match="no probabilities"):
            Rounds(ones, ones * bad, real)
    with pytest.raises(InvalidValue, match="not finite"):
        Rounds(ones * np.nan, ones, real)


def test_the_diagram_is_a_file_of_the_kind_asked_for(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rounds = _rounds((2.0, 1.0), 200)
    for name, start in (("r.png", b"\x89PNG"), ("r.svg", b"<?xml")):
        plot(rounds, rounds, fit(rounds), str(tmp_path / name))
        assert (tmp_path / name).read_bytes().startswith(start)
    with pytest.raises(InvalidValue, match=r"\.png or \.svg"):
        plot(rounds, rounds, (1.0, 1.0), str(tmp_path / "r.gif"))
