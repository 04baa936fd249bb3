"""Custom processors: a user's own functions on logits, called by name.

What it is for: an engine is given {name: function} in Python; a request names the ones it wants. No code ever comes
with a request.

Guarantees: a processor sees the history that plain decoding would have had, and cannot bring back a token that a mask
has ruled out. What it asks: that the function depends on its arguments only; anything else it remembers would make
p depend on how many tokens were drafted. What it does not do: exact arithmetic; processors work on float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
import numpy.typing as npt

from draftproof.errors import BadLogits, InvalidValue, UnknownName

Processor = Callable[[tuple[int, ...], npt.NDArray[np.float64]], npt.NDArray[np.float64]]
"""(ids of prompt, answer and drafted tokens so far; logits, shape (vocab,)) -> logits of the same shape."""


def chosen(names: Seq[str], registered: Mapping[str, Processor]) -> tuple[tuple[str, Processor], ...]:
    """The processors of these names, in order. Raises UnknownName for one that is not registered."""
    for name in names:
        if name not in registered:
            raise UnknownName(
                "processor", name, registered, "processors are registered in Python, by the engine's user"
            )
    return tuple((name, registered[name]) for name in names)


def run(name: str, processor: Processor, history: tuple[int, ...], logits: npt.NDArray[np.float64]) -> Any:
    """One processor's logits, float64, checked. Raises InvalidValue for a wrong shape, BadLogits for NaN or +inf."""
    impossible = np.isneginf(logits)
    result = np.array(processor(history, logits.copy()), dtype=np.float64)
    if result.shape != logits.shape:
        raise InvalidValue(f"processor {name!r} returned shape {result.shape}", f"logits of shape {logits.shape}")
    if np.isnan(result).any() or np.isposinf(result).any():
        raise BadLogits(f"processor {name!r} returned NaN or +inf", "return finite numbers or -inf")
    result[impossible] = -np.inf
    return result
