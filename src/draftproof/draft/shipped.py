"""Files of drafters that come with the package, by the model they are for.

What it is for: `--draft dspark` and `--draft retrieval` with the default model, nothing more to do. Guarantees: a model
without such files is refused by naming those that have some. What it does not do: read the files.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from draftproof.errors import ModelNotFound

_ROOTS = {"dspark": ("dspark", "checkpoints"), "retrieval": ("datastores",)}


def shipped(drafter: str) -> tuple[str, ...]:
    """Models that the package has files of this drafter for."""
    root = _root(drafter)
    return tuple(sorted(folder.name for folder in root.iterdir() if folder.is_dir())) if root.is_dir() else ()


def folder_of(drafter: str, argument: str, model: str) -> Path:
    """The folder meant by `drafter` or `drafter:FOLDER` for a model: the argument's, or the package's own."""
    if argument:
        return Path(argument).expanduser()
    if model not in shipped(drafter):
        raise ModelNotFound(
            f"nothing for the drafter {drafter!r} comes with the package for {model!r}",
            f"there is something for: {', '.join(shipped(drafter)) or 'no model'}; make it with `draftproof train "
            f"{drafter}` and write {drafter}:FOLDER",
        )
    return _root(drafter) / model


def _root(drafter: str) -> Path:
    return Path(str(files("draftproof.draft"))).joinpath(*_ROOTS[drafter])
