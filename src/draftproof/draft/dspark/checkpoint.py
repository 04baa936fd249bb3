"""DSpark checkpoints: `dspark.safetensors` and `dspark.json` in one folder.

The JSON holds the config, the calibration and the training record; the tensors are those of `DSparkConfig.shapes`, in
float16 or float32, `vocab` as integers.

Guarantees: a checkpoint that loads is whole: every tensor there, of its shape, finite; the vocabulary map ascending and
inside the target's vocabulary; another target is refused. What it does not do: run the drafter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from draftproof.draft.dspark.config import DSparkConfig
from draftproof.errors import InvalidValue, ModelFileError, ModelNotFound
from draftproof.models.cache import fresh_file, writing

Array = npt.NDArray[Any]

TENSORS, FACTS = "dspark.safetensors", "dspark.json"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A drafter's weights and what is known about them.

    temperatures: of the confidence logit, one per block position (all 1 before calibration). record: how it was made.
    """

    config: DSparkConfig
    tensors: Mapping[str, Array]
    temperatures: tuple[float, ...]
    record: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_tensors(self.config, self.tensors)
        if len(self.temperatures) != self.config.block:
            raise InvalidValue(
                f"{len(self.temperatures)} calibration temperatures for blocks of {self.config.block}", "one a position"
            )
        if not all(np.isfinite(t) and t > 0 for t in self.temperatures):
            raise InvalidValue(f"calibration temperatures {self.temperatures}", "finite numbers > 0")

    def check_target(self, fingerprint: str, vocab_size: int) -> None:
        """Raise ModelFileError unless the checkpoint was trained for this target."""
        if self.config.target_fingerprint != fingerprint:
            raise ModelFileError(
                f"the drafter was trained for another target ({self.config.target_fingerprint[:12]}, "
                f"not {fingerprint[:12]})",
                "train one for this model with `draftproof train dspark`, or use another drafter",
            )
        if int(self.tensors["vocab"][-1]) >= vocab_size:
            raise ModelFileError(
                f"the drafter's vocabulary map reaches id {int(self.tensors['vocab'][-1])}",
                f"the target has {vocab_size} tokens",
            )


def check_tensors(config: DSparkConfig, tensors: Mapping[str, Array]) -> None:
    """Raise ModelFileError unless every tensor is there, has its shape, and holds what it may."""
    shapes = config.shapes()
    missing, unknown = sorted(shapes.keys() - tensors.keys()), sorted(tensors.keys() - shapes.keys())
    if missing or unknown:
        what = f"lacks {', '.join(missing)}" if missing else f"holds unknown tensors: {', '.join(unknown)}"
        raise ModelFileError(f"the drafter's checkpoint {what}", "fetch or train it again")
    for name, shape in shapes.items():
        if tuple(tensors[name].shape) != shape:
            raise ModelFileError(
                f"the drafter's {name} has shape {tuple(tensors[name].shape)}, its config says {shape}",
                "config and weights belong to different drafters; fetch or train it again",
            )
        if not np.isfinite(tensors[name]).all():
            raise ModelFileError(f"the drafter's {name} holds NaN or infinity", "fetch or train it again")
    vocab = tensors["vocab"]
    if not np.issubdtype(vocab.dtype, np.integer) or (np.diff(vocab.astype(np.int64)) <= 0).any():
        raise ModelFileError("the drafter's vocabulary map is not ascending ids", "fetch or train it again")
    if vocab[0] < 0 or vocab[-1] >= config.target_vocab:
        raise ModelFileError(
            f"the drafter's vocabulary map holds {int(vocab[0])}..{int(vocab[-1])}",
            f"ids of the target are 0..{config.target_vocab - 1}",
        )


def save(checkpoint: Checkpoint, folder: Path) -> None:
    """Write both files, each whole or not at all; weights as float16."""
    from safetensors.numpy import save_file

    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    stored = {
        name: np.ascontiguousarray(values, dtype=np.int32 if name == "vocab" else np.float16)
        for name, values in checkpoint.tensors.items()
    }
    check_tensors(checkpoint.config, stored)  # a weight beyond float16 would be stored as infinity
    facts = {
        "format": FORMAT,
        "config": checkpoint.config.as_dict(),
        "temperatures": list(checkpoint.temperatures),
        "record": dict(checkpoint.record),
    }
    with fresh_file(folder / TENSORS) as temporary:
        save_file(stored, temporary)
    with fresh_file(folder / FACTS) as temporary:
        temporary.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def load(folder: Path) -> Checkpoint:
    """Read a checkpoint; weights become float32.

    Raises ModelNotFound without the two files, ModelFileError for anything wrong in them.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    if not ((folder / FACTS).is_file() and (folder / TENSORS).is_file()):
        raise ModelNotFound(f"{folder} holds no DSpark checkpoint", f"it has {FACTS} and {TENSORS}")
    try:
        facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
        tensors = load_file(folder / TENSORS)
    except (json.JSONDecodeError, UnicodeDecodeError, SafetensorError, OSError) as error:
        raise ModelFileError(f"cannot read the drafter in {folder}: {error}", "fetch or train it again") from error
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise ModelFileError(f"{folder / FACTS} is not of format {FORMAT}", "update draftproof, or train it again")
    try:
        config = DSparkConfig.from_dict(facts["config"])
        temperatures, record = tuple(float(t) for t in facts["temperatures"]), facts["record"]
    except (KeyError, TypeError) as error:
        raise ModelFileError(f"{folder / FACTS} lacks or garbles {error}", "fetch or train it again") from error
    wide = {name: t.astype(np.int64 if name == "vocab" else np.float32) for name, t in tensors.items()}
    return Checkpoint(config, wide, temperatures, record)


def uncalibrated(block: int) -> Seq[float]:
    """The temperatures of a drafter that was not calibrated."""
    return (1.0,) * block
