"""The planted faults: wrong rules of the field, run through the production engine and caught by the exact proof.

What it is for: `draftproof prove --faults`, and every other check of ours or yours that wants to show it can fail.
Guarantees: each fault is enumerated exactly; where planted_faults.jsonl gives a first-token distribution, the
enumerated one equals it. A fault that the first token cannot show is caught by the joint law of the answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from importlib.resources import files
from typing import Any

from draftproof.dist import Dist, Prob
from draftproof.draft.base import Drafter
from draftproof.draft.scripted import ScriptedDrafter
from draftproof.engine import Engine, Settled
from draftproof.errors import StreamReuse
from draftproof.proof import mutants
from draftproof.proof.engine_law import engine_law, target_law
from draftproof.proof.toys import PROMPT, toy_model, toy_row
from draftproof.sampling.params import SamplingParams
from draftproof.schedule.base import Schedule
from draftproof.schedule.fixed import FixedSchedule
from draftproof.target.base import Target
from draftproof.target.table import TableModel, TableTarget
from draftproof.verify.base import Verifier
from draftproof.verify.token import TokenVerifier


@dataclass(frozen=True, slots=True)
class Caught:
    """What the proof saw of one fault.

    first_token / right_first_token: the enumerated and the right law of the first token. joint_error: total variation
    between the enumerated and the right law of the whole answer. reuse: the message, if a stream was drawn from twice.
    figure: the first-token law planted_faults.jsonl gives, if it gives one.
    """

    name: str
    wrong_rule: str
    first_token: tuple[Prob, ...]
    right_first_token: tuple[Prob, ...]
    first_token_error: float
    joint_error: float
    figure: tuple[float, ...] | None
    reuse: str | None = None

    @property
    def caught(self) -> bool:
        """Whether the joint law differs or a stream was reused."""
        return self.joint_error > 0 or self.reuse is not None

    @property
    def equals_figure(self) -> bool:
        """Whether the first-token law equals the file's figure to its ten decimals (true where there is none)."""
        if self.figure is None:
            return True
        return all(abs(float(a) - b) < 1e-9 for a, b in zip(self.first_token, self.figure, strict=True))


@dataclass(frozen=True, slots=True)
class Fault:
    """One wrong rule: how to build an engine that has it, and the model and request it is shown on."""

    name: str
    wrong_rule: str
    build: Callable[[], Engine]
    model: TableModel
    params: SamplingParams
    prompt: tuple[int, ...] = PROMPT
    stop_ids: frozenset[int] = frozenset()
    figure: tuple[float, ...] | None = None

    def run(self) -> Caught:
        """Enumerate the faulty engine and compare with the right law."""
        right = target_law(self.model, self.prompt, self.params, self.stop_ids)
        reuse = None
        try:
            wrong = {k[0]: v for k, v in engine_law(self.build, [(self.prompt, self.params)]).items()}
        except StreamReuse as error:
            wrong, reuse = right, str(error)
        size = self.model.vocab_size
        first, right_first = first_token(wrong, size), first_token(right, size)
        answers = sorted(wrong.keys() | right.keys())
        joint = mutants.total_variation([wrong.get(a, 0) for a in answers], [right.get(a, 0) for a in answers])
        return Caught(
            self.name,
            self.wrong_rule,
            first,
            right_first,
            mutants.total_variation(first, right_first),
            joint,
            self.figure,
            reuse,
        )


def first_token(law: dict[tuple[int, ...], Prob], size: int) -> tuple[Prob, ...]:
    """The law of the first token, from that of the answer."""
    first: list[Any] = [Fraction(0)] * size
    for answer, prob in law.items():
        first[answer[0]] += prob
    return tuple(first)


def planted() -> dict[str, dict[str, Any]]:
    """planted_faults.jsonl, by name: p, q, the wrong rule and the figures."""
    lines = files("draftproof.proof").joinpath("planted_faults.jsonl").read_text(encoding="utf-8").splitlines()
    return {fault["name"]: fault for fault in map(json.loads, lines)}


def exact(values: Seq[float]) -> list[Fraction]:
    """Decimals of the file as the Fractions they were written as."""
    return [Fraction(str(v)) for v in values]


def _one_position(name: str, **parts: Any) -> Fault:
    """A fault of the file: constant p and q, one draft length, the first token looked at."""
    case = planted()[name]
    p, q = exact(case["p"]), exact(case["q"])
    model = TableModel({(): p}, len(p), name="p")
    law = Dist.checked(q)
    drafter: Callable[[Callable[..., Dist]], Drafter] = parts.pop("drafter", ScriptedDrafter)
    schedule: Callable[[], Schedule] = parts.pop("schedule", partial(FixedSchedule, 1))
    verifier: Callable[[], Verifier] = parts.pop("verifier", TokenVerifier)
    figure = case["wrong_first_token"]

    def build() -> Engine:
        return Engine(
            TableTarget(model),
            drafter=drafter(lambda history, drafted: law),
            verifier=verifier(),
            schedule=schedule(),
        )

    # Budget for as many tokens as may be drafted and one more; only the first is compared with the file.
    params = SamplingParams(max_tokens=parts.pop("max_tokens", 2))
    return Fault(name, case["wrong_rule"], build, model, params, figure=tuple(figure) if figure is not None else None)


def _joint(
    name: str,
    wrong_rule: str,
    *,
    verifier: Callable[[], Verifier] = TokenVerifier,
    target: Callable[..., Target] = TableTarget,
    drafter: Callable[[Callable[..., Any]], Drafter] = ScriptedDrafter,
    engine: Callable[..., Engine] = Engine,
    vocab_size: int = 3,
) -> Fault:
    """A fault shown on the toy model: sampled proposals of up to three tokens, answers of four, EOS anywhere."""
    model, eos = toy_model(vocab_size), frozenset([vocab_size - 1])

    def script(history: tuple[int, ...], drafted: tuple[int, ...]) -> Dist:
        return Dist.checked(toy_row((*history, *drafted), vocab_size, "q"))

    def build() -> Engine:
        return engine(
            target(model, eos_ids=tuple(eos)),
            drafter=drafter(script),
            verifier=verifier(),
            schedule=FixedSchedule(3),
        )

    return Fault(name, wrong_rule, build, model, SamplingParams(max_tokens=4), stop_ids=eos)


class PastEosEngine(Engine):
    """Looks for a stop only after the whole round is committed."""

    def _settle(self, s: Any, *rest: Any) -> Settled:
        stops, s.stop_ids = s.stop_ids, frozenset()
        settled = super()._settle(s, *rest)
        s.stop_ids = stops
        if stops & set(s.tokens[settled.start :]):
            s.finish_reason = "stop"
        return settled


def retrospective() -> Fault:
    """The two-token example of the DSpark paper's appendix, on the engine (dspark.md, algorithms.md section 7.1)."""
    # c1 = .8; c2 = .9 after token 0, 0 after token 1.
    confident = partial(mutants.ConfidentDrafter, confidence={(): 0.8, (0,): 0.9, (1,): 0.0})
    schedule = partial(mutants.RetrospectiveSchedule, 2, (1.0, 0.5, 0.45))
    return _one_position("retrospective_schedule", drafter=confident, schedule=schedule, max_tokens=3)


def faults() -> list[Fault]:
    """Every named fault: those of planted_faults.jsonl first, then those only the joint law can show."""
    point_zero = lambda script: ScriptedDrafter(lambda history, drafted: 0)  # noqa: E731
    return [
        _one_position("argmax_proposal_soft_q", drafter=mutants.ArgmaxWithSoftQ),
        _one_position("truncated_draw_raw_q", drafter=mutants.TruncatedWithRawQ),
        _one_position("residual_minus_drafted_only", verifier=mutants.ResidualMinusDraftedOnly),
        _one_position("replacement_from_p", verifier=mutants.ReplacementFromP),
        _one_position("softmaxed_residual", verifier=mutants.SoftmaxedResidual),
        _one_position("match_then_redraw", verifier=mutants.MatchThenRedraw, drafter=point_zero),
        _one_position("drop_seen_token", schedule=partial(mutants.DropSeenToken, 1)),
        _one_position("siblings_stale_residual", verifier=mutants.SiblingsStaleResidual),
        retrospective(),
        _joint("inverted_ratio", "accepts with min(1, q/p)", verifier=mutants.InvertedRatio),
        _joint("residual_reversed", "residual from max(0, q - p)", verifier=mutants.ResidualReversed),
        _joint("accept_if_likelier", "accepts iff p >= q", verifier=mutants.AcceptIfLikelier),
        _joint("accept_if_typical", "accepts iff p is above a threshold", verifier=mutants.AcceptIfTypical),
        _joint("colder_draft", "draft drawn colder than the q it reports", drafter=mutants.ColderThanReported),
        _joint(
            "late_end_of_block", "a block ends before the token it was ended for", drafter=mutants.DropsBeforeTheUnsure
        ),
        _joint("bonus_wrong_row", "bonus from the row of the last draft", verifier=mutants.BonusFromPreviousRow),
        _joint("bonus_wrong_temperature", "bonus drawn at half the temperature", verifier=mutants.BonusTooCold),
        _joint("stale_cache", "rejected tokens stay in the target's cache", target=mutants.StaleCacheTarget),
        _joint("shifted_rows", "rows of a pass shifted by one", target=mutants.ShiftedRowsTarget),
        _joint("past_eos", "tokens committed past EOS", engine=PastEosEngine),
        _joint("shared_stream", "residual drawn from the proposal's stream", verifier=mutants.SharedStream),
    ]
