"""The page of a trace: a real decode as text, rounds and curves.

Guarantees: one self-contained file; token text is data all the way and is shown with its control characters visible
(assets/visible.js). What it does not do: read files (`jsonl`).
"""

from __future__ import annotations

import json
from typing import Any

from draftproof.explain.assemble import Asset, assemble, shared
from draftproof.trace.records import Trace, plain

SCRIPTS = ("visible.js", "run.js", "details.js", "words.js", "strip.js", "charts.js", "figures.js", "begin.js")
LANGUAGES = ("en", "zh")


def trace_page(trace: Trace) -> str:
    """The page's HTML."""
    data: dict[str, Any] = {
        "texts": {lang: json.loads(_asset(f"texts.{lang}.json").text()) for lang in LANGUAGES},
        "trace": plain(trace),
    }
    scripts = [shared("dom.js"), shared("settings.js"), *(_asset(name) for name in SCRIPTS)]
    return assemble(_asset("trace.html"), [shared("shell.css"), _asset("trace.css")], scripts, data)


def _asset(name: str) -> Asset:
    return Asset("draftproof.trace", name)
