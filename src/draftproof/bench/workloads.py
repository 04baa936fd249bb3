"""Prompts to measure with: the project's own four workloads, and files of the user's.

A file has one JSON object a line: {"prompt": "..."} or {"turns": ["...", ...]}, of which the first turn is asked.

Guarantees: a file is read whole and refused with its line number before anything is measured. What it does not do:
judge answers; how much of an answer repeats its prompt is what tells the workloads apart.
"""

from __future__ import annotations

import json
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from draftproof.errors import InvalidValue, UnknownName

NAMES = ("extractive", "code", "math", "chat")


@dataclass(frozen=True, slots=True)
class Workload:
    """A name and its prompts, asked as chat messages where the model has a chat template."""

    name: str
    prompts: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.prompts:
            raise InvalidValue(f"workload {self.name!r} without prompts", "one JSON object a line")

    def first(self, count: int | None) -> Workload:
        """The same with at most `count` prompts; None keeps all."""
        if count is None:
            return self
        if count < 1:
            raise InvalidValue(f"{count} prompts of each workload", "at least 1")
        return Workload(self.name, self.prompts[:count])


def builtin(names: Seq[str] = NAMES) -> list[Workload]:
    """Workloads of the package. Raises UnknownName."""
    for name in names:
        if name not in NAMES:
            raise UnknownName("workload", name, NAMES)
    folder = resources.files("draftproof.bench") / "prompts"
    return [parse(name, (folder / f"{name}.jsonl").read_text(encoding="utf-8"), f"{name}.jsonl") for name in names]


def from_file(path: Path) -> Workload:
    """The workload in a JSONL file, named after the file. Raises InvalidValue naming file and line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidValue(
            f"cannot read prompts from {path}: {error}", "a UTF-8 file, one JSON object a line"
        ) from error
    return parse(path.stem, text, path.name)


def parse(name: str, text: str, where: str) -> Workload:
    """The workload in the text of a file; `where` is what errors call it."""
    lines = [(i, line) for i, line in enumerate(text.splitlines(), start=1) if line.strip()]
    if not lines:
        raise InvalidValue(f"{where} holds no prompt", 'one JSON object a line: {"prompt": "..."}')
    return Workload(name, tuple(_prompt(line, f"{where} line {i}") for i, line in lines))


def _prompt(line: str, where: str) -> str:
    remedy = '{"prompt": "text"} or {"turns": ["text", ...]}'
    try:
        value: Any = json.loads(line)
    except ValueError as error:
        raise InvalidValue(f"{where} is not JSON ({error})", remedy) from error
    found = value.get("prompt", value.get("turns")) if isinstance(value, dict) else None
    if isinstance(found, list) and found:
        found = found[0]
    if not isinstance(found, str) or not found.strip():
        raise InvalidValue(f"{where} holds no prompt", remedy)
    return found
