"""Every error the package raises on purpose, as a small tree.

Guarantees: each error says in one line what is wrong and, after a dash, what to do about it; the
command line turns any of them into exit code 2. Errors of other libraries are not caught here.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DraftproofError(Exception):
    """Root of the tree. `remedy` is what the user can do; it is part of the message."""

    def __init__(self, message: str, remedy: str = "") -> None:
        self.remedy = remedy
        super().__init__(f"{message} - {remedy}" if remedy else message)


class InvalidValue(DraftproofError, ValueError):
    """A parameter outside its legal range: its name, its value, the range."""


class UnknownName(DraftproofError, ValueError):
    """A drafter, verifier, model, control ... that does not exist; the known ones are listed."""

    def __init__(self, kind: str, name: str, known: Iterable[str], remedy: str = "") -> None:
        names = sorted(known)
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        self.kind, self.name, self.known = kind, name, tuple(names)
        super().__init__(
            f"unknown {kind} {name!r}", f"{hint}known: {', '.join(names)}{'. ' + remedy if remedy else ''}"
        )


class Unsupported(DraftproofError):
    """Something legal that cannot be honoured exactly here; refused by name before generating."""


class ModelError(DraftproofError):
    """A model that cannot be found, read, trusted or used."""


class ModelNotFound(ModelError):
    """No such folder, file, alias or reachable Hub id."""


class ModelFileError(ModelError):
    """A model file that is missing, truncated, altered (sha256) or of the wrong kind."""


class VocabularyMismatch(ModelError):
    """Target and draft do not share one vocabulary."""


class MissingExtra(DraftproofError, ImportError):
    """An optional dependency is not installed; the remedy is the pip command."""


class NumericError(DraftproofError, ArithmeticError):
    """A number that no distribution can contain, raised where it first appeared."""


class BadLogits(NumericError):
    """Logits with NaN or +inf, or a row without any finite entry: position and row are named."""


class BadProposal(NumericError):
    """A drafter broke its contract: an id outside the vocabulary, or q that gives it probability 0."""


class BadTable(NumericError):
    """A table or probability vector that is negative or does not sum to one."""


class StreamReuse(DraftproofError, AssertionError):
    """A random stream address was used twice where independence is required (found by the proof)."""
