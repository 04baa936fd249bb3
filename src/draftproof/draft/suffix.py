"""The suffix drafter: the longest earlier occurrence of the text's own ending, of any length.

What it is for: as `lookup`, but the match may be arbitrarily long and the proposal's length follows the match: a
long match is trusted far, a short one for two tokens. Optionally it remembers earlier answers of the same engine
(agents that repeat themselves across requests).

Guarantees: point masses only; amortised constant time per token (a suffix automaton, built online). With
`remember=0` a request's proposals depend on its own tokens alone. What it does not do: weigh alternatives.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from draftproof.draft.base import DraftRequest, Proposal
from draftproof.draft.lookup import copy_from
from draftproof.errors import InvalidValue

REACH = 2  # tokens proposed per matched token
SEPARATOR = -1  # between remembered answers; no token has this id, so no match crosses it


class SuffixDrafter:
    """remember: how many tokens of ended sequences to keep for later ones; 0 keeps none."""

    name = "suffix"

    def __init__(self, shortest: int = 2, remember: int = 0) -> None:
        if shortest < 1:
            raise InvalidValue(f"shortest match {shortest}", ">= 1")
        if remember < 0:
            raise InvalidValue(f"remember={remember}", ">= 0 tokens")
        self.shortest = shortest
        self.remember = remember
        self._texts: dict[int, _Text] = {}
        self._memory = SuffixAutomaton()

    def open(self, id: int) -> None:
        self._texts[id] = _Text(self._memory)

    def close(self, id: int) -> None:
        text = self._texts.pop(id)
        if self.remember:
            self._keep(text.own.tokens)

    def commit(self, id: int, tokens: Seq[int]) -> None:
        self._texts[id].extend(tokens)

    def propose(self, requests: Seq[DraftRequest]) -> list[Proposal]:
        proposals = []
        for request in requests:
            text = self._texts[request.id]
            text.extend(request.tokens)
            matched, tokens = self._one(text, request.limit)
            # Matches of 2, 3-4, 5-8, 9-16 ... tokens are told apart.
            proposals.append(Proposal(tokens, drafter=self.name, stratum=matched.bit_length()))
        return proposals

    def _one(self, text: _Text, limit: int) -> tuple[int, list[int]]:
        """The length of the best match and what followed it."""
        length, end = text.own.match
        count = min(limit, REACH * length)
        if length >= max(self.shortest, text.length):
            return length, copy_from(text.own.tokens, end + 1, count)
        if text.length >= self.shortest:
            start = text.memory.recent[text.state] + 1
            found = text.memory.tokens[start : start + min(limit, REACH * text.length)]
            return text.length, found[: found.index(SEPARATOR)] if SEPARATOR in found else found
        return 0, []

    def _keep(self, tokens: list[int]) -> None:
        """Add an ended sequence to the memory; when it is over-full the newest half stays."""
        kept = [*self._memory.tokens, *tokens, SEPARATOR]
        if len(kept) > self.remember:
            kept = kept[len(kept) - self.remember // 2 :]
            self._memory = SuffixAutomaton()  # sequences that are open keep matching in the one they began with
            self._memory.extend(kept)
        else:
            self._memory.extend(kept[len(self._memory.tokens) :])


class _Text:
    """One open sequence: the automaton of its own tokens, and where its ending lies in the memory."""

    __slots__ = ("length", "memory", "own", "state")

    def __init__(self, memory: SuffixAutomaton) -> None:
        self.own = SuffixAutomaton()
        self.memory = memory
        self.state = 0
        self.length = 0  # tokens of the ending that are matched in the memory

    def extend(self, tokens: Seq[int]) -> None:
        new = tokens[len(self.own.tokens) :]
        self.own.extend(new)
        for token in new:
            self.state, self.length = self.memory.step(self.state, self.length, token)


class SuffixAutomaton:
    """All substrings of a growing text (Blumer et al. 1985), with the latest place each was seen to end.

    match: (length, end) of the longest ending of the text that also occurs earlier, and where that earlier
    occurrence ends; (0, -1) if none.
    """

    __slots__ = ("_last", "length", "link", "match", "next", "recent", "tokens")

    REFRESH = 32  # suffix links along which the latest end is refreshed; beyond, an older end may be given

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.next: list[dict[int, int]] = [{}]
        self.link = [-1]
        self.length = [0]
        self.recent = [-1]
        self.match = (0, -1)
        self._last = 0

    def extend(self, tokens: Seq[int]) -> None:
        for token in tokens:
            self._append(token)

    def step(self, state: int, length: int, token: int) -> tuple[int, int]:
        """Follow one token from a matched state: the longest ending of (match + token) that occurs here."""
        while state and token not in self.next[state]:
            state = self.link[state]
            length = self.length[state]
        if token in self.next[state]:
            return self.next[state][token], length + 1
        return 0, 0

    def _append(self, token: int) -> None:
        position = len(self.tokens)
        self.tokens.append(token)
        new = self._state(self.length[self._last] + 1, {}, -1, position)
        at = self._last
        while at != -1 and token not in self.next[at]:
            self.next[at][token] = new
            at = self.link[at]
        if at == -1:
            self.link[new] = 0
        else:
            known = self.next[at][token]
            if self.length[known] == self.length[at] + 1:
                self.link[new] = known
            else:
                clone = self._state(self.length[at] + 1, dict(self.next[known]), self.link[known], self.recent[known])
                while at != -1 and self.next[at].get(token) == known:
                    self.next[at][token] = clone
                    at = self.link[at]
                self.link[known] = self.link[new] = clone
        self._last = new
        longest = self.link[new]
        self.match = (self.length[longest], self.recent[longest]) if longest else (0, -1)
        for _ in range(self.REFRESH):
            if longest <= 0:
                break
            self.recent[longest] = position
            longest = self.link[longest]

    def _state(self, length: int, following: dict[int, int], link: int, recent: int) -> int:
        self.length.append(length)
        self.next.append(following)
        self.link.append(link)
        self.recent.append(recent)
        return len(self.length) - 1
