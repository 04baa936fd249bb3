"""The user's cache folder: where it is, and how a file or folder appears in it whole or not at all.

Guarantees: what `fresh_folder` and `fresh_file` publish was complete before it got its final name (it
is written beside it and renamed); `complete` is true only for a folder whose manifest, written last,
names every file with its size. What it does not do: decide what to keep, or delete anything that is
not its own half-written work.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs

from draftproof.errors import ModelFileError

Progress = Callable[[str, float], None]
"""Called with what is being done and how much of it is done, 0.0 to 1.0."""

MANIFEST = "draftproof.json"
_BLOCK = 1 << 20
_STALE_SECONDS = 24 * 3600


def silent(what: str, fraction: float) -> None:
    """The progress callback of a caller who gave none."""


def cache_root() -> Path:
    """The cache folder (created): DRAFTPROOF_CACHE, or the platform's own place for caches.

    Raises ModelFileError if it cannot be created.
    """
    root = Path(os.environ.get("DRAFTPROOF_CACHE") or platformdirs.user_cache_dir("draftproof", appauthor=False))
    with writing(root):
        root.mkdir(parents=True, exist_ok=True)
    return root


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an operating-system error while writing `path` into a ModelFileError that names it."""
    try:
        yield
    except OSError as error:
        raise ModelFileError(
            f"cannot write {path}: {error.strerror or error}",
            "free some space, or set DRAFTPROOF_CACHE to a folder that can be written",
        ) from error


def sha256_of(path: Path, progress: Progress = silent, name: str = "") -> str:
    """The sha256 of a file's bytes, as 64 hex digits. Raises ModelFileError if it cannot be read."""
    digest = hashlib.sha256()
    try:
        size, done = path.stat().st_size, 0
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
                done += len(block)
                progress(f"checking {name or path.name}", done / max(size, done))
    except OSError as error:
        raise ModelFileError(
            f"cannot read {path}: {error.strerror or error}", "check the path and its rights"
        ) from error
    return digest.hexdigest()


@contextmanager
def fresh_file(final: Path) -> Iterator[Path]:
    """A temporary path beside `final`; renamed to `final` if the block ends well, removed otherwise."""
    temporary = _beside(final)
    try:
        yield temporary
        with writing(final):
            temporary.replace(final)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def fresh_folder(final: Path) -> Iterator[Path]:
    """A temporary folder beside `final`; given its manifest and its final name if the block ends well.

    A half-written or outdated `final` is replaced; if another process published a complete one in the
    meantime, that one stays and ours is dropped.
    """
    temporary = _beside(final)
    with writing(final):
        temporary.mkdir()
    try:
        yield temporary
        sizes = {file.name: file.stat().st_size for file in sorted(temporary.iterdir())}
        with writing(final):
            (temporary / MANIFEST).write_text(json.dumps({"files": sizes}, indent=1), encoding="utf-8")
            if not complete(final):
                if final.exists():
                    shutil.rmtree(final)
                temporary.rename(final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _beside(final: Path) -> Path:
    """An unused name in the folder of `final`; what a killed process left there a day ago is removed."""
    with writing(final):
        final.parent.mkdir(parents=True, exist_ok=True)
        for left in final.parent.glob(f".{final.name}.*"):
            if time.time() - left.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(left) if left.is_dir() else left.unlink()
    return final.with_name(f".{final.name}.{uuid.uuid4().hex[:8]}")


def complete(folder: Path) -> bool:
    """Whether `folder` was published by `fresh_folder` and every file still has its size."""
    try:
        sizes = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        # Each of these means "not what we would have written": the folder is made again.
        return False
