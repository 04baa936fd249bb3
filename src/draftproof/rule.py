r"""The rule of speculative decoding at one position, as the derivation writes it.

What it is for: given the target's distribution p and the distribution q the drafted token was really
drawn from, say with what probability the token is accepted and what replaces it when it is not.

Guarantees: for every p and q that sum to one, ``q * accept_prob + reject_prob * residual == p``; exactly so
on object arrays of ``fractions.Fraction``. What it does not do: draw anything. Randomness is `chance`.

Every function takes two arrays of one shape ``(..., vocab)``: NumPy floats, torch tensors, or NumPy object
arrays of Fractions. Leading axes are a batch. The results have the same kind as the inputs.

Source: the derivation in docs/derivation.md, sections 2-5; Leviathan et al., arXiv:2211.17192; Chen et al.,
arXiv:2302.01318.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from draftproof.errors import InvalidValue

# Arrays of any kind: the three kinds share no common base class, and torch may not be installed.
AnyArray = Any


def accept_prob(p: AnyArray, q: AnyArray) -> AnyArray:
    """alpha(x) = min(1, p(x)/q(x)), the probability that a drafted x is accepted (derivation, section 3).

    Shape (..., vocab). A token of p(x) = 0 is never accepted, also where q(x) = 0; a token that q never
    proposes (q(x) = 0 < p(x)) has alpha 1, which is never used. Raises InvalidValue on unequal shapes.
    """
    _same_shape(p, q)
    below = p < q  # implies q > 0, so the division below is safe and its result is below one
    ratio = p / _where(below, q, 1)
    return _where(below, ratio, _where(p > 0, 1, 0))


def residual(p: AnyArray, q: AnyArray) -> AnyArray:
    """max(0, p - q) / Z, what replaces a rejected token (derivation, section 4).

    Shape (..., vocab). Tokens with p(x) <= q(x) get exactly zero. Where Z = 0 (p equals q, a rejection has
    probability zero) the answer is p itself. Raises InvalidValue on unequal shapes.
    """
    _same_shape(p, q)
    missing = _where(p > q, p - q, 0)
    z = missing.sum(axis=-1, keepdims=True)
    empty = z == 0
    return _where(empty, p, missing / _where(empty, 1, z))


def reject_prob(p: AnyArray, q: AnyArray) -> AnyArray:
    """Z = sum max(0, p - q) = 1 - sum min(p, q) = TV(p, q), shape (...) (derivation, section 5)."""
    _same_shape(p, q)
    return _where(p > q, p - q, 0).sum(axis=-1)


def output_distribution(p: AnyArray, q: AnyArray) -> AnyArray:
    """pi(x) = q(x) alpha(x) + P(reject) residual(x), computed path by path (derivation, sections 2.4 and 5).

    Shape (..., vocab). It equals p; it is computed from `accept_prob`, `residual` and the probability of a
    rejection as the algorithm meets it, 1 - sum q alpha, so that a wrong factor anywhere shows.
    """
    accepted = q * accept_prob(p, q)
    rejected = 1 - accepted.sum(axis=-1, keepdims=True)
    return accepted + rejected * residual(p, q)


def _same_shape(p: AnyArray, q: AnyArray) -> None:
    if p.shape != q.shape:
        raise InvalidValue(f"p has shape {tuple(p.shape)}, q {tuple(q.shape)}", "both are (..., vocab)")
    if len(p.shape) == 0 or p.shape[-1] == 0:
        raise InvalidValue(f"p has shape {tuple(p.shape)}", "the last axis is the vocabulary, at least one token")


def _where(condition: AnyArray, a: AnyArray, b: AnyArray) -> AnyArray:
    if type(condition).__module__.partition(".")[0] == "torch":
        import torch

        return torch.where(condition, a, b)
    return np.where(condition, a, b)
