"""From a batch to draft rows and the target's rows: the one path that training, evaluation and calibration share.

Guarantees: the target's logits are its own, from its last hidden state and LM head, over the draft vocabulary; draft
logits are U + B, teacher-forced. What it does not do: losses.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from draftproof.draft.dspark.module import DSparkModule
from draftproof.train.batches import Batch


@dataclass(frozen=True, slots=True)
class DraftRows:
    """Rows of the blocks' real positions only, flattened in the order of (sequence, anchor, position).

    logits, target (rows, draft vocab): of drafter and target. log_total (rows,): of the target, over all its ids.
    confidence (rows,). label (rows,), -1 outside the draft vocabulary. position (rows,), k of the row.
    """

    logits: Tensor
    target: Tensor
    log_total: Tensor
    label: Tensor
    confidence: Tensor
    position: Tensor


class RowMaker:
    """embedding, head: the target's tables, (vocab, hidden), frozen. dtype: of the forward pass."""

    def __init__(
        self, module: DSparkModule, embedding: Tensor, head: Tensor, *, dtype: torch.dtype, device: str = "cpu"
    ) -> None:
        self.module, self.dtype, self.device = module, dtype, device
        self.embedding, self._head = embedding, head
        self.take_vocab()

    def take_vocab(self) -> None:
        """Follow the module's draft vocabulary, which a state loaded into it may have changed."""
        vocab = self.module.tensor("vocab").cpu()
        self._draft_head = self._head[vocab].to(self.device, self.dtype)
        self._index = torch.full((self.module.config.target_vocab,), -1)
        self._index[vocab] = torch.arange(len(vocab))

    def rows(self, batch: Batch) -> DraftRows:
        """One forward pass over all blocks of a batch."""
        module, dtype = self.module, self.dtype
        width = module.config.hidden
        features = batch.features.to(self.device, dtype)
        anchors, real = batch.anchors.to(self.device), batch.real.to(self.device)
        anchor_rows = self.embedding[batch.previous[:, :, 0]].to(self.device, dtype)
        hidden = module.blocks(module.context(features), anchors, anchor_rows)
        previous = module.previous(batch.previous.to(self.device))
        at = (anchors[:, :, None] + torch.arange(module.config.block, device=self.device)).clamp(
            max=features.shape[1] - 1
        )
        batch_index = torch.arange(len(anchors), device=self.device)[:, None, None].expand_as(at)
        bias = module.bias(hidden, previous)
        logits = F.linear(hidden[real], self._draft_head)
        if bias is not None:
            logits = logits + bias[real]
        with torch.no_grad():
            last = features[batch_index[real], at[real]][:, -width:]
            target = F.linear(last, self._draft_head)
        log_total = batch.log_total.to(self.device)[real]
        confidence = module.confidence(hidden[real], previous[real])
        position = torch.arange(module.config.block, device=self.device).expand_as(at)[real]
        label = self._index[batch.following].to(self.device)[real]
        return DraftRows(logits, target, log_total, label, confidence, position)
