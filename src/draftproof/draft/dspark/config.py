"""The shape of a DSpark drafter, and what its checkpoint says about itself.

Guarantees: a config that exists is consistent: sizes divide, layers are named once and lie inside the target, the block
is of a sensible length. What it does not do: hold weights (`checkpoint`), or the vocabulary map, which is a tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from draftproof.errors import InvalidValue, ModelFileError

HeadKind = Literal["markov", "rnn", "none"]
"""How a draft row depends on the tokens drawn before it; `none` is DFlash, where it does not."""

LONGEST_BLOCK = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class DSparkConfig:
    """Sizes of a drafter and of the target it belongs to.

    target_fingerprint: of the target's weights; another target is refused. feature_layers: layers whose hidden states
    are the context, counted as in `output_hidden_states` (0 is the embedding, target_layers the last, after the final
    norm). block: draft rows per pass (gamma). rank: of the sequential head; 0 for "none". draft_vocab: ids a draft row
    covers. rope_theta, norm_eps, head_dim, heads, kv_heads: as in the target's own layers. qk_norm: whether queries and
    keys are normalised within each head, as Qwen3 does.
    """

    target_fingerprint: str
    target_layers: int
    target_vocab: int
    feature_layers: tuple[int, ...]
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    block: int
    draft_vocab: int
    head: HeadKind = "markov"
    rank: int = 128
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    qk_norm: bool = False

    def __post_init__(self) -> None:
        for name in ("target_layers", "target_vocab", "hidden", "layers", "heads", "kv_heads", "head_dim", "mlp"):
            _at_least(name, getattr(self, name), 1)
        _at_least("block", self.block, 1)
        if self.block > LONGEST_BLOCK:
            raise InvalidValue(f"block={self.block}", f"1 to {LONGEST_BLOCK}")
        if self.head not in get_args(HeadKind):
            raise InvalidValue(f"head={self.head!r}", f"one of {', '.join(get_args(HeadKind))}")
        _at_least("rank", self.rank, 0 if self.head == "none" else 1)
        if not 1 <= self.draft_vocab <= self.target_vocab:
            raise InvalidValue(f"draft_vocab={self.draft_vocab}", f"1 to {self.target_vocab}, the target's vocabulary")
        if self.heads % self.kv_heads or self.head_dim % 2:
            raise InvalidValue(
                f"{self.heads} heads, {self.kv_heads} key heads of {self.head_dim}", "whole groups, an even size"
            )
        layers = self.feature_layers
        if not layers or sorted(set(layers)) != list(layers) or layers[0] < 0 or layers[-1] > self.target_layers:
            raise InvalidValue(f"feature_layers={layers}", f"ascending, each once, within 0..{self.target_layers}")
        if not (self.rope_theta > 0 and self.norm_eps > 0):
            raise InvalidValue(f"rope_theta={self.rope_theta}, norm_eps={self.norm_eps}", "both > 0")

    def as_dict(self) -> dict[str, Any]:
        """For JSON. A field that came later is left out while it has its first value, so that files stay the same."""
        values = asdict(self) | {"feature_layers": list(self.feature_layers)}
        return {name: value for name, value in values.items() if name not in _LATER or value != _LATER[name]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> DSparkConfig:
        """From JSON. Raises ModelFileError for a missing or unknown field, InvalidValue for a bad value."""
        known = {f.name for f in fields(cls)}
        odd = sorted((known - _LATER.keys() - values.keys()) | (values.keys() - known))
        if odd:
            raise ModelFileError(f"the drafter's config lacks or does not know: {', '.join(odd)}", "fetch it again")
        return cls(**{**values, "feature_layers": tuple(values["feature_layers"])})

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor of a checkpoint and its shape: the one list that saving, loading and both forwards share."""
        d, q, kv = self.hidden, self.heads * self.head_dim, self.kv_heads * self.head_dim
        context = len(self.feature_layers) * d
        normed = ("q_norm", "k_norm") if self.qk_norm else ()
        shapes: dict[str, tuple[int, ...]] = {
            "context.scale": (context,),
            "context.proj": (d, context),
            "context.norm": (d,),
            "mask": (d,),
            "norm": (d,),
            "confidence": (d + self.rank,),
            "confidence.bias": (1,),
            "vocab": (self.draft_vocab,),
        }
        for i in range(self.layers):
            shapes |= {
                f"layers.{i}.attn_norm": (d,),
                f"layers.{i}.q": (q, d),
                f"layers.{i}.k": (kv, d),
                f"layers.{i}.v": (kv, d),
                f"layers.{i}.o": (d, q),
                f"layers.{i}.mlp_norm": (d,),
                f"layers.{i}.gate": (self.mlp, d),
                f"layers.{i}.up": (self.mlp, d),
                f"layers.{i}.down": (d, self.mlp),
            }
            shapes |= {f"layers.{i}.{name}": (self.head_dim,) for name in normed}
        if self.head != "none":
            # One row more than the draft vocabulary: the embedding shared by every token outside it.
            shapes |= {"head.embed": (self.draft_vocab + 1, self.rank), "head.out": (self.draft_vocab, self.rank)}
        if self.head == "rnn":
            z = 2 * self.rank + d
            shapes |= {f"head.{gate}": (self.rank, z) for gate in ("gate", "cell", "read")}
        return shapes


_LATER: dict[str, Any] = {f.name: f.default for f in fields(DSparkConfig) if f.name == "qk_norm"}
"""Fields that old checkpoints do not have, and what they mean there."""


def _at_least(name: str, value: int, lowest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
        raise InvalidValue(f"{name}={value!r}", f"a whole number >= {lowest}")
