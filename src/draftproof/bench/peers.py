"""Other programs on the same weights and prompts, each in a process of its own.

What it is for: `draftproof bench --peers`. Every peer runs plain and with its own prompt lookup, as modes of the same
run, so that peers and our engine take turns on the machine. While one answers the others wait for input.

Guarantees: a peer that is not installed, or fails, is named with the reason; the rest is measured. No peer outlives
the run. What it does not do: share memory or threads with a peer, or touch its sampling (temperature 0 is its greedy
mode; otherwise top-k and top-p are off).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftproof.bench import peer_child
from draftproof.bench.answers import Answer
from draftproof.bench.modes import ModeFailed
from draftproof.errors import DraftproofError, InvalidValue, UnknownName
from draftproof.models.cache import Progress, silent
from draftproof.models.store import resolve
from draftproof.sampling.params import SamplingParams

NAMES = ("transformers", "openvino-genai", "llama-cpp-python")


class PeerFailed(ModeFailed):
    """A peer's process ended, or answered with an error."""


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """status: "measured", "missing" (not installed) or "failed". detail: its version, or the reason."""

    name: str
    status: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerJob:
    """What peers load. files: name of a peer -> gives its model file or folder, made when it is asked for."""

    files: Mapping[str, Callable[[], Path]]
    threads: int
    eos: tuple[int, ...] = ()
    dtype: str = "float32"
    context: int = 2048
    lookups: tuple[int, ...] = (5,)
    pythons: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        for name in (*self.files, *(self.pythons or ())):
            if name not in NAMES:
                raise UnknownName("peer", name, NAMES)
        if any(lookup < 1 for lookup in self.lookups):
            raise InvalidValue(f"prompt lookup of {min(self.lookups)} tokens", "at least 1")


class PeerProcess:
    """One peer, loaded, behind its standard input and output."""

    def __init__(self, name: str, python: str, job: Mapping[str, Any]) -> None:
        self.name = name
        # A file, because a pipe that nobody reads would fill and stop the peer.
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - see close
        self._process: subprocess.Popen[str] | None = None
        try:
            self._process = subprocess.Popen(
                [python, str(Path(peer_child.__file__)), name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
            )
            self.hello = self.ask(job)
        except BaseException:
            self.close()
            raise

    def ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Send one message, wait for its answer. Raises PeerFailed if none comes."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(message) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise PeerFailed(f"{self.name} ended: {self._last_words(process.wait())}", "run it alone to see why")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            with suppress(BrokenPipeError):  # a request that the dead process never read
                self._process.communicate()
        self._errors.close()

    def _last_words(self, code: int) -> str:
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().splitlines() if line.strip()]
        return lines[-1] if lines else f"exit code {code}"


class PeerMode:
    """A peer as a mode. lookup: tokens of its prompt lookup, 0 for its plain decoding."""

    def __init__(self, process: PeerProcess, eos: Seq[int], lookup: int) -> None:
        self._process = process
        self._eos = list(eos)
        self._lookup = lookup
        self.baseline = f"{process.name} plain"
        self.name = f"{process.name} lookup {lookup}" if lookup else self.baseline

    def begin(self) -> None:
        """Peers keep nothing between answers."""

    def answer(self, prompt: Seq[int], params: SamplingParams, *, floor: bool) -> Answer:
        request = {
            "ids": list(prompt),
            "temperature": float(params.temperature),
            "max_tokens": params.max_tokens,
            "seed": params.seed,
            "eos": self._eos,
            "ignore_eos": params.ignore_eos,
            "lookup": self._lookup,
        }
        reply = self._process.ask(request)
        if "error" in reply:
            raise PeerFailed(f"{self.name}: {reply['error']}", "leave it out with --peer")
        return Answer(
            tokens=tuple(reply["tokens"]),
            seconds=reply["seconds"],
            first_tokens=min(reply["first_tokens"], len(reply["tokens"])),
            first_seconds=reply["first_seconds"],
        )


class Peers:
    """Every peer of a job that is installed: modes to measure, and a status for each. A context manager."""

    def __init__(self, job: PeerJob, progress: Progress = silent) -> None:
        self._job = job
        self._progress = progress
        self._processes: list[PeerProcess] = []
        self.modes: list[PeerMode] = []
        self.statuses: list[PeerStatus] = []

    def __enter__(self) -> Peers:
        try:
            for i, name in enumerate(self._job.files):
                self._progress(f"starting {name}", i / len(self._job.files))
                self.statuses.append(self._start(name))
            self._progress("starting peers", 1.0)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.close()

    def _start(self, name: str) -> PeerStatus:
        """Two processes, plain and with lookup; several lookup lengths share one."""
        job, version = self._job, ""
        modes = []
        for lookups in ((0,), job.lookups):
            if not lookups:
                continue
            try:
                process = self._process(name, lookups[0])
                hello = process.hello
                if "missing" in hello:
                    return PeerStatus(name, "missing", f"not installed; pip install {name}")
                if "error" in hello:
                    return PeerStatus(name, "failed", str(hello["error"]))
            except (DraftproofError, OSError) as error:
                # No model file for this peer, or no such interpreter: the run goes on without it.
                return PeerStatus(name, "failed", str(error))
            version = str(hello["version"])
            modes += [PeerMode(process, job.eos, lookup) for lookup in lookups]
        self.modes += modes
        return PeerStatus(name, "measured", version)

    def _process(self, name: str, lookup: int) -> PeerProcess:
        job = self._job
        message = {
            "file": str(job.files[name]()),
            "threads": job.threads,
            "dtype": job.dtype,
            "context": job.context,
            "lookup": lookup,
        }
        python = (job.pythons or {}).get(name, sys.executable)
        self._processes.append(PeerProcess(name, python, message))
        return self._processes[-1]


def model_files(model: str, weights: str) -> dict[str, Callable[[], Path]]:
    """What each peer loads of a model: the same weights in the peer's own kind of file.

    weights: format of the OpenVINO folder, shared with our own OpenVINO target. A GGUF peer runs the file's own.
    """

    def folder() -> Path:
        return resolve(model, kind="hf").path

    def ir() -> Path:
        from draftproof.target.openvino_store import prepare

        return prepare(model, weights=weights).folder  # type: ignore[arg-type]  # checked there

    def gguf() -> Path:
        return resolve(model, kind="gguf").path

    return dict(zip(NAMES, (folder, ir, gguf), strict=True))
