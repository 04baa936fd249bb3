"""Results of evidence scripts as JSON files that say what they were measured with.

Guarantees: a file is whole or absent; a script that is stopped goes on from its last saved part.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("draftproof", "numpy", "torch", "transformers", "openvino", "openvino-genai", "llama-cpp-python")


class Record:
    """A named set of parts, each a JSON object, saved after every addition."""

    def __init__(self, name: str) -> None:
        self.file = RESULTS / f"{name}.json"
        self.parts: dict[str, Any] = {}
        if self.file.is_file():
            self.parts = json.loads(self.file.read_text(encoding="utf-8"))["parts"]

    def add(self, part: str, value: Any) -> None:
        """Keep one part."""
        self.parts[part] = value
        RESULTS.mkdir(exist_ok=True)
        unfinished = self.file.with_suffix(".part")
        unfinished.write_text(
            json.dumps({"measured": environment(), "parts": self.parts}, indent=1) + "\n", encoding="utf-8"
        )
        unfinished.replace(self.file)


def environment() -> dict[str, Any]:
    """Versions, processor, date."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    info = Path("/proc/cpuinfo")
    names = (
        [x.partition(":")[2].strip() for x in info.read_text().splitlines() if "model name" in x]
        if info.exists()
        else []
    )
    return {
        "date": datetime.date.today().isoformat(),
        "python": platform.python_version(),
        "cpu": names[0] if names else platform.machine(),
        "cores": os.cpu_count(),
        "versions": found,
    }
