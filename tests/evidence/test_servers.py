"""Servers of the evidence: they are used only when they answer, and nothing of them is left, whatever happens."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep

import pytest

from draftproof.errors import InvalidValue
from evidence import servers
from evidence.servers import ServerCommand, ServerNotReady, llama_server, server_versions, serving, vllm_server

Make = Callable[..., ServerCommand]


def _gone(pid: int) -> bool:
    """Whether no such process runs (one that ended and was not collected yet does not run)."""
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def _child(tmp_path: Path) -> int:
    return int((tmp_path / "child").read_text())


def test_a_server_answers_while_it_is_used_and_not_after(stand_in: Make, tmp_path: Path) -> None:
    with serving(stand_in(), seconds=30) as url:
        assert url.startswith("http://127.0.0.1:")
        assert urllib.request.urlopen(f"{url}/models", timeout=5).status == 200
        assert not _gone(_child(tmp_path))
    assert _gone(_child(tmp_path))
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{url}/models", timeout=5)


def test_an_error_while_it_is_used_stops_the_server_and_its_workers(stand_in: Make, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), serving(stand_in(), seconds=30):
        raise ZeroDivisionError
    assert _gone(_child(tmp_path))


def test_a_server_that_ignores_sigterm_is_killed(
    stand_in: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "GRACE", 0.3)
    with serving(stand_in("stubborn"), seconds=30) as url:
        pass
    assert _gone(_child(tmp_path))
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{url}/models", timeout=5)


def test_a_server_that_is_not_ready_in_time_is_named_with_its_output_and_stopped(
    stand_in: Make, tmp_path: Path
) -> None:
    started = monotonic()
    late = pytest.raises(ServerNotReady, match=r"stand-in does not answer after 1\.5 s: still loading")
    with late, serving(stand_in("silent"), seconds=1.5):
        raise AssertionError("it was handed out")
    assert monotonic() - started < 15
    assert _gone(_child(tmp_path))


def test_a_server_that_ends_is_named_at_once_and_its_workers_are_stopped(stand_in: Make, tmp_path: Path) -> None:
    started = monotonic()
    ended = pytest.raises(ServerNotReady, match="ended with 3: no such model: marmalade")
    with ended, serving(stand_in("ends"), seconds=60):
        raise AssertionError("it was handed out")
    assert monotonic() - started < 30
    assert _gone(_child(tmp_path))


def test_another_server_on_the_port_is_not_taken_for_this_one(stand_in: Make, tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ServerNotReady, match=f"port {port} is in use"), serving(stand_in(), port=port):
            raise AssertionError("it was handed out")
    assert not (tmp_path / "child").exists()  # nothing was started


def test_sigterm_to_the_script_stops_the_server(stand_in: Make, tmp_path: Path) -> None:
    command = stand_in()
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom evidence.servers import *\nend_on_sigterm()\n"
        "c = ServerCommand(name='x', python=Path(sys.argv[1]), arguments=sys.argv[2:], environment={'STAND_IN': '1'})\n"
        "with serving(c, seconds=30):\n    print('up', flush=True)\n    time.sleep(300)\n"
    )
    root = Path(servers.__file__).parents[1]
    script = subprocess.Popen(
        [sys.executable, "-c", code, str(command.python), *command.arguments],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "src")])},
    )
    try:
        assert script.stdout is not None
        assert script.stdout.readline() == b"up\n"
        script.send_signal(signal.SIGTERM)
        assert script.wait(timeout=30) == 128 + signal.SIGTERM
    finally:
        script.kill()
        script.communicate()
    until = monotonic() + 5
    while not _gone(_child(tmp_path)) and monotonic() < until:
        sleep(0.05)
    assert _gone(_child(tmp_path))


def test_what_is_missing_is_named(stand_in: Make, tmp_path: Path) -> None:
    nowhere = ServerCommand(name="x", python=tmp_path / "python", arguments=["{port}"])
    with pytest.raises(ServerNotReady, match="there is no interpreter"), serving(nowhere):
        raise AssertionError("it was handed out")
    with pytest.raises(ServerNotReady, match="there is no interpreter"):
        server_versions(nowhere)
    absent = ServerCommand(name="x", python=Path(sys.executable), arguments=["{port}"], packages=("no-such-thing",))
    with pytest.raises(ServerNotReady, match=r"x is not installed there: .*no-such-thing"):
        server_versions(absent)
    assert server_versions(stand_in())["pytest"] == pytest.__version__
    with pytest.raises(InvalidValue):
        ServerCommand(name="x", python=Path(sys.executable), arguments=["--port", "80"])


@pytest.mark.parametrize("make", [llama_server, vllm_server])
def test_speculation_is_all_that_differs_from_the_control(make: Callable[..., ServerCommand], monkeypatch) -> None:
    files = dict.fromkeys(("transformers", "llama-cpp-python"), lambda: Path("/somewhere/model"))
    monkeypatch.setattr(servers, "model_files", lambda model, weights: files)
    on, off = make(Path("/some/python"), "m", lookup=5), make(Path("/some/python"), "m")
    assert list(on.arguments[: len(off.arguments)]) == list(off.arguments)
    assert "5" in " ".join(on.arguments[len(off.arguments) :])
    assert on.environment == off.environment
    assert "/" not in on.shown().replace("{host}", "")  # no folder of this machine
