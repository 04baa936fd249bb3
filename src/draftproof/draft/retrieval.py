"""The retrieval drafter: what the text itself, or else the target's earlier answers, say comes next.

What it is for: open-ended text, where `lookup` finds nothing in most rounds; it costs little. Every drafted token has
the longest context that is known: of the text's own n-grams down to pairs, of a datastore (`datastore`) down to
pairs, of the text's single tokens, of the datastore's. Where the datastore has laws (`laws`) and drawing is accepted
more often (`Sampler.draws`: above temperature 0), a token is drawn: from the law of the longest context, mixed with
what the text itself has after its own.

Guarantees: a drawn token's q is the law it was drawn from, the others are point masses; a proposal depends on the
request's own tokens and on the datastore, which never changes; a block of drawn tokens is as long as was asked for,
whatever they are. What it does not do: learn from other requests.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from draftproof.dist import Dist
from draftproof.draft.base import DraftRequest, Proposal
from draftproof.draft.datastore import Datastore, load
from draftproof.draft.laws import ORDERS, Laws
from draftproof.draft.lookup import IndexingDrafter, LookupDrafter, NgramIndex
from draftproof.draft.shipped import folder_of, shipped
from draftproof.sampling.legal import Number

if TYPE_CHECKING:
    from draftproof.registry import DraftContext

SINGLE = 1  # a context that says little: the text's own comes after all longer ones
OWN = ((0, 50, 90, 95, 95, 95), (0, 20, 60, 85, 90, 95))
"""Percent of a law that the token gets which came after the text's own last so many tokens: where the law is one of at
most one token, and of more. These and the next were best for answers to fresh prompts at T = 1 (docs/retrieval.md)."""
FOUND = (0, 0, 20, 30)
"""Percent that the datastore's follower of so many tokens gets, unless the text has had two or more before."""


class RetrievalDrafter(IndexingDrafter):
    """longest: most tokens of a context of the text's own. sure: propose only after two or more tokens that the text
    has had before, or the most that the datastore knows; for chains in which another drafter follows. vocab_size: of
    the target, where it is larger than the datastore's. exact: laws in Fractions, at temperature 1; for proofs.
    """

    name = "retrieval"

    def __init__(
        self,
        datastore: Datastore,
        longest: int = 5,
        *,
        sure: bool = False,
        vocab_size: int | None = None,
        exact: bool = False,
    ) -> None:
        super().__init__(longest, SINGLE)
        self.datastore = datastore
        self._vocab_size = datastore.vocab_size if vocab_size is None else vocab_size
        self._exact = exact
        known = range(1, longest + ORDERS + 1)
        self._strata = frozenset(
            stratum for stratum in known if not sure or SINGLE < stratum <= longest or stratum == longest + ORDERS
        )
        self._sources = [tuple(_sources(known, longest)) for known in range(max(longest, ORDERS) + 1)]

    def propose(self, requests: Seq[DraftRequest]) -> list[Proposal]:
        laws = self.datastore.laws
        return [
            self._drawn(request, laws) if laws is not None and request.sampler.draws else self._found(request)
            for request in requests
        ]

    def _found(self, request: DraftRequest) -> Proposal:
        """Point masses, as many as are known."""
        found = list(self._continue(request.tokens, self._index(request), request.limit))
        # How the first token was found tells most about the block.
        stratum = found[0][1] if found else 0
        tokens = [token for token, _ in found] if stratum in self._strata else []
        return Proposal(tokens, drafter=self.name, stratum=stratum)

    def _drawn(self, request: DraftRequest, laws: Laws) -> Proposal:
        """Tokens drawn one after another, as many as were asked for."""
        index, stratum = self._index(request), 0
        tail = list(request.tokens[-max(self.longest, ORDERS) - 1 :])  # one more: an ending has a token before it
        tokens: list[int] = []
        qs: list[Dist] = []
        for k in range(request.limit):
            own, size = index.find(tail)
            order, ids, shares = laws.after(tail[-ORDERS:])
            if not k:
                stratum = _stratum(size, order, self.longest)
                if stratum not in self._strata:
                    break
            if size <= SINGLE:
                self._mix_found(ids, shares, tail)
            if size:
                percents = OWN[order > SINGLE]
                _mix(ids, shares, request.tokens[own], percents[min(size, len(percents) - 1)])
            q = self._law(ids, shares, request.sampler.temperature)
            token = request.sampler.draw(q, k)
            tokens.append(token)
            qs.append(q)
            tail.append(token)
        # Drawn tokens are accepted otherwise than found ones: strata of their own.
        return Proposal(tokens, qs, drafter=self.name, stratum=stratum + self.longest + ORDERS)

    def _mix_found(self, ids: list[int], shares: list[int], tail: Seq[int]) -> None:
        """Give a share to what most often came after the last tokens, at temperature 0 too."""
        for size in range(min(ORDERS, len(tail)), SINGLE, -1):
            token = self.datastore.follower(tail[-size:])
            if token is not None:
                _mix(ids, shares, token, FOUND[size])
                return

    def _law(self, ids: Seq[int], shares: Seq[int], temperature: Number) -> Dist:
        size = self._vocab_size
        if self._exact:
            assert temperature == 1
            total = sum(shares)
            fractions = np.array([Fraction(share, total) for share in shares], dtype=object)
            return Dist(fractions, ids=np.array(ids, dtype=np.int64), size=size)
        weights = [float(share) for share in shares]
        if temperature != 1:
            power, most = 1 / float(temperature), max(weights)
            weights = [(share / most) ** power for share in weights]
        return Dist(np.array(weights), ids=np.array(ids, dtype=np.int64), size=size, total=sum(weights))

    def _continue(self, tokens: Seq[int], index: NgramIndex, limit: int) -> Iterator[tuple[int, int]]:
        """Tokens and their strata, one after another, until nothing is known."""
        tail = list(tokens[-max(self.longest, ORDERS) :])
        for _ in range(limit):
            found = self._next(tokens, tail, index)
            if found is None:
                return
            yield found
            tail.append(found[0])

    def _next(self, tokens: Seq[int], tail: Seq[int], index: NgramIndex) -> tuple[int, int] | None:
        """A token and the stratum of its source: 1 to longest for the text's own contexts, above for the store's."""
        for own, size in self._sources[min(len(tail), len(self._sources) - 1)]:
            if own:
                place = index.after(tail[-size:])
                if place is not None:
                    return tokens[place], size
            else:
                token = self.datastore.follower(tail[-size:])
                if token is not None:
                    return token, self.longest + size
        return None


def _stratum(size: int, order: int, longest: int) -> int:
    """As for found tokens, of a text's own context of `size` tokens and the datastore's of `order`, 0 being none."""
    if size > SINGLE:
        return size
    if order > SINGLE:
        return longest + order
    return SINGLE if size else longest + SINGLE


def _mix(ids: list[int], shares: list[int], token: int, percent: int) -> None:
    """Give `percent` of a law to one token, in place and in whole numbers."""
    rest = sum(shares)
    for i, share in enumerate(shares):
        shares[i] = share * (100 - percent)
    at = bisect_left(ids, token)
    if at == len(ids) or ids[at] != token:
        ids.insert(at, token)
        shares.insert(at, 0)
    shares[at] += rest * percent


def _sources(known: int, longest: int) -> Iterator[tuple[bool, int]]:
    """(whether it is the text's own, tokens of the context), best first, for an ending of so many tokens."""
    for size in range(min(longest, known), SINGLE, -1):
        yield True, size
    for size in range(min(ORDERS, known), SINGLE, -1):
        yield False, size
    if known:
        yield True, SINGLE
        yield False, SINGLE


def make_retrieval(context: DraftContext) -> RetrievalDrafter:
    """The drafter of "retrieval" or "retrieval:FOLDER". Raises ModelNotFound, ModelFileError, VocabularyMismatch."""
    datastore = load(folder_of("retrieval", context.argument, context.target.name))
    datastore.check(_fingerprint(context), context.target.vocab_size)
    return RetrievalDrafter(datastore, sure=context.followed, vocab_size=context.target.vocab_size)


def make_auto(context: DraftContext) -> RetrievalDrafter | LookupDrafter:
    """Retrieval where a datastore that fits the target comes with the package, lookup otherwise."""
    if context.target.name in shipped("retrieval"):
        datastore = load(folder_of("retrieval", "", context.target.name))
        if datastore.fits(_fingerprint(context), context.target.vocab_size):  # a folder may have a model's name
            return RetrievalDrafter(datastore, vocab_size=context.target.vocab_size)
    return LookupDrafter()


def _fingerprint(context: DraftContext) -> str | None:
    return None if context.tokenizer is None else context.tokenizer.fingerprint()
