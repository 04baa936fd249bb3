"""Small exact worlds for the engine's tests: targets that follow a line or a table, outspoken drafters."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from fractions import Fraction
from typing import Any

from draftproof.draft.base import Drafter, DraftRequest, Proposal, StatelessDrafter
from draftproof.draft.chain import ChainDrafter
from draftproof.draft.lookup import LookupDrafter
from draftproof.draft.model import ModelDrafter
from draftproof.draft.none import NoDrafter
from draftproof.draft.scripted import ScriptedDrafter
from draftproof.draft.suffix import SuffixDrafter
from draftproof.engine import Engine
from draftproof.result import FinishEvent, TokenEvent
from draftproof.target.base import Feed, Rows
from draftproof.target.table import TableModel, TableTarget

PROMPT = (0, 1)


class Pieces:
    """A tokenizer whose token i is the bytes pieces[i], decoded together as byte-level tokenizers do."""

    has_chat = False

    def __init__(self, pieces: Seq[str | bytes]) -> None:
        self.pieces = [p.encode() if isinstance(p, str) else p for p in pieces]

    def __deepcopy__(self, memo: dict[int, object]) -> Pieces:
        return self

    def encode(self, text: str) -> list[int]:
        return [self.pieces.index(c.encode()) for c in text]

    prompt = encode

    def decode(self, ids: Seq[int], *, skip_special: bool = True) -> str:
        return b"".join(self.pieces[i] for i in ids).decode(errors="replace")

    def chat(self, messages: Seq[dict[str, str]]) -> list[int]:
        raise NotImplementedError

    def fingerprint(self) -> str:
        return "pieces"


def letters(text: str = "abcdefgh") -> Pieces:
    """One token per character."""
    return Pieces(list(text))


def one_hot(token: int, size: int) -> list[Fraction]:
    """Certainty of one token."""
    return [Fraction(int(i == token)) for i in range(size)]


def line(answer: Seq[int], size: int, prompt: int = len(PROMPT), **options: Any) -> TableTarget:
    """A target that continues any prompt of that length with exactly this answer, then with token 0 for ever."""

    def row(prefix: tuple[int, ...]) -> list[Fraction]:
        at = len(prefix) - prompt
        return one_hot(answer[at] if 0 <= at < len(answer) else 0, size)

    return TableTarget(TableModel(row, size), **options)


def weights(prefix: tuple[int, ...], size: int, salt: int) -> list[Fraction]:
    """A fixed, uneven row after any prefix, every token possible."""
    mixed = salt
    for token in prefix:
        mixed = (mixed * 1103515245 + token + 12345) % 2**31
    parts = []
    for _ in range(size):
        mixed = (mixed * 1103515245 + 12345) % 2**31
        parts.append(1 + mixed // 65536 % 7)
    return [Fraction(p, sum(parts)) for p in parts]


def model(size: int = 5, salt: int = 1) -> TableModel:
    """A target whose every row is different."""
    return TableModel(lambda prefix: weights(prefix, size, salt), size, name=f"table{salt}")


def float_model(size: int = 5, salt: int = 1) -> TableModel:
    """`model` in floats, for controls that are irrational."""
    return TableModel(lambda prefix: [float(w) for w in weights(prefix, size, salt)], size, name=f"floats{salt}")


def says(tokens: Seq[int], prompt: int = len(PROMPT)) -> ScriptedDrafter:
    """A drafter that proposes this answer, from wherever the sequence stands."""

    def step(history: tuple[int, ...], drafted: tuple[int, ...]) -> int | None:
        at = len(history) - prompt + len(drafted)
        return tokens[at] if at < len(tokens) else None

    return ScriptedDrafter(step)


def five_drafters(size: int = 5) -> dict[str, Callable[[], Drafter]]:
    """None, lookup, suffix, a model, and lookup before a model."""
    draft_model = float_model(size, salt=2)
    return {
        "none": NoDrafter,
        "lookup": lambda: LookupDrafter(3, 1),
        "suffix": lambda: SuffixDrafter(1),
        "model": lambda: ModelDrafter(TableTarget(draft_model)),
        "lookup+model": lambda: ChainDrafter([LookupDrafter(3, 1), ModelDrafter(TableTarget(draft_model))]),
    }


class Spy(StatelessDrafter):
    """Passes on to another drafter and writes down every call."""

    def __init__(self, inner: Drafter) -> None:
        self.inner = inner
        self.name = inner.name
        self.calls: list[str] = []
        self.limits: list[int] = []
        self.proposals: list[list[int]] = []

    def open(self, id: int) -> None:
        self.calls.append("open")
        self.inner.open(id)

    def close(self, id: int) -> None:
        self.calls.append("close")
        self.inner.close(id)

    def commit(self, id: int, tokens: Seq[int]) -> None:
        self.calls.append("commit")
        self.inner.commit(id, tokens)

    def propose(self, requests: Seq[DraftRequest]) -> list[Proposal]:
        self.calls.append("propose")
        self.limits += [r.limit for r in requests]
        answers = self.inner.propose(requests)
        self.proposals += [list(a.tokens) for a in answers]
        return answers


class WatchedTarget(TableTarget):
    """A table target that notes how many tokens each sequence held at most, and can be made to fail once."""

    def __init__(self, model: TableModel, **options: Any) -> None:
        super().__init__(model, **options)
        self.most = 0
        self.passes = 0
        self.fail_at: int | None = None
        self.failure: BaseException = KeyboardInterrupt()

    @property
    def open_sequences(self) -> int:
        return len(self._caches)

    def score(self, feeds: Seq[Feed]) -> list[Rows]:
        self.passes += 1
        rows = super().score(feeds)
        self.most = max([self.most, *(self.length(f.handle) for f in feeds)])
        if self.passes == self.fail_at:
            raise self.failure
        return rows


def run(engine: Engine) -> list[tuple[TokenEvent | FinishEvent, int]]:
    """All rounds; every event with the number of its round."""
    seen: list[tuple[TokenEvent | FinishEvent, int]] = []
    rounds = 0
    while engine.live:
        seen += [(event, rounds) for event in engine.round()]
        rounds += 1
    return seen


def shown(events: Iterable[TokenEvent | FinishEvent]) -> str:
    """The pieces of text that were given out, together."""
    return "".join(event.text for event in events)
