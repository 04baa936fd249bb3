"""The exact law of several races run on the same exponentials.

What it is for: under coupled verification the drafter and the target (and a later round's drafter again) take
argmin E_x / w_x with one vector E of independent exponentials. What earlier races revealed about E is a cone
{E_j / w_j <= E_k / w_k}; the law of the next race is conditional on it.

Guarantees: probabilities are rational when the weights are, for any number of races and any vocabulary (the cost
grows quickly: 2 to 5 tokens). For two races it equals the formula of algorithms.md, section 9.

How: for independent Exp(1) variables, E / sum(E) is uniform on the simplex, so the probability of a simplicial cone
whose rays are scaled to sum one is |det(rays)|. A cone is cut by a hyperplane by bisecting edges that cross it.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from fractions import Fraction
from typing import Any

from draftproof.dist import Dist, Prob

Ray = tuple[Prob, ...]
Simplex = tuple[Ray, ...]
Region = tuple[Simplex, ...]
"""A union of simplicial cones with disjoint interiors; each is given by as many rays as there are tokens."""


def everywhere(size: int) -> Region:
    """The whole positive orthant: nothing is known about E."""
    one, zero = Fraction(1), Fraction(0)
    return (tuple(tuple(one if i == j else zero for j in range(size)) for i in range(size)),)


def race_outcomes(region: Region, dist: Dist) -> list[tuple[int, Region, Prob]]:
    """Each possible winner of a race with weights `dist`: (token, what is then known, its joint probability)."""
    entrants = [(dist.token_at(i), w) for i, w in enumerate(dist.probs.tolist()) if w > 0]
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


def volume(region: Region) -> Prob:
    """P(E in region)."""
    total: Prob = Fraction(0)
    for simplex in region:
        share: Any = _det(simplex)  # abs() of a union of number types has no common type
        total = total + abs(share)
    return total


def _keep(region: Region, i: int, a: Prob, j: int, b: Prob) -> Region:
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
            cut = _scaled(
                [side[plus] * m - side[minus] * p for p, m in zip(simplex[plus], simplex[minus], strict=True)]
            )
            waiting.extend(
                tuple(cut if k == place else ray for k, ray in enumerate(simplex)) for place in (plus, minus)
            )
    return tuple(kept)


def _scaled(ray: Seq[Prob]) -> Ray:
    total = sum(ray)
    return tuple(r / total for r in ray)


def _det(rows: Simplex) -> Prob:
    """Determinant by elimination, exact on Fractions."""
    matrix: list[list[Any]] = [list(row) for row in rows]  # Any: Fractions or floats, never mixed
    size = len(matrix)
    value: Any = Fraction(1)
    for c in range(size):
        _, pivot = max((abs(matrix[r][c]), r) for r in range(c, size))
        if matrix[pivot][c] == 0:
            return Fraction(0)
        if pivot != c:
            matrix[c], matrix[pivot] = matrix[pivot], matrix[c]
            value = -value
        value = value * matrix[c][c]
        for r in range(c + 1, size):
            factor = matrix[r][c] / matrix[c][c]
            if factor != 0:
                matrix[r] = [x - factor * y for x, y in zip(matrix[r], matrix[c], strict=True)]
    result: Prob = value
    return result
