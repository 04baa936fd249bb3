"""Verifiers: how drafted tokens are accepted and corrected. One file each, one protocol (`base`)."""

from draftproof.verify.base import Drafted, Origin, RowSource, Verdict, Verifier
from draftproof.verify.block import BlockVerifier
from draftproof.verify.coupled import CoupledVerifier
from draftproof.verify.match import MatchVerifier
from draftproof.verify.token import TokenVerifier

__all__ = [
    "BlockVerifier",
    "CoupledVerifier",
    "Drafted",
    "MatchVerifier",
    "Origin",
    "RowSource",
    "TokenVerifier",
    "Verdict",
    "Verifier",
]
