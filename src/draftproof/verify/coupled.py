"""Coupled verification: drafter and target race the same exponentials, so their draws tend to agree.

Guarantees: the emitted token at a position is a function of (seed, prefix) alone: the same text for every
drafter, draft length, batch and schedule, and with speculation off, which makes losslessness above temperature
0 an equality test (Daliri et al., arXiv:2408.07978; algorithms.md, section 9). Accepts at least
(1 - TV)/(1 + TV), at most 1 - TV.
"""

from __future__ import annotations

from draftproof.chance import Purpose, Streams
from draftproof.dist import Dist
from draftproof.verify.base import Drafted, RowSource, Verdict
from draftproof.verify.match import walk


class CoupledVerifier:
    """argmin E/p for the target, argmin E/q for the drafter, with one E per absolute position."""

    name = "coupled"
    any_schedule = True

    def propose(self, q: Dist, streams: Streams, position: int) -> int:
        return streams.at(Purpose.COUPLING, position).race(q)

    def verify(self, drafted: Drafted, rows: RowSource, streams: Streams, start: int) -> Verdict:
        return walk(drafted, rows, start, lambda p, position: streams.at(Purpose.COUPLING, position).race(p))
