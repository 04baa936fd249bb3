"""A stand-in for other people's servers: a small HTTP server in a Python of its own, with faults to choose from."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from evidence.servers import ServerCommand

STAND_IN = Path(__file__).parent / "stand_in.py"


@pytest.fixture
def stand_in(tmp_path: Path) -> Callable[..., ServerCommand]:
    """Makes the command of a stand-in; `child` in tmp_path holds the pid of the process it starts beside itself."""

    def make(*faults: str) -> ServerCommand:
        return ServerCommand(
            name="stand-in",
            python=Path(sys.executable),
            arguments=[str(STAND_IN), "--host", "{host}", "--port", "{port}", "--child", f"{tmp_path}/child", *faults],
            environment={"STAND_IN": "1"},
            packages=("pytest",),
        )

    return make
