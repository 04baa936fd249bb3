"""The page `draftproof explain --html`: the derivation, movable.

Guarantees: one self-contained file, English and Chinese, whose planted faults and their figures come from
proof/planted_faults.jsonl. What it does not do: compute; its numbers are made in the browser by
assets/numbers.js and assets/laws.js, which the tests hold against `draftproof.rule`.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from draftproof.explain.assemble import assemble, shared

SCRIPTS = (
    "dom.js",
    "settings.js",
    "numbers.js",
    "laws.js",
    "dice.js",
    "state.js",
    "bars.js",
    "picture.js",
    "table.js",
    "steps.js",
    "roll.js",
    "chain.js",
    "pay.js",
    "faults.js",
    "start.js",
)
LANGUAGES = ("en", "zh")


def explain_page() -> str:
    """The page's HTML."""
    data = {
        "texts": {lang: json.loads(shared(f"texts.{lang}.json").text()) for lang in LANGUAGES},
        "faults": planted_faults(),
    }
    styles = [shared("shell.css"), shared("explain.css")]
    return assemble(shared("explain.html"), styles, [shared(name) for name in SCRIPTS], data)


def planted_faults() -> list[dict[str, Any]]:
    """The planted faults as the file has them, in its order."""
    lines = resources.files("draftproof.proof").joinpath("planted_faults.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in lines.splitlines() if line.strip()]
