"""The text of one answer: what of it may be shown, and where a stop string cuts it.

Guarantees: a stop string is found whatever tokens it is spread over, in the token in which its last character
arrives; of several the one that ends first wins, of those that end together the longest. Text that a stop string
could still take back is held, and no more than that; so the pieces that are given out add up to the final text,
however the text is split. What it does not do: bytes to characters (`text.TextStream`), or ids.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq


class AnswerText:
    """Collects certain text and watches for stop strings.

    include: the stop string stays part of the text. before: text that was given out earlier (an answer that is
    continued); stop strings may have begun there, but nothing of it is taken back. stopped: the stop string found.
    """

    __slots__ = ("_all", "_before", "_given", "_include", "_stops", "stopped")

    def __init__(self, stops: Seq[str] = (), *, include: bool = False, before: str = "") -> None:
        self._stops = tuple(stops)
        self._include = include
        self._all = before
        self._before = self._given = len(before)
        self.stopped: str | None = None

    @property
    def text(self) -> str:
        """The text so far, held parts included, cut at the stop string if one was found."""
        return self._all[self._before :]

    def __len__(self) -> int:
        return len(self._all) - self._before

    def push(self, piece: str, *, watch: bool = True) -> str:
        """Take in certain text; returns what may be shown now. watch=False: no stop string may end in this piece."""
        assert self.stopped is None
        if not self._stops:
            self._all += piece
            return self._give(len(self._all))
        known = len(self._all)
        self._all += piece
        if watch and piece and self._stop_after(known):
            return self._give(len(self._all))
        return self._give(len(self._all) - (0 if self._include else self._held()))

    def flush(self) -> str:
        """What was held: the answer is over and nothing can take it back."""
        return self._give(len(self._all))

    def _stop_after(self, known: int) -> bool:
        """Cut at the first stop string that ends after character `known`."""
        found = []
        for stop in self._stops:
            start = self._all.find(stop, max(0, known - len(stop) + 1))
            if start >= 0:
                found.append((start + len(stop), start, stop))
        if not found:
            return False
        end, start, self.stopped = min(found)
        self._all = self._all[: end if self._include else start]
        return True

    def _held(self) -> int:
        """Length of the longest ending of the text that is the beginning of a stop string."""
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(self._all)), longest, -1):
                if self._all.endswith(stop[:length]):
                    longest = length
                    break
        return longest

    def _give(self, end: int) -> str:
        piece = self._all[self._given : end]
        self._given = max(self._given, end)
        return piece
