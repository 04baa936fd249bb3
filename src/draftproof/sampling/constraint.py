"""What a grammar is to the engine: which ids may come next, and when the answer may end.

What it is for: `grammar` implements it with llguidance; `TokenAutomaton` implements it on ids themselves, for exact
proofs on vocabularies of a few tokens and for users who have their own automaton.

Guarantees asked of an implementation: the mask after some tokens is a function of those tokens; EOS is in it
exactly where the grammar may end, and nothing else is where it must; after `rollback(n)` everything is as before the
last n tokens. What it does not do: text.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from collections.abc import Set as AbstractSet
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from draftproof.errors import InvalidValue

Mask = npt.NDArray[np.bool_]


class TokenMatcher(Protocol):
    """A constraint after some tokens."""

    def advance(self, token: int) -> bool:
        """Take one more token; False, with nothing changed, if it is not allowed here. Nothing is after EOS."""
        ...

    def rollback(self, count: int) -> None:
        """Forget the last `count` tokens taken."""
        ...

    def mask(self) -> Mask:
        """The ids allowed next, EOS among them where the grammar may end; shape (vocab,). All False after EOS."""
        ...

    def copy(self) -> TokenMatcher:
        """An independent matcher in the same state."""
        ...


@runtime_checkable
class TokenConstraint(Protocol):
    """A set of id sequences, each ended by one of the EOS ids. Immutable."""

    def start(self, vocab_size: int, eos_ids: frozenset[int]) -> TokenMatcher:
        """A matcher before the first token."""
        ...


class Cursor:
    """One matcher that follows the committed tokens and visits drafted prefixes beyond them.

    Moving to a prefix rolls back to what it shares with the last one visited: a round over k rows takes k steps.
    Masks are kept for as long as their prefix can still come true, so p and q of one row share one.
    """

    __slots__ = ("_ahead", "_eos_ids", "_masks", "_matcher")

    def __init__(self, matcher: TokenMatcher, eos_ids: frozenset[int]) -> None:
        self._matcher = matcher
        self._eos_ids = eos_ids
        self._ahead: list[int] = []  # taken by the matcher beyond what is committed
        self._masks: dict[tuple[int, ...], Mask] = {}

    def __deepcopy__(self, memo: dict[int, object]) -> Cursor:
        twin = Cursor(self._matcher.copy(), self._eos_ids)
        twin._ahead = list(self._ahead)
        twin._masks = dict(self._masks)  # the masks themselves are never written
        return twin

    def reach(self, drafted: tuple[int, ...]) -> int:
        """Move to the longest allowed prefix of `drafted`; its length."""
        shared = 0
        while shared < min(len(self._ahead), len(drafted)) and self._ahead[shared] == drafted[shared]:
            shared += 1
        if shared < len(self._ahead):
            self._matcher.rollback(len(self._ahead) - shared)
            del self._ahead[shared:]
        for token in drafted[shared:]:
            if not self._matcher.advance(token):
                break
            self._ahead.append(token)
        return len(self._ahead)

    def mask(self, drafted: tuple[int, ...]) -> Mask | None:
        """The ids allowed after the committed tokens and `drafted`.

        None if `drafted` is not allowed itself, or has ended the answer: no answer goes on from there.
        """
        if drafted and drafted[-1] in self._eos_ids:
            return None
        if drafted not in self._masks:
            if self.reach(drafted) < len(drafted):
                return None
            self._masks[drafted] = self._matcher.mask()
        return self._masks[drafted]

    def commit(self, token: int) -> None:
        """One token became part of the answer."""
        reached = self.reach((token, *self._ahead[1:]) if self._ahead[:1] == [token] else (token,))
        assert reached, "a token that the grammar forbids has probability 0 and is never committed"
        del self._ahead[0]
        self._masks = {k[1:]: mask for k, mask in self._masks.items() if k[:1] == (token,)}


class TokenAutomaton:
    """A finite automaton over ids, starting in state `start`; EOS is allowed in the accepting states.

    steps: state -> {id: next state}. EOS ids need no step of their own and may have none.
    """

    def __init__(
        self,
        steps: Mapping[Hashable, Mapping[int, Hashable]],
        accepting: AbstractSet[Hashable],
        *,
        start: Hashable = 0,
    ) -> None:
        self.steps = steps
        self.accepting = accepting
        self.initial = start

    def start(self, vocab_size: int, eos_ids: frozenset[int]) -> TokenMatcher:
        for state, step in self.steps.items():
            for token in step:
                if token in eos_ids or not 0 <= token < vocab_size:
                    raise InvalidValue(f"a step with id {token} in state {state!r}", "ids of the vocabulary, EOS not")
        return _AutomatonMatcher(self, vocab_size, eos_ids, [self.initial])


class _AutomatonMatcher:
    """The states visited so far; an EOS that was taken leads to `_END`."""

    def __init__(
        self, automaton: TokenAutomaton, vocab_size: int, eos_ids: frozenset[int], path: list[Hashable]
    ) -> None:
        self._automaton = automaton
        self._vocab_size = vocab_size
        self._eos_ids = eos_ids
        self._path = path

    def advance(self, token: int) -> bool:
        if not self.mask()[token]:
            return False
        self._path.append(_END if token in self._eos_ids else self._automaton.steps[self._path[-1]][token])
        return True

    def rollback(self, count: int) -> None:
        assert 0 <= count < len(self._path)
        del self._path[len(self._path) - count :]

    def mask(self) -> Mask:
        state = self._path[-1]
        mask = np.zeros(self._vocab_size, dtype=np.bool_)
        if state is not _END:
            mask[list(self._automaton.steps.get(state, ()))] = True
            mask[list(self._eos_ids)] = state in self._automaton.accepting
        return mask

    def copy(self) -> TokenMatcher:
        return _AutomatonMatcher(self._automaton, self._vocab_size, self._eos_ids, list(self._path))


_END = object()
