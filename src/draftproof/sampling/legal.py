"""Checks of single values at the border: each returns the value in its stored form or raises InvalidValue.

Guarantees: the message names the parameter, the value given and the legal range. What it does not do: know which
parameters exist, or compare one with another; that is `params`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from draftproof.errors import InvalidValue

Number = float | Fraction


def integer(name: str, value: Any, low: int, high: int | None = None, *, otherwise: str = "") -> int:
    """An int (numpy's too, bool not) in low..high; `otherwise` tells of another legal value, as in ", or None"."""
    legal = f"an integer >= {low}" if high is None else f"an integer in {low}..{high}"
    try:
        whole = operator.index(value)
    except TypeError:
        raise InvalidValue(f"{name}={value!r}", legal + otherwise) from None
    if isinstance(value, bool) or whole < low or (high is not None and whole > high):
        raise InvalidValue(f"{name}={value!r}", legal + otherwise)
    return whole


def number(name: str, value: Any, legal: str, low: float, high: float = math.inf, *, open_low: bool = False) -> Number:
    """A finite float, int or Fraction in low..high, low itself excluded if `open_low`; `legal` says so in words."""
    exact = isinstance(value, Fraction | int)
    try:
        # A Fraction stays one, so that proofs cut exactly where they are told to.
        kept: Number = value if exact and not isinstance(value, bool) else float(operator.truediv(value, 1))
        finite = math.isfinite(kept)
    except (TypeError, OverflowError):  # an integer beyond every float is as good as infinite
        raise InvalidValue(f"{name}={value!r}", legal) from None
    inside = finite and low <= kept <= high and not (open_low and kept == low)
    if isinstance(value, bool) or not inside:
        raise InvalidValue(f"{name}={value!r}", legal)
    return kept


def switch(name: str, value: Any) -> bool:
    """True or False and nothing that merely behaves like one."""
    if not isinstance(value, bool):
        raise InvalidValue(f"{name}={value!r}", "True or False")
    return value


def ids(name: str, value: Any) -> frozenset[int]:
    """A set of token ids from any iterable of non-negative integers. The vocabulary's size is not known here."""
    return frozenset(integer(f"{name} entry", i, 0) for i in _items(name, value, "token ids"))


def strings(name: str, value: Any) -> tuple[str, ...]:
    """Non-empty strings; one string alone is a list of one."""
    words = (value,) if isinstance(value, str) else tuple(_items(name, value, "strings"))
    for word in words:
        if not isinstance(word, str) or not word:
            raise InvalidValue(f"{name} entry {word!r}", "non-empty strings")
    return words


def phrases(name: str, value: Any) -> tuple[str | tuple[int, ...], ...]:
    """Non-empty phrases, each a string or a sequence of token ids; one string alone is a list of one."""
    items = (value,) if isinstance(value, str) else tuple(_items(name, value, "strings or sequences of token ids"))
    found: list[str | tuple[int, ...]] = []
    for item in items:
        if isinstance(item, str):
            phrase: str | tuple[int, ...] = item
        else:
            phrase = tuple(integer(f"{name} token", i, 0) for i in _items(f"{name} entry", item, "token ids"))
        if not phrase:
            raise InvalidValue(f"{name} entry {item!r}", "non-empty phrases")
        found.append(phrase)
    return tuple(found)


def _items(name: str, value: Any, what: str) -> Iterable[Any]:
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise InvalidValue(f"{name}={value!r}", f"a list of {what}")
    return value
