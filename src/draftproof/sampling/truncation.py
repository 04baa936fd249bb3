"""Temperature, min-p, top-k, top-p: from a row's logits or probabilities to a distribution.

The rule, for floats and Fractions alike. Tokens are ranked by value, the larger first, equals by smaller id. Each
truncation keeps a prefix of that ranking: min-p those with at least min_p times the first one's probability; top-k
exactly k of them (the vocabulary, if k is larger); top-p the shortest prefix whose share of what min-p and top-k left
is at least top_p. A float top_p or min_p means the decimal it was written as, so 0.8 of ten equals is eight of them.
vLLM keeps all that tie with the k-th; here a tie never makes more than k.

Guarantees: the same ids and probabilities as `plain` computes by sorting (tests/sampling); no sort of a whole row of
floats: top-k partitions, top-p sorts only the tokens around its border. Sums that decide top-p are sums of integers,
units of 2**-(62 - bits of the vocabulary's size) of the first token's probability, so no order of summation can move
the border. What it does not do: change logits; see `controls`.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from draftproof.dist import Dist
from draftproof.sampling.legal import Number
from draftproof.sampling.row import Array, Ids, WorkingRow

_BLOCK = 64  # values per block maximum in top_k
_BINS = 4096
_TALL = 600  # exponentials of more may be no floats; with a largest one of 0 to this, what becomes 0 is 0 in any unit
_LIKELY = 2.0**-9  # of the largest: tokens of less are looked at only where those of more are not enough
_EXACT = 2.0**53  # floats below it that are whole have whole sums, in any order
_SORTABLE = 2048  # up to here sorting costs less than another pass


def distribution(row: WorkingRow, *, temperature: Number, min_p: Number = 0, top_k: int = 0, top_p: Number = 1) -> Dist:
    """The distribution of a row of logits, or of probabilities at temperature 1; at least one value is possible.

    Dense if nothing is cut away and no id was dropped before; otherwise on the ids that are left, ascending.
    """
    if row.values.dtype == object:
        return _exact(row, min_p=min_p, top_k=top_k, top_p=top_p)
    values, ids = row.values, row.ids
    if 0 < top_k < len(values):
        values, ids = _keep(values, ids, most(values, top_k))
    elif row.log and min_p > 0:
        values, ids = _keep(values, ids, _worth_weighing(values, float(temperature), float(min_p)))
    top = values.max() if len(values) < len(row.values) else row.top()
    if not row.log:
        weights = values / top
    elif min_p == 0 and top_p == 1 and 0 <= top <= _TALL * temperature:
        # Nobody compares them with the largest: so it need not be subtracted, which would take as long as exp does.
        weights = values.astype(np.float64)
        if temperature != 1:
            weights /= float(temperature)
        np.exp(weights, out=weights)
    else:
        weights = weights_of(values, float(temperature), top)
    if min_p > 0:
        keep = np.flatnonzero(weights >= float(min_p))
        values, ids = _keep(values, ids, keep)
        weights = weights[keep]
    if top_p < 1:
        keep = nucleus(values, weights, top_p, row.size)
        ids = keep if ids is None else ids[keep]
        weights = weights[keep]
    if ids is not None:
        possible = weights > 0
        if not possible.all():
            weights, ids = weights[possible], ids[possible]
    elif not row.log and not row.changed:
        return Dist(row.values)  # a table's own row, not divided by its sum once more
    return Dist.over_sum(weights, ids=ids, size=row.size)


def weights_of(logits: Array, temperature: float, top: Any) -> npt.NDArray[np.float64]:
    """exp((logits - top) / temperature) as float64, top being the largest: probabilities in units of that one."""
    with np.errstate(over="ignore"):  # a difference too large for a float is -inf, and its weight is 0
        weights: npt.NDArray[np.float64] = np.subtract(logits, top, dtype=np.float64)
        if temperature != 1:
            weights /= temperature
        np.exp(weights, out=weights)
    return weights


def most(values: Array, k: int) -> Ids:
    """Positions of the k largest values, ascending; of equal values the first ones. 0 < k < len(values)."""
    n = len(values)
    width = min(_BLOCK, n // (4 * k))
    if width > 1:
        # The k-th largest of the blocks' maxima is no larger than the k-th largest value: what is below it is out.
        blocks = n // width
        maxima = values[: width * blocks].reshape(width, blocks).max(axis=0)
        head: Ids = np.flatnonzero(values >= np.partition(maxima, blocks - k)[blocks - k])
    else:
        head = np.arange(n)
    if len(head) == k:
        return head
    left = values[head]
    least = np.partition(left, len(left) - k)[len(left) - k]
    keep = left > least
    keep[np.flatnonzero(left == least)[: k - np.count_nonzero(keep)]] = True
    head = head[keep]
    return head


def nucleus(values: Array, weights: npt.NDArray[np.float64], top_p: Number, size: int) -> Ids:
    """Positions, ascending, of the shortest prefix of the ranking by `values` with a share of `weights` >= top_p.

    weights: as from `weights_of`, the largest being 1, in the same order as `values`. size: of the vocabulary.
    """
    one = 2.0 ** (62 - size.bit_length())
    units = weights * one
    np.rint(units, out=units)
    total = _whole(units)
    missing = math.ceil(as_written(top_p) * total)
    # Tokens below this have less than total - missing between them: the prefix ends before the first of them.
    least = max(1, (total - missing) // len(units))
    head = np.flatnonzero(units >= max(_LIKELY * one, least))
    if _whole(units[head]) < missing:
        head = np.flatnonzero(units >= least)
    sure = []
    while len(head) > _SORTABLE:
        ranked = values[head].astype(np.float64)
        high = ranked.max()
        with np.errstate(over="ignore"):
            spread = high - ranked.min()
        if spread == 0 or not math.isfinite(spread):
            break
        bins = ((high - ranked) / spread * _BINS).astype(np.int64)
        reached = np.cumsum(np.bincount(bins, weights=units[head]))
        border = min(int(np.searchsorted(reached, missing)), len(reached) - 1)
        # Sums of floats chose the bin; sums of integers say whether it is the right one.
        before = _whole(units[head[bins < border]])
        while before >= missing:
            border -= 1
            before = _whole(units[head[bins < border]])
        while before + _whole(units[head[bins == border]]) < missing:
            border += 1
            before = _whole(units[head[bins < border]])
        sure.append(head[bins < border])
        missing -= before
        head = head[bins == border]
    order = np.argsort(-values[head], kind="stable")
    count = int(np.searchsorted(np.cumsum(units[head[order]].astype(np.int64)), missing)) + 1
    sure.append(head[order[:count]])
    return np.sort(np.concatenate(sure)) if len(sure) > 1 else np.sort(sure[0])


def _whole(units: npt.NDArray[np.float64]) -> int:
    """The sum of whole numbers >= 0, exactly: by floats as long as no sum of some of them can have been rounded."""
    total = float(units.sum())
    return int(total) if total < _EXACT else int(units.astype(np.int64).sum())


def as_written(value: Number) -> Fraction:
    """The exact number a float was most likely written as: its shortest decimal. Fractions and ints are themselves."""
    return Fraction(repr(value)) if isinstance(value, float) else Fraction(value)


def _keep(values: Array, ids: Ids | None, positions: Ids) -> tuple[Array, Ids]:
    return values[positions], positions if ids is None else ids[positions]


def _worth_weighing(values: Array, temperature: float, min_p: float) -> Ids:
    """Positions of everything min-p may keep, and perhaps a few more: spares the exponentials of the rest."""
    reach = temperature * -math.log(min_p)
    return np.flatnonzero(values >= float(values.max()) - reach * 1.001 - 0.001)


def _exact(row: WorkingRow, *, min_p: Number, top_k: int, top_p: Number) -> Dist:
    """The same on a row of Fractions, by sorting: exact tables are small."""
    values: list[Any] = row.values.tolist()
    ranking = sorted((i for i, value in enumerate(values) if value > 0), key=lambda i: (-values[i], i))
    least = as_written(min_p) * values[ranking[0]]
    kept = [i for i in ranking if values[i] >= least]
    if top_k:
        kept = kept[:top_k]
    missing = as_written(top_p) * sum(values[i] for i in kept)
    count = 0
    while missing > 0:
        missing -= values[kept[count]]
        count += 1
    kept = sorted(kept[:count])
    total = sum(values[i] for i in kept)
    if len(kept) == row.size:
        return Dist(row.values if total == 1 else row.values / total)
    probs = np.empty(len(kept), dtype=object)
    probs[:] = [Fraction(values[i]) / total for i in kept]
    return Dist(probs, ids=np.array([row.token_at(i) for i in kept], dtype=np.int64), size=row.size)
