"""The DSpark drafter as a torch module: what is trained, and the reference the numpy forward is tested against.

Guarantees: block row k is computed from the context before its anchor, the block's own inputs, and (through the
sequential head) from tokens up to k - 1; never from a token at k or later. All blocks of a batch share one forward.
What it does not do: own the target's embedding table and LM head, which are passed in and never trained.

Source: dspark.md, "Drafter"; arXiv:2607.05147.
"""

from __future__ import annotations

import math
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftproof.draft.dspark.checkpoint import Checkpoint
from draftproof.draft.dspark.config import DSparkConfig


class DSparkModule(nn.Module):
    """Parameters have the names of `DSparkConfig.shapes`, made fit for torch; `tensor` takes them as they are."""

    def __init__(self, config: DSparkConfig, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        generator = torch.Generator().manual_seed(seed)
        self.names: dict[str, str] = {}
        for name, shape in config.shapes().items():
            own = "w_" + name.replace(".", "_")
            self.names[name] = own
            if name == "vocab":
                self.register_buffer(own, torch.zeros(shape, dtype=torch.long))
            elif name == "context.scale":
                self.register_buffer(own, torch.ones(shape))
            else:
                self.register_parameter(own, nn.Parameter(_initial(name, shape, config, generator)))

    def tensor(self, name: str) -> Tensor:
        """The parameter or buffer of this name."""
        return cast(Tensor, getattr(self, self.names[name]))

    # -- context -----------------------------------------------------------------------------------------

    def context(self, features: Tensor) -> Tensor:
        """H_ctx of committed tokens: features (..., m * hidden) -> (..., hidden)."""
        scaled = features * self.tensor("context.scale").to(features.dtype)
        return self._rms(F.linear(scaled, self.tensor("context.proj").to(features.dtype)), "context.norm")

    # -- blocks ------------------------------------------------------------------------------------------

    def blocks(self, context: Tensor, anchors: Tensor, anchor_embedding: Tensor) -> Tensor:
        """Hidden rows h of every block, after the final norm: (batch, anchors, block, hidden).

        context: H_ctx (batch, tokens, hidden). anchors: positions (batch, anchors); block a sees context before
        anchors[a] and itself. anchor_embedding: the target's embedding of the anchor tokens (batch, anchors, hidden).
        """
        c = self.config
        batch, count = anchors.shape
        tokens, dtype = context.shape[1], context.dtype
        mask_rows = self.tensor("mask").to(dtype).expand(batch, count, c.block - 1, c.hidden)
        x = torch.cat([anchor_embedding.to(dtype)[:, :, None], mask_rows], 2)
        steps = torch.arange(c.block, device=context.device)
        at = anchors[:, :, None] + steps
        block_turn = self._rotation(at, dtype)
        context_turn = self._rotation(torch.arange(tokens, device=context.device)[None], dtype)
        visible = torch.arange(tokens, device=context.device) < anchors[:, :, None]  # (batch, anchors, tokens)
        hidden = torch.full((), -torch.inf, device=context.device)
        bias = torch.where(visible, torch.zeros_like(hidden), hidden)
        bias = torch.cat([bias, torch.zeros(batch, count, c.block, device=context.device)], -1)
        for i in range(c.layers):
            x = x + self._attention(i, x, context, context_turn, block_turn, bias)
            y = self._rms(x, f"layers.{i}.mlp_norm")
            gated = F.silu(self._linear(y, f"layers.{i}.gate")) * self._linear(y, f"layers.{i}.up")
            x = x + self._linear(gated, f"layers.{i}.down")
        return self._rms(x, "norm")

    def _attention(
        self, i: int, x: Tensor, context: Tensor, context_turn: Tensor, block_turn: Tensor, bias: Tensor
    ) -> Tensor:
        c = self.config
        batch, count, block, _ = x.shape
        tokens, group = context.shape[1], c.heads // c.kv_heads
        y = self._rms(x, f"layers.{i}.attn_norm")

        def heads(rows: Tensor, name: str, n: int) -> Tensor:
            split = self._linear(rows, f"layers.{i}.{name}").view(*rows.shape[:-1], n, c.head_dim)
            return self._rms(split, f"layers.{i}.{name}_norm") if c.qk_norm and name != "v" else split

        q = _turn(heads(y, "q", c.heads), block_turn) / math.sqrt(c.head_dim)
        kc = _turn(heads(context, "k", c.kv_heads), context_turn)
        kb = _turn(heads(y, "k", c.kv_heads), block_turn)
        vc, vb = heads(context, "v", c.kv_heads), heads(y, "v", c.kv_heads)
        # (batch, kv, anchors * block * group, head_dim) against the context: one plain product for all blocks
        q = q.view(batch, count, block, c.kv_heads, group, c.head_dim)
        flat = q.permute(0, 3, 1, 2, 4, 5).reshape(batch, c.kv_heads, count * block * group, c.head_dim)
        on_context = (flat @ kc.permute(0, 2, 3, 1)).view(batch, c.kv_heads, count, block, group, tokens)
        on_block = torch.einsum("baskgd,batkd->bkasgt", q, kb)
        scores = _wide(torch.cat([on_context, on_block], -1)) + bias[:, None, :, None, None, :]
        weights = scores.softmax(-1).to(x.dtype)
        from_context = weights[..., :tokens].reshape(batch, c.kv_heads, count * block * group, tokens)
        out = (from_context @ vc.permute(0, 2, 1, 3)).view(batch, c.kv_heads, count, block, group, c.head_dim)
        out = out + torch.einsum("bkasgt,batkd->bkasgd", weights[..., tokens:], vb)
        return self._linear(out.permute(0, 2, 3, 1, 4, 5).flatten(3), f"layers.{i}.o")

    # -- heads -------------------------------------------------------------------------------------------

    def previous(self, tokens: Tensor) -> Tensor:
        """Rows of W1 for token ids (any shape): (..., rank); empty for head "none"."""
        if self.config.head == "none":
            return self.tensor("mask").new_zeros((*tokens.shape, 0))
        index = torch.full((self.config.target_vocab,), self.config.draft_vocab, device=tokens.device)
        index[self.tensor("vocab")] = torch.arange(self.config.draft_vocab, device=tokens.device)
        return F.embedding(index[tokens], self.tensor("head.embed"))

    def bias(self, hidden: Tensor, previous: Tensor) -> Tensor | None:
        """B of every row, teacher-forced: hidden (..., block, hidden), previous (..., block, rank) -> (..., vocab)."""
        if self.config.head == "none":
            return None
        read = previous.to(hidden.dtype) if self.config.head == "markov" else self._recur(hidden, previous)
        return self._linear(read, "head.out")

    def _recur(self, hidden: Tensor, previous: Tensor) -> Tensor:
        state = previous.new_zeros(previous.shape[:-2] + previous.shape[-1:]).to(hidden.dtype)
        read = []
        for k in range(hidden.shape[-2]):
            z = torch.cat([state, previous[..., k, :].to(hidden.dtype), hidden[..., k, :]], -1)
            keep = torch.sigmoid(self._linear(z, "head.gate"))
            state = keep * state + (1 - keep) * torch.tanh(self._linear(z, "head.cell"))
            read.append(torch.tanh(self._linear(z, "head.read")))
        return torch.stack(read, -2)

    def confidence(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """Logit of c_k from [h_k ; W1[x_(k-1)]]: (...,)."""
        weight = self.tensor("confidence")
        seen = torch.cat([hidden.to(weight.dtype), previous.to(weight.dtype)], -1)
        return seen @ weight + self.tensor("confidence.bias")

    # -- parts -------------------------------------------------------------------------------------------

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.tensor(name).to(x.dtype))

    def _rms(self, x: Tensor, name: str) -> Tensor:
        wide = _wide(x)
        weight = self.tensor(name).to(wide.dtype)
        return F.rms_norm(wide, (x.shape[-1],), weight, self.config.norm_eps).to(x.dtype)

    def _rotation(self, at: Tensor, dtype: torch.dtype) -> Tensor:
        """cos and sin of every position: (2, ..., 1, head_dim / 2)."""
        half = torch.arange(0, self.config.head_dim, 2, device=at.device).double() / self.config.head_dim
        angle = at[..., None].double() * self.config.rope_theta**-half
        return torch.stack([angle.cos(), angle.sin()])[..., None, :].to(dtype)


def _wide(x: Tensor) -> Tensor:
    """At least float32: sums of squares and exponentials are not for half precision."""
    wide: Tensor = x if x.dtype == torch.float64 else x.float()
    return wide


def _turn(x: Tensor, rotation: Tensor) -> Tensor:
    cos, sin = rotation[0], rotation[1]
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def _initial(name: str, shape: tuple[int, ...], config: DSparkConfig, generator: torch.Generator) -> Tensor:
    if name.endswith("norm"):
        return torch.ones(shape)
    if name.startswith("confidence"):
        return torch.zeros(shape)
    if name == "mask":
        return torch.randn(shape, generator=generator) * 0.1
    scale = float(shape[-1]) ** -0.5
    if name.endswith((".o", ".down")):
        scale /= math.sqrt(2 * config.layers)
    if name == "head.out":
        scale = 0.0  # B starts at 0: the first loss is that of the parallel rows alone
    values: Tensor = torch.randn(shape, generator=generator) * scale
    return values


def module_of(checkpoint: Checkpoint) -> DSparkModule:
    """The module with a checkpoint's weights."""
    module = DSparkModule(checkpoint.config)
    with torch.no_grad():
        for name in checkpoint.config.shapes():
            module.tensor(name).copy_(torch.from_numpy(np.asarray(checkpoint.tensors[name])))
    return module
