"""The training loop: batches through the drafter, the three-term loss, two optimizers, resumable to the step.

Matrices are trained with Muon (Jordan et al. 2024), which needs about half the steps of AdamW here, everything else
(norms, embeddings of the sequential head, the mask row) with AdamW. The learning rate warms up, stays, and falls
linearly to a tenth over the last `DECAY_SHARE` of the steps.

Guarantees: interrupted at any point and started again with the same arguments, it goes on from the last saved step and
gives the losses the uninterrupted run would have given (same machine, same thread count). A saved state is whole or
absent. What it does not do: show anything (callers pass `on_step`), or evaluate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch

from draftproof.errors import InvalidValue, NumericError
from draftproof.models.cache import fresh_file, writing
from draftproof.train.batches import Batches
from draftproof.train.loss import dspark_loss, position_weights
from draftproof.train.rows import RowMaker

WARMUP = 40
ORTHOGONAL_STEPS = 4  # of Newton-Schulz; a fifth of a step goes there
DECAY_SHARE = 0.4
STATE = "state.pt"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """steps: in all. sequences, anchors: per batch. matrix_rate, other_rate: peak learning rates. save_every: steps."""

    steps: int
    sequences: int = 8
    anchors: int = 32
    matrix_rate: float = 4e-3
    other_rate: float = 2e-3
    weight_decay: float = 0.01
    clip: float = 1.0
    seed: int = 0
    save_every: int = 50

    def __post_init__(self) -> None:
        for name in ("steps", "sequences", "anchors", "save_every"):
            if getattr(self, name) < 1:
                raise InvalidValue(f"{name}={getattr(self, name)}", "at least 1")
        for name in ("matrix_rate", "other_rate", "clip"):
            if not getattr(self, name) > 0:
                raise InvalidValue(f"{name}={getattr(self, name)}", "> 0")

    def rate_share(self, step: int) -> float:
        """Share of the peak learning rate at a step."""
        warm = min(1.0, (step + 1) / WARMUP)
        left = (self.steps - step) / (DECAY_SHARE * self.steps)
        return warm * min(1.0, 0.1 + 0.9 * left)


@dataclass(frozen=True, slots=True)
class StepReport:
    """One step: loss, mean of 1 - TV by block position, seconds on the clock and of this process's CPU."""

    step: int
    loss: float
    acceptance: tuple[float, ...]
    seconds: float
    cpu_seconds: float


class Trainer:
    """Trains `maker.module` in place; `folder` keeps the state to resume from.

    facts: what else must be the same when the training is resumed, such as what is held out.
    """

    def __init__(
        self,
        maker: RowMaker,
        batches: Batches,
        plan: TrainingPlan,
        folder: Path,
        *,
        facts: Mapping[str, int] | None = None,
    ) -> None:
        self.facts = dict(facts or {})
        self.maker, self.batches, self.plan, self.folder = maker, batches, plan, folder
        self.step = 0
        self.cpu_seconds = 0.0
        module = maker.module
        small = {"w_head_embed", "w_head_out"}
        named = list(module.named_parameters())
        matrices = [p for name, p in named if p.ndim == 2 and name not in small]
        rest = [p for name, p in named if p.ndim != 2 or name in small]
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Muon(
                matrices,
                lr=plan.matrix_rate,
                weight_decay=plan.weight_decay,
                momentum=0.95,
                adjust_lr_fn="match_rms_adamw",
                ns_steps=ORTHOGONAL_STEPS,
            ),
            torch.optim.AdamW(rest, lr=plan.other_rate, betas=(0.9, 0.95), weight_decay=0.0),
        ]
        self._weights = position_weights(module.config.block).to(maker.device)

    def resume(self) -> bool:
        """Go on from the saved state, if there is one. InvalidValue if it belongs to another plan or drafter."""
        path = self.folder / STATE
        if not path.is_file():
            return False
        state = torch.load(path, map_location=self.maker.device, weights_only=True)
        saved = {k: v for k, v in state["plan"].items() if k not in ("steps", "save_every")}
        wanted = {k: v for k, v in asdict(self.plan).items() if k not in ("steps", "save_every")}
        same = state["config"] == self.maker.module.config.as_dict() and state.get("facts", {}) == self.facts
        if saved != wanted or not same:
            raise InvalidValue(f"{path} belongs to another training", "give another folder, or the same arguments")
        self.maker.module.load_state_dict(state["module"])
        self.maker.take_vocab()
        for optimizer, values in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(values)
        self.step, self.cpu_seconds = state["step"], state["cpu_seconds"]
        return True

    def run(self, on_step: Callable[[StepReport], None] = lambda report: None, *, until: int | None = None) -> None:
        """Train up to step `until` (default: the plan's last)."""
        last = self.plan.steps if until is None else min(until, self.plan.steps)
        while self.step < last:
            on_step(self._one())
            if self.step % self.plan.save_every == 0 or self.step == last:
                self.save()

    def save(self) -> None:
        """Write the state to resume from."""
        state: dict[str, Any] = {
            "plan": asdict(self.plan),
            "config": self.maker.module.config.as_dict(),
            "facts": self.facts,
            "module": self.maker.module.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "step": self.step,
            "cpu_seconds": self.cpu_seconds,
        }
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        with fresh_file(self.folder / STATE) as temporary:
            torch.save(state, temporary)

    def _one(self) -> StepReport:
        started, cpu = perf_counter(), process_time()
        rows = self.maker.rows(self.batches.batch(self.step))
        losses = dspark_loss(
            rows.logits, rows.target, rows.log_total, rows.label, rows.confidence, self._weights[rows.position]
        )
        if not torch.isfinite(losses.loss):
            raise NumericError(f"the loss is {losses.loss.item()} at step {self.step}", "lower the learning rates")
        losses.loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.maker.module.parameters(), self.plan.clip)
        share = self.plan.rate_share(self.step)
        for optimizer, peak in zip(self.optimizers, (self.plan.matrix_rate, self.plan.other_rate), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = peak * share
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        block = self.maker.module.config.block
        sums = torch.zeros(block, device=self.maker.device).index_add_(0, rows.position, losses.acceptance.float())
        counts = torch.bincount(rows.position, minlength=block).clamp(min=1)
        self.step += 1
        used = process_time() - cpu
        self.cpu_seconds += used
        return StepReport(
            self.step, losses.loss.item(), tuple((sums / counts).tolist()), perf_counter() - started, used
        )
