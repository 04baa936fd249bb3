"""Names to parts: drafters, verifiers and schedules as they are written on the command line.

What it is for: `--draft lookup`, `--draft model:ID`, `--draft lookup+model:ID`, `--verifier block`. A drafter or
verifier in another package is found by entry point, in the groups `draftproof.drafters` and `draftproof.verifiers`.

Guarantees: an unknown name lists the known ones; every drafter is checked against the target's vocabulary before it
is used. What it does not do: load the target.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points
from typing import Any

from draftproof.draft.base import Drafter
from draftproof.draft.chain import ChainDrafter
from draftproof.draft.lookup import LookupDrafter
from draftproof.draft.model import ModelDrafter
from draftproof.draft.none import NoDrafter
from draftproof.draft.suffix import SuffixDrafter
from draftproof.errors import InvalidValue, UnknownName, VocabularyMismatch
from draftproof.schedule.adaptive import AdaptiveSchedule
from draftproof.schedule.base import Schedule
from draftproof.schedule.costs import CostCurve
from draftproof.schedule.curves import load_or_measure, measure_and_keep
from draftproof.schedule.fixed import FixedSchedule
from draftproof.schedule.prefix import PrefixSchedule
from draftproof.target.base import Target, narrow_tokens
from draftproof.text import Tokenizer
from draftproof.verify.base import Verifier
from draftproof.verify.block import BlockVerifier
from draftproof.verify.coupled import CoupledVerifier
from draftproof.verify.match import MatchVerifier
from draftproof.verify.token import TokenVerifier

DRAFTER_GROUP = "draftproof.drafters"
VERIFIER_GROUP = "draftproof.verifiers"
AGAIN_SECONDS = 0.5  # spent on measuring a curve again that real rounds have disproved


@dataclass(frozen=True, slots=True)
class DraftContext:
    """What a drafter may need to be built.

    argument: the text after the colon of its name ("model:ID" -> "ID"), empty without one. target, tokenizer: those
    of the engine. load_model: loads another model as (target, tokenizer), in the engine's own manner. followed: whether
    another drafter is asked where this one proposes nothing, so that it may leave what it knows little about to that.
    loaded: what drafters of several engines have in common, such as weights, by a key of the drafter's own; give each
    context the same one.
    """

    argument: str
    target: Target
    tokenizer: Tokenizer | None
    load_model: Callable[[str], tuple[Target, Tokenizer | None]]
    followed: bool = False
    loaded: dict[object, Any] = field(default_factory=dict)


DrafterFactory = Callable[[DraftContext], Drafter]


def _model(context: DraftContext) -> Drafter:
    if not context.argument:
        raise InvalidValue("draft 'model' without a model", "write model:ID, the draft model's name, folder or file")
    model, tokenizer = context.load_model(context.argument)
    drafter = ModelDrafter(model, name=f"model:{context.argument}")
    drafter.check_vocabulary(context.target)
    if tokenizer and context.tokenizer and tokenizer.fingerprint() != context.tokenizer.fingerprint():
        raise VocabularyMismatch(
            f"draft {context.argument} and target {context.target.name} have different tokenizers",
            "use a draft model with the target's own tokenizer",
        )
    return drafter


def _dspark(context: DraftContext) -> Drafter:
    from draftproof.draft.dspark.factory import make_dspark  # reads checkpoints: only for those who ask for it

    return make_dspark(context)


def _retrieval(context: DraftContext) -> Drafter:
    from draftproof.draft.retrieval import make_retrieval  # reads a datastore: only for those who ask for it

    return make_retrieval(context)


def _auto(context: DraftContext) -> Drafter:
    from draftproof.draft.retrieval import make_auto

    if context.argument:
        raise InvalidValue(f"draft 'auto' was given {context.argument!r}", "leave it out, or name a drafter")
    return make_auto(context)


def _lookup(context: DraftContext) -> Drafter:
    # After a match of one token a second drafter knows better.
    return LookupDrafter(shortest=2) if context.followed else LookupDrafter()


def _without_argument(make: DrafterFactory) -> DrafterFactory:
    def factory(context: DraftContext) -> Drafter:
        if context.argument:
            raise InvalidValue(f"a drafter that takes no argument was given {context.argument!r}", "leave it out")
        return make(context)

    return factory


_DRAFTERS: dict[str, DrafterFactory] = {
    "auto": _auto,
    "none": _without_argument(lambda _: NoDrafter()),
    "lookup": _without_argument(_lookup),
    "suffix": _without_argument(lambda _: SuffixDrafter()),
    "model": _model,
    "dspark": _dspark,
    "retrieval": _retrieval,
}
_VERIFIERS: dict[str, Callable[[], Verifier]] = {
    "token": TokenVerifier,
    "block": BlockVerifier,
    "match": MatchVerifier,
    "coupled": CoupledVerifier,
}


def drafter_names() -> list[str]:
    """Known drafters, those of other packages included."""
    return sorted({*_DRAFTERS, *(e.name for e in entry_points(group=DRAFTER_GROUP))})


def verifier_names() -> list[str]:
    """Known verifiers, those of other packages included."""
    return sorted({*_VERIFIERS, *(e.name for e in entry_points(group=VERIFIER_GROUP))})


def check_drafter(spec: str) -> None:
    """Raise UnknownName if a name in the spec is not known: a cheap check before a target is loaded."""
    for part in spec.split("+"):
        name = part.strip().partition(":")[0]
        if name not in drafter_names():
            raise UnknownName("drafter", name, drafter_names())


def make_drafter(spec: str, context: DraftContext) -> Drafter:
    """The drafter(s) of "name", "name:argument" or several joined by "+", asked in that order: where the first proposes
    nothing the second does, and so on. In front of another, "lookup" and "retrieval" propose what they are sure of.

    Raises UnknownName, InvalidValue, VocabularyMismatch, and whatever loading a draft model raises.
    """
    parts = spec.split("+")
    last = len(parts) - 1
    drafters = [_one_drafter(part.strip(), context, followed=i < last) for i, part in enumerate(parts)]
    return drafters[0] if len(drafters) == 1 else ChainDrafter(drafters)


def make_verifier(name: str) -> Verifier:
    """The verifier of this name; UnknownName lists the known ones."""
    found = _find(name, _VERIFIERS, VERIFIER_GROUP)
    if found is None:
        raise UnknownName("verifier", name, verifier_names())
    verifier: Verifier = found()
    return verifier


def schedule_names() -> list[str]:
    """Known schedules."""
    return ["adaptive", "fixed", "prefix", "prefix-budget"]


def check_schedule(name: str, length: int) -> None:
    """Raise UnknownName or InvalidValue: a cheap check before a target is loaded."""
    if name not in schedule_names():
        raise UnknownName("schedule", name, schedule_names())
    FixedSchedule(length)


def longest_draft(name: str, length: int, target: Target) -> int:
    """The most tokens a schedule drafts: `length`, but unless it is fixed no more than fit a narrow pass of a target
    that has such passes (`narrow_tokens`).
    """
    return length if name == "fixed" else min(length, narrow_tokens(target, length + 1) - 1)


def make_schedule(name: str, length: int, target: Target, runtime: str) -> Schedule:
    """The schedule of this name, with the draft length it is fixed at or limited to (`longest_draft`).

    All but "fixed" measure the target's cost curve, or take the one kept for this model, runtime and machine. runtime:
    whatever else changes the target's speed, such as dtype and threads.
    """
    check_schedule(name, length)
    length = longest_draft(name, length, target)
    if name == "fixed":
        return FixedSchedule(length)
    costs = load_or_measure(target, runtime, length)

    def again() -> CostCurve:
        return measure_and_keep(target, runtime, length, budget=AGAIN_SECONDS)

    if name == "adaptive":
        return AdaptiveSchedule(costs, length, measure_again=again)
    return PrefixSchedule(costs, length, form="causal" if name == "prefix" else "budget", measure_again=again)


def _one_drafter(spec: str, context: DraftContext, *, followed: bool) -> Drafter:
    name, _, argument = spec.partition(":")
    check_drafter(name)
    factory = _find(name, _DRAFTERS, DRAFTER_GROUP)
    drafter: Drafter = factory(replace(context, argument=argument, followed=followed))
    return drafter


def _find(name: str, own: dict[str, Any], group: str) -> Any:
    if name in own:
        return own[name]
    for entry in entry_points(group=group):
        if entry.name == name:
            return entry.load()
    return None
