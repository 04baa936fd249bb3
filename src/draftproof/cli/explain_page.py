"""The explain page for the command line: `explain --html FILE` and `explain --open`."""

from __future__ import annotations

import tempfile
import webbrowser
from pathlib import Path

from draftproof.errors import InvalidValue, Unsupported
from draftproof.explain.page import explain_page


def write_explain_page(path: Path) -> None:
    """Write the page, replacing what was there."""
    if not path.parent.is_dir():
        raise InvalidValue(f"--html {path}: no such folder", "make the folder first")
    path.write_text(explain_page(), encoding="utf-8")


def open_explain_page() -> Path:
    """Write the page to a file of its own among the system's temporary files and show it in the browser."""
    with tempfile.NamedTemporaryFile(prefix="draftproof-explain-", suffix=".html", delete=False) as file:
        path = Path(file.name)  # not deleted: the browser reads it after we are gone
    write_explain_page(path)
    if not webbrowser.open(path.as_uri()):
        raise Unsupported(f"no browser could be started; the page is {path}", "open that file yourself")
    return path
