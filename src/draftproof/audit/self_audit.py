"""The self-audit: our engine on a real model, by equality and by the sequential test.

What it is for: `draftproof audit self`. Three kinds of evidence, each reported with what it could have seen:
coupled decoding with speculation on and off, greedy decoding on and off, and the sequential test of sampled text for
every verifier and drafter. The reference is a plain pass of the same target over the finished text, so a fault of
rounds, rollback or rows shows; a fault of the model's own weights does not, it is in both.

Guarantees: all sequential tests together alarm falsely with probability at most `level`. What it does not do: prove
the rule; that is `draftproof prove`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from draftproof.audit.equality import Equality, compare_decoding
from draftproof.audit.report import AuditReport, Finding, Verdict, sampled_finding, versions
from draftproof.audit.scoring import feed, run_engine
from draftproof.draft.base import Drafter
from draftproof.draft.none import NoDrafter
from draftproof.engine import Engine
from draftproof.errors import InvalidValue
from draftproof.proof.sequential import SequentialResult, SequentialTest
from draftproof.registry import make_verifier
from draftproof.sampling.params import SamplingParams
from draftproof.schedule.fixed import FixedSchedule
from draftproof.target.base import Target
from draftproof.target.noise import RowNoise, measure_noise
from draftproof.verify.coupled import CoupledVerifier

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfAuditPlan:
    """What to run.

    tokens: per sequential test (one for each verifier, drafter and temperature). answer: tokens of an answer. level:
    error rate of all sequential tests together. seeds: how many answers per prompt the equality checks compare.
    """

    verifiers: Seq[str] = ("token", "block", "match", "coupled")
    temperatures: Seq[float] = (1.0,)
    tokens: int = 2000
    answer: int = 64
    level: float = 1e-3
    draft_length: int = 4
    seeds: int = 1
    first_seed: int = 0

    def __post_init__(self) -> None:
        for name in ("tokens", "answer", "draft_length", "seeds"):
            if getattr(self, name) < 1:
                raise InvalidValue(f"{name}={getattr(self, name)}", "at least 1")
        if not 0 < self.level < 1:
            raise InvalidValue(f"level={self.level}", "an error rate between 0 and 1")
        if not self.verifiers or not self.temperatures or min(self.temperatures) <= 0:
            raise InvalidValue("nothing to sample", "at least one verifier, and temperatures above 0")


@dataclass(frozen=True, slots=True)
class Sampled:
    """One sequential test. tokens_per_round: what speculation gave in these answers."""

    verifier: str
    drafter: str
    temperature: float
    tokens_per_round: float
    result: SequentialResult


@dataclass(frozen=True, slots=True)
class SelfAudit:
    """What was found; `ok` is the exit code's word, the rest is the evidence."""

    target: str
    level: float
    noise: RowNoise
    equalities: Seq[Equality]
    sampled: Seq[Sampled]
    seconds: float

    @property
    def ok(self) -> bool:
        """No difference beyond rounding, and no sequential test reached its level."""
        return not any(e.faults for e in self.equalities) and not any(s.result.rejected for s in self.sampled)

    def to_json(self) -> dict[str, Any]:
        """Plain lists, numbers and strings."""
        return {
            "target": self.target,
            "level": self.level,
            "noise": {**dataclasses.asdict(self.noise), "bound": self.noise.bound, "margin": self.noise.margin},
            "equalities": [{**dataclasses.asdict(e), "faults": e.faults} for e in self.equalities],
            "sampled": [
                {
                    "verifier": s.verifier,
                    "drafter": s.drafter,
                    "temperature": s.temperature,
                    "tokens_per_round": s.tokens_per_round,
                    "result": s.result.to_json(),
                }
                for s in self.sampled
            ],
            "ok": self.ok,
            "seconds": self.seconds,
        }


def audit_self(
    target: Target,
    drafters: dict[str, Callable[[], Drafter]],
    prompts: Seq[Seq[int]],
    plan: SelfAuditPlan,
    *,
    report: Report = lambda line: None,
) -> SelfAudit:
    """Run the plan. prompts: token ids. drafters: fresh ones by name. report: told what is being done."""
    started = perf_counter()
    noise = _noise(target, prompts, plan)
    report(f"row noise: {noise.logit:.2g} logits, {noise.log_p:.2g} in log p")
    equalities = []
    for name, make in drafters.items():
        report(f"equality, drafter {name}")
        equalities.append(_equality("coupled", target, name, make, prompts, plan, noise, temperature=1.0))
        equalities.append(_equality("greedy", target, name, make, prompts, plan, noise, temperature=0.0))
    combinations = [(v, n, t) for v in plan.verifiers for n in drafters for t in plan.temperatures]
    sampled = []
    for verifier, name, temperature in combinations:
        report(f"sampled text: verifier {verifier}, drafter {name}, temperature {temperature:g}")
        engine = _engine(target, drafters[name](), plan, verifier)
        level = plan.level / len(combinations)
        sampled.append(_sampled(engine, verifier, name, prompts, plan, temperature, level, noise))
    return SelfAudit(target.name, plan.level, noise, tuple(equalities), tuple(sampled), perf_counter() - started)


def _engine(target: Target, drafter: Drafter, plan: SelfAuditPlan, verifier: str) -> Engine:
    return Engine(target, drafter=drafter, verifier=make_verifier(verifier), schedule=FixedSchedule(plan.draft_length))


def _noise(target: Target, prompts: Seq[Seq[int]], plan: SelfAuditPlan) -> RowNoise:
    plain = Engine(target, drafter=NoDrafter())
    params = SamplingParams(max_tokens=plan.answer, seed=plan.first_seed)
    measured = []
    for prompt in prompts[:2]:
        answer = plain.generate(list(prompt), params).token_ids
        measured.append(measure_noise(target, [*prompt, *answer], len(prompt)))
    return RowNoise(max(m.logit for m in measured), max(m.log_p for m in measured), sum(m.rows for m in measured))


def _equality(
    kind: str,
    target: Target,
    name: str,
    make: Callable[[], Drafter],
    prompts: Seq[Seq[int]],
    plan: SelfAuditPlan,
    noise: RowNoise,
    *,
    temperature: float,
) -> Equality:
    verifier = CoupledVerifier() if kind == "coupled" else None
    schedule = FixedSchedule(plan.draft_length)
    on = Engine(target, drafter=make(), verifier=verifier, schedule=schedule)
    off = Engine(target, drafter=NoDrafter(), verifier=verifier)
    seeds = range(plan.first_seed, plan.first_seed + (plan.seeds if temperature > 0 else 1))
    asked = [(prompt, seed) for seed in seeds for prompt in prompts]
    params = [SamplingParams(max_tokens=plan.answer, temperature=temperature, seed=seed) for _, seed in asked]
    return compare_decoding(f"{kind}, {name}", on, off, [prompt for prompt, _ in asked], params, noise)


def _sampled(
    engine: Engine,
    verifier: str,
    drafter: str,
    prompts: Seq[Seq[int]],
    plan: SelfAuditPlan,
    temperature: float,
    level: float,
    noise: RowNoise,
) -> Sampled:
    test = SequentialTest(level=level, noise=noise.bound / min(1.0, temperature), eos_ids=engine.target.eos_ids)
    seed = plan.first_seed
    rounds = 0
    while test.n < plan.tokens:
        params = [
            SamplingParams(max_tokens=plan.answer, temperature=temperature, seed=seed + i) for i in range(len(prompts))
        ]
        seed += len(prompts)
        for answer in run_engine(engine, prompts, params):
            feed(test, engine.target, answer, params[0])
            rounds += sum(o != "accepted" for o in answer.origins)  # every round ends in one token of its own
    return Sampled(verifier, drafter, temperature, test.n / max(rounds, 1), test.result())


def self_report(audit: SelfAudit) -> AuditReport:
    """The audit in the words of every report."""
    findings = [_equality_finding(e) for e in audit.equalities]
    statistics = {}
    for s in audit.sampled:
        name = f"sampled text, {s.verifier}, {s.drafter}, T = {s.temperature:g}"
        statistics[name] = s.result
        findings.append(sampled_finding(name, s.result))
    facts = {
        "target": audit.target,
        "level (all sampled tests)": f"{audit.level:g}",
        "row noise": f"{audit.noise.logit:.2g} logits, {audit.noise.log_p:.2g} in log p ({audit.noise.rows} rows)",
        **versions("numpy", "torch", "transformers", "openvino"),
    }
    return AuditReport("this engine", facts, findings, statistics, audit.seconds, audit.to_json())


def _equality_finding(e: Equality) -> Finding:
    name = f"speculation on = off, {e.name}"
    if not e.differences:
        return Finding(name, Verdict.NOTHING, f"{e.tokens} tokens in {e.answers} answers are equal")
    first = max(e.differences, key=lambda d: d.margin)
    detail = (
        f"{len(e.differences)} of {e.answers} answers part; {e.faults} beyond rounding; widest margin "
        f"{first.margin:.3g} (rounding explains {first.allowed:.2g}) at token {first.position} of prompt {first.prompt}"
    )
    return Finding(name, Verdict.WRONG if e.faults else Verdict.NOTHING, detail)
