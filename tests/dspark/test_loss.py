"""The loss is its definition, and its gradients are right in every part."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from dspark_kit import tiny_maker, tiny_module, tiny_store, tiny_texts
from transformers import LlamaForCausalLM

from draftproof.train.batches import Batches
from draftproof.train.loss import dspark_loss, position_weights
from draftproof.train.rows import DraftRows


def test_loss_equals_its_definition_on_a_case_computed_by_hand() -> None:
    # Draft vocabulary {0, 1} of a target vocabulary {0, 1, 2}; q = (3/4, 1/4), p = (1/2, 1/4 | 1/4).
    logits = torch.tensor([[math.log(3.0), 0.0]], dtype=torch.float64)
    target = torch.tensor([[math.log(2.0), 0.0]], dtype=torch.float64)
    log_total = torch.tensor([math.log(4.0)], dtype=torch.float64)
    confidence = torch.tensor([0.5], dtype=torch.float64)
    got = dspark_loss(logits, target, log_total, torch.tensor([1]), confidence, torch.tensor([1.0]))
    l1 = 1 / 4 + 0 + 1 / 4  # the last quarter: what p puts outside the draft vocabulary
    accept = 1 - l1 / 2
    c = 1 / (1 + math.exp(-0.5))
    judged = -(accept * math.log(c) + (1 - accept) * math.log(1 - c))
    assert got.acceptance.item() == pytest.approx(accept, abs=1e-12)
    assert got.loss.item() == pytest.approx(0.1 * -math.log(1 / 4) + 0.9 * l1 + judged, abs=1e-12)


def test_a_token_outside_the_draft_vocabulary_adds_no_cross_entropy() -> None:
    logits = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    target, log_total = torch.tensor([[0.0, 0.0]], dtype=torch.float64), torch.tensor([2.0], dtype=torch.float64)
    confidence, weight = torch.zeros(1, dtype=torch.float64), torch.ones(1)
    inside = dspark_loss(logits, target, log_total, torch.tensor([0]), confidence, weight).loss
    outside = dspark_loss(logits, target, log_total, torch.tensor([-1]), confidence, weight).loss
    assert (inside - outside).item() == pytest.approx(-0.1 * torch.log_softmax(logits, -1)[0, 0].item(), abs=1e-12)


def test_rows_are_averaged_with_weights_that_fall_along_the_block() -> None:
    weights = position_weights(5)
    assert weights.tolist() == pytest.approx([math.exp(-k / 5) for k in range(5)])
    source = torch.Generator().manual_seed(0)
    logits, target = torch.randn(5, 7, generator=source), torch.randn(5, 7, generator=source)
    total, label, confidence = torch.full((5,), 3.0), torch.arange(5), torch.zeros(5)
    each = [
        dspark_loss(logits[[k]], target[[k]], total[[k]], label[[k]], confidence[[k]], torch.ones(1)).loss
        for k in range(5)
    ]
    whole = dspark_loss(logits, target, total, label, confidence, weights).loss
    by_hand = sum(w * x.item() for w, x in zip(weights.tolist(), each, strict=True)) / sum(weights.tolist())
    assert whole.item() == pytest.approx(by_hand, abs=1e-5)


def _losses(rows: DraftRows, weights: torch.Tensor, label: torch.Tensor | None = None) -> torch.Tensor:
    """The loss of some rows; `label`: the confidence head's, held fixed as training holds it (it is detached)."""
    weight = weights[rows.position]
    parts = dspark_loss(rows.logits, rows.target, rows.log_total, rows.label, rows.confidence, weight)
    if label is None:
        return parts.acceptance
    own = F.binary_cross_entropy_with_logits(rows.confidence, parts.acceptance, reduction="none")
    fixed = F.binary_cross_entropy_with_logits(rows.confidence, label, reduction="none")
    return (
        parts.loss
        + ((fixed - own.detach()) * weight).sum() / weight.sum()
        - ((own - own.detach()) * weight).sum() / weight.sum()
    )


@pytest.mark.parametrize("head", ["markov", "rnn", "none"])
def test_gradients_of_every_part_match_finite_differences(head: str, model: LlamaForCausalLM, tmp_path: Path) -> None:
    store = tiny_store(tmp_path, model, tiny_texts(model, 2, 12, temperature=1.0))
    module = tiny_module(head, spread=0.3).double()
    maker = tiny_maker(module, model, dtype=torch.float64)
    batch = Batches(store, store.entries, sequences=2, anchors=3, block=3, seed=0).batch(0)
    weights = position_weights(3).double()
    label = _losses(maker.rows(batch), weights)
    _losses(maker.rows(batch), weights, label).backward()
    generator = torch.Generator().manual_seed(1)
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        direction /= direction.norm()
        slope = (parameter.grad * direction).sum().item()
        values = []
        with torch.no_grad():
            for step in (1e-6, -2e-6):
                parameter += step * direction
                values.append(_losses(maker.rows(batch), weights, label).item())
            parameter += 1e-6 * direction
        assert slope != 0, name
        assert (values[0] - values[1]) / 2e-6 == pytest.approx(slope, rel=1e-3, abs=1e-8), name
