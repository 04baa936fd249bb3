"""How much of each block is verified, decided token by token from live survivals: largest first, each read when due.

Guarantees: non-anticipating (algorithms.md, sections 7 and 7.1). The heap holds one entry per request, its next
survival; the survival of position k + 1, which depends on token k, is read only after position k was admitted, so
nothing unrevealed can be looked at. Equal survivals are taken by position, then by request. What it does not do: search
past a dip, which would let a drafted token decide whether it is verified (the fault `retrospective_schedule`);
`allocate` does, for estimates made of the past alone.

Source: dspark.md, "Scheduler"; arXiv:2607.05147.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq

_Entry = tuple[float, int, int]
"""(-survival, position, request): the heap's order is the rule for ties."""


def climb(survivals: Seq[Iterator[float]], seconds: Callable[[int], float]) -> list[int]:
    """The lengths to which tokens per second rise; the first token that does not raise them ends it.

    survivals[r]: of request r, position by position. seconds(rows): of the whole round with `rows` rows in all.
    """
    if len(survivals) == 1:
        return [_climb_alone(survivals[0], seconds)]
    return _climb_together(survivals, seconds)


def _climb_alone(survivals: Iterator[float], seconds: Callable[[int], float]) -> int:
    """Of one request, whose next survival is always the largest that is left."""
    rows = 1
    tokens: float = rows
    rate = tokens / seconds(1)
    for survival in survivals:
        tokens += survival
        raised = tokens / seconds(rows + 1)
        if not raised > rate:
            break
        rows, rate = rows + 1, raised
    return rows - 1


def _climb_together(survivals: Seq[Iterator[float]], seconds: Callable[[int], float]) -> list[int]:
    rows = len(survivals)
    tokens: float = rows
    rate = tokens / seconds(rows)
    lengths = [0] * rows
    heap = _first_entries(survivals)
    while heap:
        negative, position, request = heapq.heappop(heap)
        more = tokens - negative
        raised = more / seconds(rows + 1)
        if not raised > rate:
            break
        tokens, rows, rate = more, rows + 1, raised
        lengths[request] = position + 1
        _reveal(heap, survivals[request], position + 1, request)
    return lengths


def fill(survivals: Seq[Iterator[float]], budget: int) -> list[int]:
    """The lengths that hold the `budget` largest survivals."""
    lengths = [0] * len(survivals)
    heap = _first_entries(survivals) if budget else []
    while heap and sum(lengths) < budget:
        _, position, request = heapq.heappop(heap)
        lengths[request] = position + 1
        _reveal(heap, survivals[request], position + 1, request)
    return lengths


def _first_entries(survivals: Seq[Iterator[float]]) -> list[_Entry]:
    heap: list[_Entry] = []
    for request, values in enumerate(survivals):
        _reveal(heap, values, 0, request)
    return heap


def _reveal(heap: list[_Entry], survivals: Iterator[float], position: int, request: int) -> None:
    """Read the next survival of a request, whose tokens before `position` are all admitted."""
    survival = next(survivals, None)
    if survival is not None:
        heapq.heappush(heap, (-survival, position, request))
