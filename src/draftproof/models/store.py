"""From the name a user gives to files on disk: an alias, a folder, a GGUF file or a Hub id.

Guarantees: a resolved path exists and is of the kind asked for; packaged models have the recorded
sha256; a checkpoint in pickle format is refused unless the caller says `allow_pickle`. What it does
not do: load a model or judge whether it can roll back (the target does).
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from draftproof.errors import InvalidValue, MissingExtra, ModelFileError, ModelNotFound
from draftproof.models.cache import Progress, cache_root, complete, sha256_of, silent
from draftproof.models.convert import LAYOUT, check_gguf, convert_gguf
from draftproof.models.packages import PACKAGED, obtain

__all__ = ["Progress", "ResolvedModel", "aliases", "resolve"]

Kind = Literal["hf", "gguf"]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt"]
_PICKLES = ["*.bin", "*.pt", "*.pth"]


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model found on disk.

    `path` is a folder in Hugging Face layout (kind "hf") or a GGUF file (kind "gguf"); `fingerprint`
    is the sha256 of the GGUF file it came from, the Hub revision, or a hash of the folder's file names
    and sizes and of its config; `source` says where it came from: "package", "file", "folder", "hub".
    """

    name: str
    path: Path
    fingerprint: str
    source: Literal["package", "file", "folder", "hub"]

    def __post_init__(self) -> None:
        if not self.path.exists():
            raise ModelNotFound(f"no such path: {self.path}", "it was there a moment ago; try again")


def aliases() -> tuple[str, ...]:
    """The names of the models that come as packages."""
    return tuple(sorted(PACKAGED))


def resolve(
    name: str, *, kind: Kind = "hf", allow_pickle: bool = False, progress: Progress | None = None
) -> ResolvedModel:
    """Find a model by alias, folder, GGUF file or Hub id, obtaining and converting it if needed.

    `allow_pickle` accepts a checkpoint in pickle format, which can run code of its author while it is
    read. Raises ModelNotFound (unknown name, no network), ModelFileError (damaged, altered or of the
    wrong kind), MissingExtra (a GGUF needs converting and torch is not installed).
    """
    if kind not in ("hf", "gguf"):
        raise InvalidValue(f"kind={kind!r}", "one of 'hf', 'gguf'")
    report = progress or silent
    if name in PACKAGED:
        return _packaged(name, kind, report)
    path = Path(name).expanduser()
    if name and path.is_dir():
        return _folder(name, path, kind, allow_pickle)
    if path.is_file():
        return _file(name, path, kind, report)
    if path.suffix != ".gguf" and _HUB_ID.fullmatch(name):
        return _hub(name, kind, allow_pickle, report)
    raise ModelNotFound(
        f"unknown model {name!r}",
        f"known: {', '.join(aliases())}; or an existing folder or .gguf file, or a Hub id owner/name",
    )


def _packaged(name: str, kind: Kind, report: Progress) -> ResolvedModel:
    root, sha256 = cache_root(), PACKAGED[name].sha256
    if kind == "gguf":
        return ResolvedModel(name, obtain(name, root, report), sha256, "package")
    folder = root / "models" / f"{name}-{sha256[:16]}-{LAYOUT}"
    if not complete(folder):
        convert_gguf(obtain(name, root, report), folder, report)
    return ResolvedModel(name, folder, sha256, "package")


def _file(name: str, path: Path, kind: Kind, report: Progress) -> ResolvedModel:
    check_gguf(path)
    sha256 = sha256_of(path, report)
    if kind == "gguf":
        return ResolvedModel(name, path, sha256, "file")
    folder = cache_root() / "models" / f"{path.stem}-{sha256[:16]}-{LAYOUT}"
    if not complete(folder):
        convert_gguf(path, folder, report)
    return ResolvedModel(name, folder, sha256, "file")


def _folder(name: str, path: Path, kind: Kind, allow_pickle: bool) -> ResolvedModel:
    if kind == "gguf":
        files = sorted(path.glob("*.gguf"))
        if len(files) != 1:
            raise ModelFileError(f"{path} holds {len(files)} GGUF files, one is needed", "give the .gguf file itself")
        return _file(name, files[0], kind, silent)
    _check_folder(path, allow_pickle)
    return ResolvedModel(name, path, _folder_fingerprint(path), "folder")


def _check_folder(path: Path, allow_pickle: bool) -> None:
    if not (path / "config.json").is_file():
        raise ModelFileError(f"{path} has no config.json", "give a folder in Hugging Face layout")
    if any(path.glob("*.safetensors")):
        return
    pickles = sorted(file.name for pattern in _PICKLES for file in path.glob(pattern))
    if not pickles:
        raise ModelFileError(f"{path} holds no weights (*.safetensors)", "fetch the model again")
    if not allow_pickle:
        raise ModelFileError(
            f"{path} holds its weights only in pickle format ({pickles[0]}), "
            "a format that can run code of whoever made the file while it is read",
            "use a safetensors checkpoint, or pass allow_pickle=True if you trust its author that far",
        )


def _folder_fingerprint(path: Path) -> str:
    digest = hashlib.sha256((path / "config.json").read_bytes())
    for file in sorted(path.iterdir()):
        digest.update(f"{file.name}:{file.stat().st_size}\n".encode())
    return digest.hexdigest()


def _hub(name: str, kind: Kind, allow_pickle: bool, report: Progress) -> ResolvedModel:
    if kind == "gguf":
        raise ModelFileError(
            f"{name!r} is a Hub id, and a GGUF file is needed here",
            f"download the .gguf file and give its path, or use one of: {', '.join(aliases())}",
        )
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
    except ImportError as error:
        raise MissingExtra("a Hub id needs huggingface_hub", "pip install 'draftproof[transformers]'") from error
    report(f"downloading {name}", 0.0)
    patterns = _HUB_FILES + (_PICKLES if allow_pickle else [])
    try:
        path = Path(snapshot_download(name, allow_patterns=patterns))
    except HFValidationError as error:
        raise ModelNotFound(f"{name!r} is not a Hub id", "write it as owner/name") from error
    except LocalEntryNotFoundError as error:
        raise ModelNotFound(
            f"{name!r} is neither a local path nor downloaded before, and the Hub cannot be reached",
            f"check the network, or use a model that needs no Hub: {', '.join(aliases())}",
        ) from error
    except HfHubHTTPError as error:
        raise ModelNotFound(
            f"the Hub does not give {name!r}: {str(error).strip().splitlines()[0]}",
            "check the id; a gated model needs its licence accepted and a login (hf auth login)",
        ) from error
    except OSError as error:
        # Name resolution, refused connections and full disks all arrive as OSError here.
        raise ModelNotFound(
            f"cannot download {name!r}: {error}",
            f"check the network and the disk, or use a model that needs no Hub: {', '.join(aliases())}",
        ) from error
    report(f"downloading {name}", 1.0)
    _check_folder(path, allow_pickle)
    return ResolvedModel(name, path, path.name, "hub")
