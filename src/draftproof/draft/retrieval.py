"""The retrieval drafter: what the text itself, or else the target's earlier answers, say comes next.

What it is for: open-ended text, where `lookup` finds nothing in most rounds; it costs as little. Every drafted token
has the longest context that is known: of the text's own n-grams down to pairs, of a datastore (`datastore`) down to
pairs, of the text's single tokens, of the datastore's.

Guarantees: point masses only; a proposal depends on the request's own tokens and on the datastore, which never changes.
What it does not do: learn from other requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING

from draftproof.draft.base import DraftRequest, Proposal
from draftproof.draft.datastore import ORDERS, Datastore, load
from draftproof.draft.lookup import IndexingDrafter, LookupDrafter, NgramIndex
from draftproof.draft.shipped import folder_of, shipped

if TYPE_CHECKING:
    from draftproof.registry import DraftContext

SINGLE = 1  # a context that says little: the text's own comes after all longer ones


class RetrievalDrafter(IndexingDrafter):
    """longest: most tokens of a context of the text's own. sure: propose only after two or more tokens that the text
    has had before, or the most that the datastore knows; for chains in which another drafter follows.
    """

    name = "retrieval"

    def __init__(self, datastore: Datastore, longest: int = 5, *, sure: bool = False) -> None:
        super().__init__(longest, SINGLE)
        self.datastore = datastore
        known = range(1, longest + ORDERS + 1)
        self._strata = frozenset(
            stratum for stratum in known if not sure or SINGLE < stratum <= longest or stratum == longest + ORDERS
        )
        self._sources = [tuple(_sources(known, longest)) for known in range(max(longest, ORDERS) + 1)]

    def propose(self, requests: Seq[DraftRequest]) -> list[Proposal]:
        proposals = []
        for request in requests:
            found = list(self._continue(request.tokens, self._index(request), request.limit))
            # How the first token was found tells most about the block.
            stratum = found[0][1] if found else 0
            tokens = [token for token, _ in found] if stratum in self._strata else []
            proposals.append(Proposal(tokens, drafter=self.name, stratum=stratum))
        return proposals

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
    return RetrievalDrafter(datastore, sure=context.followed)


def make_auto(context: DraftContext) -> RetrievalDrafter | LookupDrafter:
    """Retrieval where a datastore that fits the target comes with the package, lookup otherwise."""
    if context.target.name in shipped("retrieval"):
        datastore = load(folder_of("retrieval", "", context.target.name))
        if datastore.fits(_fingerprint(context), context.target.vocab_size):  # a folder may have a model's name
            return RetrievalDrafter(datastore)
    return LookupDrafter()


def _fingerprint(context: DraftContext) -> str | None:
    return None if context.tokenizer is None else context.tokenizer.fingerprint()
