"""From answers to figures: rates, spreads, ratios within a repeat.

Guarantees: a rate pools the tokens and the seconds of one repeat over all prompts; the spread is over repeats; ratios
of two modes are taken within a repeat, where both met the same machine, and only then summarised. Rates are of
decoding: tokens after the first, over the time after the first; the prompt's pass is reported apart.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from draftproof.bench import predict
from draftproof.bench.answers import Answer
from draftproof.bench.calls import Round
from draftproof.bench.stats import Spread, ratio
from draftproof.schedule.costs import CostCurve

Repeats = Seq[Seq[Answer]]
"""answers[repeat][prompt] of one mode on one workload."""


@dataclass(frozen=True, slots=True)
class ModeResult:
    """One mode on one workload at one temperature. None: does not apply, or is not known of this program.

    tokens_per_second: decoding. answer_tokens_per_second: whole answers, the prompt's pass included.
    first_seconds: to the first token. speedup: over the baseline mode's decoding. efficiency: measured time of the
    bare model calls over the time decoding took (1: the engine costs nothing). outside: share of decoding time that
    was not in model calls. same_text: share of answers that equal the baseline's (temperature 0).
    """

    name: str
    baseline: str
    answers: int
    tokens: int
    tokens_per_second: Spread | None
    answer_tokens_per_second: Spread | None
    first_seconds: Spread | None
    speedup: Spread | None
    efficiency: Spread | None
    outside: Spread | None
    same_text: float | None
    tokens_per_round: float | None
    acceptance_rate: float | None
    acceptance_by_position: tuple[float, ...]
    mean_draft_length: float | None
    predicted_leviathan: float | None
    predicted_curve: float | None
    off_reason: str | None

    @property
    def drafts(self) -> bool:
        """Whether it is more than plain decoding."""
        return self.name != self.baseline


def summarise(
    name: str,
    baseline: str,
    repeats: Repeats,
    plain: Repeats,
    *,
    greedy: bool,
    curve: CostCurve | None,
) -> ModeResult:
    """The figures of a mode; `plain` are the answers of its baseline (its own, if it is one)."""
    answers = [a for repeat in repeats for a in repeat]
    rounds = [r for a in answers for r in a.rounds]
    drafted = sum(r.drafted for r in rounds)
    itself = repeats is plain
    return ModeResult(
        name=name,
        baseline=baseline,
        answers=len(answers),
        tokens=sum(len(a.tokens) for a in answers),
        tokens_per_second=Spread.of(rate(r) for r in repeats),
        answer_tokens_per_second=Spread.of(
            ratio(sum(len(a.tokens) for a in r), sum(a.seconds for a in r)) for r in repeats
        ),
        first_seconds=Spread.of(a.first_seconds for a in answers),
        speedup=None if itself else paired(repeats, plain),
        efficiency=Spread.of(_share(r, lambda a: a.floor_seconds) for r in repeats),
        outside=Spread.of(outside(r) for r in repeats),
        same_text=_same(repeats, plain) if greedy and not itself else None,
        tokens_per_round=ratio(sum(r.emitted for r in rounds), len(rounds)),
        acceptance_rate=ratio(sum(r.accepted for r in rounds), drafted),
        acceptance_by_position=by_position(rounds),
        mean_draft_length=ratio(drafted, len(rounds)),
        predicted_leviathan=_leviathan(rounds, plain) if drafted else None,
        predicted_curve=predict.from_curve(rounds, curve) if drafted and curve is not None else None,
        off_reason=next((a.off_reason for a in reversed(answers) if a.off_reason), None),
    )


def rate(answers: Seq[Answer]) -> float | None:
    """Decoded tokens per second of one repeat."""
    return ratio(sum(a.decoded for a in answers), sum(a.decode_seconds for a in answers))


def paired(repeats: Repeats, other: Repeats) -> Spread | None:
    """Rate over the other's rate, within each repeat."""
    pairs = [(rate(a), rate(b)) for a, b in zip(repeats, other, strict=True)]
    return Spread.of(a / b if a is not None and b else None for a, b in pairs)


def by_position(rounds: Seq[Round]) -> tuple[float, ...]:
    """accepted / drafted at each position of the block."""
    longest = max((r.drafted for r in rounds), default=0)
    return tuple(
        sum(r.accepted > k for r in rounds) / sum(r.drafted > k for r in rounds)  # the longest block has every k
        for k in range(longest)
    )


def _share(answers: Seq[Answer], part: Callable[[Answer], float | None]) -> float | None:
    parts = [part(a) for a in answers]
    known = [p for p in parts if p is not None]
    return ratio(sum(known), sum(a.decode_seconds for a in answers)) if len(known) == len(parts) else None


def outside(answers: Seq[Answer]) -> float | None:
    """Share of decoding time that was not in model calls; None if that is not known of every answer."""
    inside = _share(answers, lambda a: a.model_seconds)
    return None if inside is None else 1 - inside


def _same(repeats: Repeats, plain: Repeats) -> float:
    pairs = [(a, b) for r, p in zip(repeats, plain, strict=True) for a, b in zip(r, p, strict=True)]
    return sum(a.tokens == b.tokens for a, b in pairs) / len(pairs)


def _leviathan(rounds: Seq[Round], plain: Repeats) -> float | None:
    """The closed form, with the cost of a drafted token measured in plain passes."""
    passes = [a for repeat in plain for a in repeat if a.rounds and a.model_seconds is not None]
    seconds = ratio(sum(a.model_seconds or 0.0 for a in passes), sum(len(a.rounds) for a in passes))
    per_token = ratio(sum(r.draft_seconds for r in rounds), sum(r.drafted for r in rounds))
    if seconds is None or per_token is None or seconds == 0:
        return None
    return predict.leviathan(rounds, per_token / seconds)
