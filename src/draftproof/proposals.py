"""A drafter's proposal, checked and cut to what is worth verifying, with a q for every token.

Guarantees: what breaks the drafter's contract is refused with the drafter's name. A token is cut off only where
nothing computed from it decides (point masses are functions of the history, and a stop ends what follows it, not
itself), so the ratio rules stay exact. What it does not do: decide lengths; that is the schedule.
"""

from __future__ import annotations

from draftproof.dist import Dist
from draftproof.draft.base import Proposal
from draftproof.errors import BadProposal
from draftproof.sequence import Sequence
from draftproof.verify.base import Drafted


def checked(proposal: Proposal, limit: int, vocab_size: int) -> Proposal:
    """The proposal itself; BadProposal if it is too long or leaves the vocabulary."""
    if len(proposal.tokens) > limit:
        raise BadProposal(
            f"drafter {proposal.drafter!r} proposed {len(proposal.tokens)} tokens, asked for {limit}",
            "a proposal is at most request.limit tokens",
        )
    for i, token in enumerate(proposal.tokens):
        if not 0 <= token < vocab_size:
            raise BadProposal(
                f"drafter {proposal.drafter!r} proposed id {token} at position {i}", f"ids are 0..{vocab_size - 1}"
            )
    return proposal


def worth_verifying(proposal: Proposal, s: Sequence) -> Proposal:
    """The proposal without what can never be emitted: past the first stop id, and from a forbidden point mass on."""
    tokens = proposal.tokens
    if not tokens:
        return proposal
    end = len(tokens)
    if not s.stop_ids.isdisjoint(tokens):
        # Stopping after a token because of what it is keeps the ratio rules exact; dropping it would not.
        end = next(i for i, token in enumerate(tokens) if token in s.stop_ids) + 1
    allowed = s.controls.allowed_prefix(tokens[:end])
    if allowed < end and (proposal.q is None or proposal.q[allowed] is None):
        # A forbidden token that was drawn from a q stays: it must be rejected, and the residual drawn.
        end = allowed
    return proposal.cut(end)


def with_q(proposal: Proposal, vocab_size: int) -> Drafted:
    """The tokens with the law each was drawn from; BadProposal if a q cannot be that."""
    laws = []
    for i, token in enumerate(proposal.tokens):
        q = proposal.q[i] if proposal.q is not None else None
        if q is None:
            q = Dist.point(token, vocab_size)
        elif q.size != vocab_size:
            raise BadProposal(
                f"drafter {proposal.drafter!r}: q over {q.size} tokens at position {i}",
                f"the target's vocabulary has {vocab_size}",
            )
        elif not q.prob(token) > 0:
            raise BadProposal(
                f"drafter {proposal.drafter!r}: q gives its own token {token} probability {q.prob(token)} "
                f"at position {i}",
                "q must be the distribution the token was drawn from",
            )
        laws.append(q)
    return Drafted(tuple(proposal.tokens), tuple(laws))
