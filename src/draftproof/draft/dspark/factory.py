"""From a name on the command line to a DSpark drafter: `dspark` and `dspark:FOLDER`, in our layout or DeepSpec's.

Guarantees: a target without hidden states, or of other weights than the checkpoint's, is refused with a remedy. What it
does not do: load the target; `feature_layers` tells a loader which hidden states it must keep.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from draftproof.draft.dspark import checkpoint as checkpoints
from draftproof.draft.dspark import deepspec
from draftproof.draft.dspark.drafter import DSparkDrafter
from draftproof.draft.dspark.hidden import TargetTables
from draftproof.draft.dspark.tap import FeatureTap
from draftproof.draft.shipped import folder_of
from draftproof.errors import InvalidValue, Unsupported

if TYPE_CHECKING:
    from draftproof.registry import DraftContext


def feature_layers(argument: str, model: str) -> tuple[int, ...]:
    """The layers whose hidden states the target must keep (`hidden_layers` of a target) for this drafter."""
    folder = folder_of("dspark", argument, model)
    return (
        deepspec.feature_layers(folder)
        if deepspec.is_deepspec(folder)
        else checkpoints.load(folder).config.feature_layers
    )


def make_dspark(context: DraftContext) -> DSparkDrafter:
    """The drafter of "dspark" or "dspark:FOLDER" for an engine whose target is a `FeatureTap`. Those of one
    `DraftContext.loaded` share their weights.
    """
    tap = context.target
    if not isinstance(tap, FeatureTap):
        raise Unsupported(
            f"the target {tap.name} was loaded without hidden states, which DSpark reads",
            "wrap it as FeatureTap(target), loaded with hidden_layers=feature_layers(...)",
        )
    if "+" in context.argument:
        raise InvalidValue(f"dspark:{context.argument}", "one folder")
    folder = folder_of("dspark", context.argument, tap.name)
    key = ("dspark", folder)
    if key not in context.loaded:
        context.loaded[key] = _load(folder, tap)
    first: DSparkDrafter = context.loaded[key]
    return first.another()


def _load(folder: Path, tap: FeatureTap) -> DSparkDrafter:
    tables = TargetTables.load(tap.name)
    checkpoint = (
        deepspec.load(folder, tables, tap.vocab_size) if deepspec.is_deepspec(folder) else checkpoints.load(folder)
    )
    return DSparkDrafter(checkpoint, tap, tables)
