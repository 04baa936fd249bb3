"""Other engines on the same weights: their sampled text against the plain pass of a reference target.

What it is for: `draftproof audit transformers`, and any engine that can be called from Python: whatever has a name
and turns (prompt ids, seed, length) into token ids is a `Peer`. Samples are asked for at temperature 1 without any
cut, so p is the model's own row.

Guarantees: a peer is judged by its tokens alone; nothing is taken from its inside. All sequential tests of one audit
together alarm falsely with probability at most `level`. What it does not do: explain a bias beyond the bet that grew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from itertools import cycle
from time import perf_counter
from typing import Protocol

from draftproof.audit.report import AuditReport, Finding, Statistic, Verdict, sampled_finding, versions
from draftproof.audit.scoring import Answer, feed
from draftproof.errors import InvalidValue
from draftproof.proof.sequential import SequentialResult, SequentialTest
from draftproof.sampling.params import SamplingParams
from draftproof.target.base import Target
from draftproof.target.noise import measure_noise


class Peer(Protocol):
    """An engine to be audited."""

    @property
    def name(self) -> str:
        """What to call it in the report."""
        ...

    def generate(self, prompt: Seq[int], seed: int, max_tokens: int) -> list[int]:
        """Token ids of one answer sampled at temperature 1, an EOS that ended it included."""
        ...


def audit_peers(
    subject: str,
    peers: Seq[Peer],
    target: Target,
    prompts: Seq[Seq[int]],
    *,
    tokens: int = 2000,
    answer: int = 64,
    level: float = 1e-3,
    packages: Seq[str] = (),
    versions_there: Mapping[str, str] | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> AuditReport:
    """Put every peer's text to the sequential test.

    packages: whose versions the report gives. versions_there: the same for packages of another Python, as they are.

    The first peer is the control: the engine without speculation. If it leaves the reference as well, the others'
    leaving it is precision or settings. Raises InvalidValue if there is nothing to ask.
    """
    if not peers or not prompts:
        raise InvalidValue("no peer or no prompt", "give at least one of each")
    started = perf_counter()
    first = peers[0].generate(prompts[0], 0, answer)
    noise = measure_noise(target, [*prompts[0], *first], len(prompts[0]))
    findings: list[Finding] = []
    statistics: dict[str, Statistic] = {}
    control: SequentialResult | None = None
    for peer in peers:
        report(f"sampling from {peer.name}")
        findings += _seeds(peer, prompts[0], answer)
        test = SequentialTest(level=level / len(peers), noise=noise.bound, eos_ids=target.eos_ids)
        past_end = _sample(peer, target, prompts, test, tokens, answer)
        result = statistics[peer.name] = test.result()
        findings.append(_end(peer, past_end))
        findings.append(_judged(f"{peer.name}: sampled text", result, control))
        control = control or result
    facts = {
        "reference": target.name,
        "level (all peers)": f"{level:g}",
        "row noise": f"{noise.logit:.2g} logits, {noise.log_p:.2g} in log p",
        **versions("numpy", *packages),
        **(versions_there or {}),
    }
    return AuditReport(subject, facts, findings, statistics, perf_counter() - started)


def _sample(peer: Peer, target: Target, prompts: Seq[Seq[int]], test: SequentialTest, tokens: int, answer: int) -> int:
    """Feed the test; returns how many answers went on after an end-of-text token."""
    past_end = 0
    for seed, prompt in enumerate(cycle(prompts)):
        generated = peer.generate(prompt, seed, answer)
        past_end += any(token in target.eos_ids for token in generated[:-1])
        if generated:
            feed(test, target, Answer(tuple(prompt), tuple(generated)), SamplingParams(max_tokens=answer))
        if test.n >= tokens or not generated:
            return past_end
    raise AssertionError("prompts are not empty")


def _judged(check: str, result: SequentialResult, control: SequentialResult | None) -> Finding:
    finding = sampled_finding(check, result)
    if not result.n:
        return Finding(check, Verdict.UNKNOWN, "its first answer is empty")
    if control is not None and control.rejected and finding.verdict is Verdict.WRONG:
        detail = f"{finding.detail}; but the first peer leaves the reference as well: precision or settings"
        return Finding(check, Verdict.UNKNOWN, detail)
    return finding


def _seeds(peer: Peer, prompt: Seq[int], answer: int) -> list[Finding]:
    """The same seed repeats an answer; other seeds give others."""
    first, again = (peer.generate(prompt, 0, answer) for _ in range(2))
    others = {tuple(peer.generate(prompt, seed, answer)) for seed in (1, 2, 3)}
    repeats = Finding(f"{peer.name}: a seed repeats its answer", Verdict.HONOURED, f"{len(first)} tokens are equal")
    if list(again) != list(first):
        repeats = Finding(repeats.check, Verdict.WRONG, "two answers with one seed differ")
    varied = Finding(f"{peer.name}: other seeds, other answers", Verdict.HONOURED, f"{len(others)} of 3 are distinct")
    if others == {tuple(first)}:
        varied = Finding(varied.check, Verdict.WRONG, "four seeds gave one and the same answer")
    return [repeats, varied]


def _end(peer: Peer, past_end: int) -> Finding:
    check = f"{peer.name}: answers end at EOS"
    if past_end:
        return Finding(check, Verdict.WRONG, f"{past_end} answers go on after an end-of-text token")
    return Finding(check, Verdict.HONOURED, "no token after an end-of-text token")
