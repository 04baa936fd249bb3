"""The exact law of several races run on the same exponentials.

What it is for: under coupled verification the drafter and the target (and a later round's drafter again) take
argmin E_x / w_x with one vector E of independent exponentials. What earlier races revealed about E is a cone
{E_j / w_j <= E_k / w_k}; the law of the next race is conditional on it.

Guarantees: probabilities are rational when the weights are, for any number of races and any vocabulary (the cost
grows quickly: 2 to 6 tokens). For two races it equals the formula of algorithms.md, section 9.

How: for independent Exp(1) variables, E / sum(E) is uniform on the simplex, so the probability of a simplicial cone
is |det(rays)| once its rays are scaled to sum one. A cone is cut by a hyperplane by bisecting edges that cross it.
Weights become integers (a race does not change when all are scaled), and rays stay integers. A float is a rational too
and is taken at its exact value: cutting in rounded geometry would leave slivers that are cut for ever.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from fractions import Fraction
from typing import Any

from draftproof.dist import Dist

Ray = tuple[int, ...]
Simplex = tuple[Ray, ...]
Region = tuple[Simplex, ...]
"""A union of simplicial cones with disjoint interiors; each is given by as many rays as there are tokens."""


def everywhere(size: int) -> Region:
    """The whole positive orthant: nothing is known about E."""
    return (tuple(tuple(int(i == j) for j in range(size)) for i in range(size)),)


def race_outcomes(region: Region, dist: Dist) -> list[tuple[int, Region, Fraction]]:
    """Each possible winner of a race with weights `dist`: (token, what is then known, its joint probability)."""
    weights = _integers(dist.probs.tolist())
    entrants = [(dist.token_at(i), w) for i, w in enumerate(weights) if w > 0]
    outcomes = []
    for token, weight in entrants:
        won = region
        for other, other_weight in entrants:
            if other != token:
                # E_token / weight <= E_other / other_weight
                won = _keep(won, token, other_weight, other, weight)
        chance = volume(won)
        if chance > 0:
            outcomes.append((token, won, chance))
    return outcomes


def volume(region: Region) -> Fraction:
    """P(E in region)."""
    total = Fraction(0)
    for simplex in region:
        scale = math.prod(sum(ray) for ray in simplex)
        total += Fraction(abs(_det(simplex)), scale)
    return total


def _integers(weights: Seq[Any]) -> list[int]:
    """Weights with the denominators multiplied out."""
    exact = [Fraction(w) for w in weights]
    common = math.lcm(*(w.denominator for w in exact))
    return [int(w * common) for w in exact]


def _keep(region: Region, i: int, a: int, j: int, b: int) -> Region:
    """The part of the region where a * E_i <= b * E_j."""
    kept: list[Simplex] = []
    waiting = list(region)
    while waiting:
        simplex = waiting.pop()
        side = [a * ray[i] - b * ray[j] for ray in simplex]
        if all(s <= 0 for s in side):
            kept.append(simplex)
        elif any(s < 0 for s in side):
            plus = max(range(len(side)), key=lambda k: side[k])
            minus = min(range(len(side)), key=lambda k: side[k])
            cut = _primitive(
                [side[plus] * m - side[minus] * p for p, m in zip(simplex[plus], simplex[minus], strict=True)]
            )
            waiting.extend(
                tuple(cut if k == place else ray for k, ray in enumerate(simplex)) for place in (plus, minus)
            )
    return tuple(kept)


def _primitive(ray: Seq[int]) -> Ray:
    """The same direction in the smallest integers."""
    divisor = math.gcd(*ray)
    return tuple(x // divisor for x in ray)


def _det(rows: Simplex) -> int:
    """Determinant by fraction-free elimination (Bareiss 1968): every division is exact."""
    matrix = [list(row) for row in rows]
    sign, before = 1, 1
    for c in range(len(matrix) - 1):
        _, pivot = max((abs(matrix[r][c]), r) for r in range(c, len(matrix)))
        if matrix[pivot][c] == 0:
            return 0
        if pivot != c:
            matrix[c], matrix[pivot] = matrix[pivot], matrix[c]
            sign = -sign
        for r in range(c + 1, len(matrix)):
            for k in range(c + 1, len(matrix)):
                matrix[r][k] = (matrix[r][k] * matrix[c][c] - matrix[r][c] * matrix[c][k]) // before
        before = matrix[c][c]
    return sign * matrix[-1][-1]
