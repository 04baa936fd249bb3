"""Traces as files: JSON Lines with a header that names format and version, and a last line that says it is whole.

    {"format": "draftproof-trace", "version": 1, ...}     who decoded
    {"kind": "request", ...}                              one per request
    {"kind": "round", ...}                                one per round
    {"kind": "end", "rounds": 12, "results": [...]}

Guarantees: what `write_trace` wrote, `read_trace` reads back equal; a file that is cut off, damaged or of another
version is refused with the line and what to do. What it does not do: append; a trace is written when the run is over.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

from draftproof.errors import InvalidValue
from draftproof.trace.records import (
    FORMAT,
    VERSION,
    Trace,
    header_from_plain,
    plain,
    request_from_plain,
    round_from_plain,
)

AGAIN = "record it again with `draftproof generate --trace`"


def write_trace(trace: Trace, path: Path) -> None:
    """Write the file, replacing what was there."""
    lines = [
        {"format": FORMAT, "version": VERSION} | plain(trace.header),
        *({"kind": "request"} | plain(request) for request in trace.requests),
        *({"kind": "round"} | plain(record) for record in trace.rounds),
        {"kind": "end", "rounds": len(trace.rounds), "results": list(trace.results)},
    ]
    # ASCII: a line separator or a lone surrogate in a token's text can neither split a line nor spoil the encoding.
    text = "".join(json.dumps(line, ensure_ascii=True, allow_nan=False) + "\n" for line in lines)
    path.write_text(text, encoding="ascii")


def read_trace(path: Path) -> Trace:
    """The trace in a file. InvalidValue if it is none, cut off, damaged, or of another version."""
    try:
        raw = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise InvalidValue(f"{path}: no such file", "give a file written by `draftproof generate --trace`") from error
    except UnicodeDecodeError as error:
        raise InvalidValue(f"{path} is not a trace", "it is not even text") from error
    lines = raw.split("\n")
    if lines[-1]:
        raise InvalidValue(f"{path} is cut off in line {len(lines)}", AGAIN)
    records = [_parse(path, number, line) for number, line in enumerate(lines[:-1], start=1)]
    if not records:
        raise InvalidValue(f"{path} is empty", AGAIN)
    return _assemble(path, records)


def _assemble(path: Path, records: Seq[dict[str, Any]]) -> Trace:
    header = _checked(path, 1, header_from_plain, _without(_check_version(path, records[0]), "format", "version"))
    end = records[-1]
    if end.get("kind") != "end":
        raise InvalidValue(f"{path} is cut off after line {len(records)}: it has no end", AGAIN)
    requests, rounds = [], []
    for number, record in enumerate(records[1:-1], start=2):
        kind = record.get("kind")
        if kind == "request":
            requests.append(_checked(path, number, request_from_plain, _without(record, "kind")))
        elif kind == "round":
            rounds.append(_checked(path, number, round_from_plain, _without(record, "kind")))
        else:
            raise InvalidValue(f"{path}, line {number}: kind {kind!r}", f"request or round; {AGAIN}")
    if end.get("rounds") != len(rounds):
        raise InvalidValue(f"{path} has {len(rounds)} of {end.get('rounds')} rounds", AGAIN)
    return Trace(header, tuple(requests), tuple(rounds), tuple(end.get("results", ())))


def _check_version(path: Path, header: dict[str, Any]) -> dict[str, Any]:
    if header.get("format") != FORMAT:
        raise InvalidValue(f"{path} is not a trace", "give a file written by `draftproof generate --trace`")
    version = header.get("version")
    if version != VERSION:
        newer = isinstance(version, int) and version > VERSION
        remedy = "update draftproof" if newer else AGAIN
        raise InvalidValue(f"{path} is a trace of version {version}, this program reads version {VERSION}", remedy)
    return header


def _parse(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise InvalidValue(f"{path}, line {number} is not JSON ({error.msg})", AGAIN) from error
    if not isinstance(record, dict):
        raise InvalidValue(f"{path}, line {number} is no JSON object", AGAIN)
    return record


def _checked(path: Path, number: int, build: Callable[[Mapping[str, Any]], Any], values: Mapping[str, Any]) -> Any:
    try:
        return build(values)
    except (InvalidValue, TypeError, ValueError) as error:
        raise InvalidValue(f"{path}, line {number}: {error}", AGAIN) from error


def _without(record: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in names}
