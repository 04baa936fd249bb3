"""The HTTP audit: any OpenAI-compatible server, by its sampled text and by its controls.

What it is for: `draftproof audit http`. Samples at temperature 1 without any cut; scores them with the reference
model; asks a control server (the same one with speculation off) the same questions. If both leave the reference, that
is precision or settings and not speculation; if only the audited one does, or the two leave each other, it is.

Guarantees: the sequential and the two-sample tests together alarm falsely with probability at most `level`. What
cannot be decided is "cannot tell" with the reason; what was measured until then is kept. What it does not do: start
servers.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from itertools import islice
from time import perf_counter
from typing import Any

from draftproof.audit.client import Client, Completion, Failed, Json, LimitReached, Refused, ServerTrouble
from draftproof.audit.matrix import Matrix
from draftproof.audit.reference import Reference
from draftproof.audit.report import AuditReport, Finding, Statistic, Verdict, pair_finding, sampled_finding, versions
from draftproof.errors import InvalidValue
from draftproof.proof.sequential import SequentialResult, SequentialTest
from draftproof.proof.twosample import TwoSampleResult, TwoSampleTest

# No control that cuts or bends p. Servers have defaults of their own (top_k 40, min_p 0.05, a penalty): each is named.
PLAIN: Json = {"temperature": 1.0, "top_p": 1.0}
NEUTRAL: Json = {
    **PLAIN,
    "top_k": 0,
    "min_p": 0.0,
    "repeat_penalty": 1.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
MOST_LOST = 0.02  # share of answers that may be missing before the rest says nothing about all of them
BATCH = 16  # answers asked for before the tests are looked at
LOGPROB = "mean log-probability the server reports"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpPlan:
    """What to ask. answers: of each server; 0 for the control matrix alone. tokens: of an answer. noise: as in
    `SequentialTest`, for a server whose precision is not the reference's. matrix: also run the control matrix."""

    prompts: Seq[str]
    answers: int = 64
    tokens: int = 64
    level: float = 1e-3
    noise: float = 0.05
    first_seed: int = 0
    matrix: bool = True

    def __post_init__(self) -> None:
        if not self.prompts or self.answers < 0 or self.tokens < 1 or not (self.answers or self.matrix):
            raise InvalidValue("nothing to ask", "at least one prompt, one token, and one answer or the control matrix")
        if not 0 < self.level < 1:
            raise InvalidValue(f"level={self.level}", "an error rate between 0 and 1")


@dataclass
class _Side:
    """One server and what came from it."""

    client: Client
    settings: Json
    test: SequentialTest
    read: int = 0
    lost: int = 0
    trouble: list[str] = field(default_factory=list)


def audit_http(
    client: Client,
    plan: HttpPlan,
    *,
    reference: Reference | None = None,
    control: Client | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> AuditReport:
    """Run the plan. Raises InvalidValue without reference and control, if there is no matrix to run either."""
    if reference is None and control is None and not plan.matrix:
        raise InvalidValue("neither reference nor control", "give one of them, or run the control matrix")
    started = perf_counter()
    tests = (2 if control else 1) * (reference is not None) + (control is not None)
    level = plan.level / max(tests, 1)
    findings: list[Finding] = []
    statistics: dict[str, Statistic] = {}
    pairs = TwoSampleTest(level=level, features=[LOGPROB])
    try:
        side = _side(client, plan, reference, level)
        other = None if control is None else _side(control, plan, reference, level)
    except ServerTrouble as trouble:
        findings.append(Finding("the server answers", Verdict.UNKNOWN, str(trouble)))
    else:
        report(f"sampling with {', '.join(side.settings)}")
        if plan.answers and (reference is not None or other is not None):
            _sample(side, other, plan, reference, pairs)
            findings += _sampled(side, other, reference, pairs.result(), statistics)
        if plan.matrix:
            report("control matrix")
            findings += Matrix(client, side.settings, plan.prompts, reference).run()
    facts = {
        "model": client.options.model,
        "api": client.options.api + (", streamed" if client.options.stream else ""),
        "reference": "none" if reference is None else reference.target.name,
        "control": "none" if control is None else "given",
        "level (all sampled tests)": f"{plan.level:g}",
        "noise allowed": f"{plan.noise:g}",
        "requests": str(client.asked + (control.asked if control else 0)),
        **versions("numpy", "httpx2"),
    }
    subject = f"{client.options.model} at {client.options.base_url}"
    return AuditReport(subject, facts, findings, statistics, perf_counter() - started)


def shapes(api: str) -> list[Json]:
    """Request fields to try, richest first: a server may refuse fields it does not know."""
    logprobs: Json = {"logprobs": True, "top_logprobs": 0} if api == "chat" else {"logprobs": 1}
    return [
        {**NEUTRAL, **logprobs, "return_token_ids": True},
        {**NEUTRAL, **logprobs},
        {**PLAIN, **logprobs},
        NEUTRAL,
        PLAIN,
    ]


def _side(client: Client, plan: HttpPlan, reference: Reference | None, level: float) -> _Side:
    """The richest request the server takes. Raises ServerTrouble if it takes none."""
    ends = frozenset[int]() if reference is None else reference.target.eos_ids
    tried = shapes(client.options.api)
    for settings in tried:
        try:
            client.complete(plan.prompts[0], **settings, max_tokens=2, seed=plan.first_seed)
        except (Refused, Failed):  # some servers fail at a field they cannot serve
            if settings is tried[-1]:
                raise
        else:
            return _Side(client, settings, SequentialTest(level=level, noise=plan.noise, eos_ids=ends))
    raise AssertionError("the last shape returns or raises")


def _sample(
    side: _Side, other: _Side | None, plan: HttpPlan, reference: Reference | None, pairs: TwoSampleTest
) -> None:
    asked = iter((plan.prompts[i % len(plan.prompts)], plan.first_seed + i) for i in range(plan.answers))
    while batch := list(islice(asked, BATCH)):
        answers = _ask(side, batch, plan)
        # Other seeds: a server that couples its noise to the seed would answer both sides alike.
        others = _ask(other, [(p, s + plan.answers) for p, s in batch], plan) if other else [None] * len(batch)
        for (prompt, _), a, b in zip(batch, answers, others, strict=True):
            if a is not None and b is not None:
                pairs.update(_units(a), _units(b), prompt=prompt, features=(_features(a), _features(b)))
            for s, answer in ((side, a), (other, b)):
                if s is not None and answer is not None:
                    _score(s, prompt, answer, reference)


def _ask(side: _Side, batch: Seq[tuple[str, int]], plan: HttpPlan) -> list[Completion | None]:
    requests = [(p, {**side.settings, "max_tokens": plan.tokens, "seed": seed}) for p, seed in batch]
    answers: list[Completion | None] = []
    for answer in side.client.complete_all(requests):
        if isinstance(answer, ServerTrouble):
            side.lost += not isinstance(answer, LimitReached)  # what was never asked for selects nothing
            side.trouble.append(str(answer))
            answers.append(None)
        else:
            answers.append(answer)
    return answers


def _score(side: _Side, prompt: str, answer: Completion, reference: Reference | None) -> None:
    if reference is None:
        side.read += 1
        return
    try:
        reference.check_prompt(prompt, side.client.options.api, answer)
        readings = reference.read(answer)
    except ServerTrouble as trouble:
        side.lost += 1
        side.trouble.append(str(trouble))
        return
    side.read += 1
    reference.feed(side.test, reference.prompt_ids(prompt, side.client.options.api), readings)


def _units(answer: Completion) -> Seq[Any]:
    return answer.ids or answer.tokens or answer.text


def _features(answer: Completion) -> dict[str, float]:
    values = answer.logprobs
    return {LOGPROB: sum(values) / len(values)} if values else {}


# -- verdicts -----------------------------------------------------------------------------------------------------


def _sampled(
    side: _Side,
    other: _Side | None,
    reference: Reference | None,
    pairs: TwoSampleResult,
    statistics: dict[str, Statistic],
) -> list[Finding]:
    findings: list[Finding] = []
    if reference is not None:
        findings.append(_against_reference("sampled text against the reference", side, statistics))
        if other is not None:
            findings.append(_against_reference("the control's text against the reference", other, statistics))
            findings[0] = _in_the_light_of(findings[0], side.test.result(), other.test.result())
            if findings[1].verdict is Verdict.WRONG:
                findings[1] = Finding(findings[1].check, Verdict.UNKNOWN, f"{findings[1].detail}; no speculation here")
    if other is not None:
        if pairs.pairs:
            statistics["against the control"] = pairs
            findings.append(_lossy("sampled text against the control", pair_finding("", pairs), side, other))
        else:
            findings.append(Finding("sampled text against the control", Verdict.UNKNOWN, _why(side, other)))
    return findings


def _against_reference(check: str, side: _Side, statistics: dict[str, Statistic]) -> Finding:
    result = side.test.result()
    if not result.n:
        return Finding(check, Verdict.UNKNOWN, _why(side))
    statistics[check] = result
    return _lossy(check, sampled_finding(check, result), side)


def _lossy(check: str, finding: Finding, *sides: _Side) -> Finding:
    """Answers that never came may be the long or the odd ones: with many missing, the rest decides nothing."""
    lost = max(s.lost / max(s.lost + s.read, 1) for s in sides)
    if lost > MOST_LOST:
        detail = f"{lost:.0%} of the answers are missing: {_why(*sides)}; of the rest: {finding.detail}"
        return Finding(check, Verdict.UNKNOWN, detail)
    return Finding(check, finding.verdict, finding.detail)


def _in_the_light_of(finding: Finding, result: SequentialResult, control: SequentialResult) -> Finding:
    if finding.verdict is Verdict.WRONG and control.rejected:
        detail = f"{finding.detail}; but so does the control (log10 e {control.log10_e:.1f}): precision or settings"
        return Finding(finding.check, Verdict.UNKNOWN, detail)
    return finding


def _why(*sides: _Side) -> str:
    reasons = [reason for s in sides for reason in s.trouble]
    return max(set(reasons), key=reasons.count) if reasons else "no answer was sampled"
