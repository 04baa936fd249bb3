"""Toy models and drafters on which every outcome can be enumerated.

Guarantees: rows are Fractions, depend on the whole prefix, contain zeros and equalities between p and q, and are the
same on every machine. The last id of every vocabulary is EOS and can come at any place.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace
from fractions import Fraction

from draftproof.dist import Dist
from draftproof.draft.base import Drafter
from draftproof.draft.chain import ChainDrafter
from draftproof.draft.datastore import Datastore, count
from draftproof.draft.laws import count_laws
from draftproof.draft.lookup import LookupDrafter
from draftproof.draft.model import ModelDrafter
from draftproof.draft.none import NoDrafter
from draftproof.draft.retrieval import RetrievalDrafter
from draftproof.draft.scripted import ScriptedDrafter, Step
from draftproof.draft.suffix import SuffixDrafter
from draftproof.target.table import TableModel, TableTarget

PROMPT = (0, 1, 0)  # repeats itself, so that lookup and suffix have something to find
BIGGEST_WEIGHT = 3


def toy_row(prefix: Seq[int], vocab_size: int, salt: str) -> list[Fraction]:
    """Weights 0..3 drawn from a generator seeded by the prefix; a row shared by p and q for some prefixes."""
    # Every fourth prefix gives p and q the same row: Z = 0, every draft accepted.
    name = f"{list(prefix)} {vocab_size}" if sum(prefix) % 4 == 3 else f"{salt} {list(prefix)} {vocab_size}"
    source = random.Random(name)
    weights = [source.randint(0, BIGGEST_WEIGHT) for _ in range(vocab_size)]
    weights[-1] = max(weights[-1], 1)  # EOS is possible everywhere
    return [Fraction(w, sum(weights)) for w in weights]


def toy_model(vocab_size: int, salt: str = "p") -> TableModel:
    """A prefix-dependent table over the whole toy vocabulary."""
    return TableModel(lambda prefix: toy_row(prefix, vocab_size, salt), vocab_size, name=f"toy-{salt}")


def toy_target(vocab_size: int, salt: str = "p") -> TableTarget:
    """The toy model as a target whose last id is EOS."""
    return TableTarget(toy_model(vocab_size, salt), eos_ids=(vocab_size - 1,))


def mixed_script(vocab_size: int) -> Callable[[tuple[int, ...], tuple[int, ...]], Step]:
    """By round: a point mass, a sampled token, nothing; within a block: both kinds side by side."""

    def script(history: tuple[int, ...], drafted: tuple[int, ...]) -> Step:
        kind = (len(history) + 2 * len(drafted)) % 3
        if kind == 0:
            return (len(history) + len(drafted)) % vocab_size
        if kind == 1:
            return Dist.checked(toy_row((*history, *drafted), vocab_size, "mixed"))
        return None if not drafted else 0

    return script


def toy_datastore(vocab_size: int, *, laws: bool = False) -> Datastore:
    """What follows what in a text that goes through all ids, EOS among them; with laws of that text and another."""
    text = [i * i % vocab_size for i in range(3 * vocab_size)]
    store = count([(text, 1)], vocab_size, "toy", least=1)
    if not laws:
        return store
    other = [i * (i + 1) // 2 % vocab_size for i in range(4 * vocab_size)]
    return replace(store, laws=count_laws([(text, 1), (other, 1)], vocab_size, least=2, most=3))


DRAFTERS: dict[str, Callable[[int], Drafter]] = {
    "none": lambda vocab_size: NoDrafter(),
    "lookup": lambda vocab_size: LookupDrafter(longest=3, shortest=1),
    "suffix": lambda vocab_size: SuffixDrafter(shortest=1),
    "retrieval": lambda vocab_size: RetrievalDrafter(toy_datastore(vocab_size), longest=2),
    "retrieval, drawn": lambda vocab_size: RetrievalDrafter(
        toy_datastore(vocab_size, laws=True), longest=2, exact=True
    ),
    "model": lambda vocab_size: ModelDrafter(toy_target(vocab_size, "q")),
    "mixed": lambda vocab_size: ScriptedDrafter(mixed_script(vocab_size), name="mixed"),
    "lookup+model": lambda vocab_size: ChainDrafter(
        [LookupDrafter(longest=3, shortest=2), ModelDrafter(toy_target(vocab_size, "q"))]
    ),
    "retrieval+model": lambda vocab_size: ChainDrafter(
        [RetrievalDrafter(toy_datastore(vocab_size), longest=2, sure=True), ModelDrafter(toy_target(vocab_size, "q"))]
    ),
}
"""Every kind of drafter, on a toy vocabulary of the given size."""
