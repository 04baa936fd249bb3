"""The three-term loss of DSpark, and the acceptance it is a proxy of.

    L = 0.1 * CE(x*) + 0.9 * ||q - p||_1 + 1.0 * BCE(c, c*),   c* = 1 - TV(q, p),   weights w_k = exp(-(k-1) / gamma)

Guarantees: p is the target's over its whole vocabulary and q is exactly 0 outside the draft vocabulary, so the mass of
p out there counts in full, in ||q - p||_1 and in TV. The gradient is written out (one pass instead of five over
rows of thousands of tokens) and checked against finite differences. Source: dspark.md, "Training".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

CE_WEIGHT, L1_WEIGHT, CONFIDENCE_WEIGHT = 0.1, 0.9, 1.0
ROWS_AT_ONCE = 32


class _RowLoss(torch.autograd.Function):
    """CE_WEIGHT * CE + L1_WEIGHT * ||q - p||_1 of each row of draft logits; also TV, which carries no gradient."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, log_total: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        parts = [
            _some_rows(*chunk)
            for chunk in zip(*(torch.split(t, ROWS_AT_ONCE) for t in (logits, target, log_total, label)), strict=True)
        ]
        grads, losses, tvs = zip(*parts, strict=True)
        ctx.save_for_backward(torch.cat(grads))
        tv = torch.cat(tvs)
        ctx.mark_non_differentiable(tv)
        return torch.cat(losses), tv

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (grad,) = ctx.saved_tensors
        return grad * grads[0][:, None].to(grad.dtype), None, None, None


def _some_rows(logits: Tensor, target: Tensor, log_total: Tensor, label: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(gradient, loss, TV) of a few rows, which stay in the processor's cache from pass to pass."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    p = target_probs(target, log_total).to(wide.dtype)
    tail = outside(p)
    log_q = wide - wide.logsumexp(-1, keepdim=True)
    q = log_q.exp()
    known = label >= 0  # the answer's token may lie outside the draft vocabulary: CE has no say there
    at = label.clamp(min=0)[:, None]
    ce = torch.where(known, -log_q.gather(-1, at)[:, 0], torch.zeros_like(tail))
    gap = q - p
    l1 = gap.abs().sum(-1) + tail
    # d l1 / d logits = q * (sign - sum(sign * q)); d ce / d logits = q - onehot
    towards = gap.sign_().mul_(L1_WEIGHT)
    towards -= (towards * q).sum(-1, keepdim=True)
    towards += CE_WEIGHT * known[:, None].to(q.dtype)
    grad = towards.mul_(q)
    grad.scatter_add_(-1, at, -CE_WEIGHT * known[:, None].to(q.dtype))
    return grad.to(logits.dtype), CE_WEIGHT * ce + L1_WEIGHT * l1, l1 / 2


def target_probs(target: Tensor, log_total: Tensor) -> Tensor:
    """p of the draft vocabulary: target logits (rows, draft vocab), log_total (rows,) over the whole vocabulary."""
    wide = target if target.dtype == torch.float64 else target.float()
    return (wide - log_total[:, None]).exp()


def outside(p: Tensor) -> Tensor:
    """Mass of p outside the draft vocabulary, (rows,)."""
    # Rounding of a low-precision pass may push the sum past 1; a negative mass would be no mass at all.
    return (1 - p.sum(-1)).clamp(min=0)


@dataclass(frozen=True, slots=True)
class Losses:
    """loss: the scalar that is minimised. acceptance: 1 - TV of each row (rows,), detached."""

    loss: Tensor
    acceptance: Tensor


def dspark_loss(
    logits: Tensor,
    target: Tensor,
    log_total: Tensor,
    label: Tensor,
    confidence: Tensor,
    weight: Tensor,
) -> Losses:
    """The loss of some draft rows.

    logits: (rows, draft vocab), U + B. target: the target's logits of those ids. log_total: (rows,), log of the sum of
    exp over all its ids. label: (rows,), index into the draft vocabulary of the target's own next token, -1 if it has
    none. confidence: (rows,), logit of c. weight: (rows,), w_k, 0 for rows past the end. Averaged over the weights.
    """
    row_loss, tv = _RowLoss.apply(logits, target, log_total, label)  # type: ignore[no-untyped-call]
    acceptance = (1 - tv).detach()
    judged = F.binary_cross_entropy_with_logits(confidence, acceptance.to(confidence.dtype), reduction="none")
    total = weight.sum()
    loss = ((row_loss + CONFIDENCE_WEIGHT * judged) * weight).sum() / total
    return Losses(loss, acceptance)


def position_weights(block: int) -> Tensor:
    """w_k = exp(-(k - 1) / block) for k = 1..block."""
    return torch.exp(-torch.arange(block) / block)
