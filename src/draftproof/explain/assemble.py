"""One self-contained HTML file out of a template, style sheets, scripts and data.

Guarantees: the page loads nothing and may load nothing: its content security policy names the one script by its
hash, so that text from a model can never run, whatever it contains. Embedded data cannot end its element or the
string it stands in. What it does not do: know what the pages show.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from importlib import resources
from typing import Any

SLOT = re.compile(r"\{\{(\w+)\}\}")


@dataclass(frozen=True, slots=True)
class Asset:
    """A file of the package: `package` is the dotted name of the folder's parent, `name` the file in its assets."""

    package: str
    name: str

    def text(self) -> str:
        """Its content, UTF-8."""
        return resources.files(self.package).joinpath("assets", self.name).read_text(encoding="utf-8")


def shared(name: str) -> Asset:
    """An asset that both pages use."""
    return Asset("draftproof.explain", name)


def assemble(template: Asset, styles: Seq[Asset], scripts: Seq[Asset], data: Mapping[str, Any]) -> str:
    """The page. `template` has the slots {{policy}}, {{style}}, {{script}} and {{data}}, each once.

    The scripts become one element, in order; `data` is what they find under the id "data". Slots are filled in
    one pass over the template, so nothing that is filled in is ever read as a slot.
    """
    style = "\n".join(asset.text() for asset in styles)
    script = '"use strict";\n' + "\n".join(asset.text() for asset in scripts)
    assert "</" not in style.lower(), "a style sheet must not be able to end its element"
    assert "</script" not in script.lower(), "a script must not be able to end its element"
    fill = {
        "policy": f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "base-uri 'none'; form-action 'none'",
        "style": style,
        "script": script,
        "data": embed(data),
    }
    return SLOT.sub(lambda slot: fill[slot.group(1)], template.text())


def embed(data: Any) -> str:
    """JSON that is safe inside a script element: ASCII only, and no <, > or & at all."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
