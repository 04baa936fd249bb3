"""Tokens to detection: planted faults on a real model through the production engine, put to the sequential test.

For each fault: five runs (seeds 0..4); in each, answers are generated eight at a time, scored by a plain pass and put
to the test until e >= 1e6 or the budget is spent. The bias of a fault is computed, not estimated from its tokens: at
every emitted position the law of the wrong rule is worked out from that position's p and q, and its total variation
from p is averaged over all positions. Drafts come from the target itself at 1.5 times the temperature.

    python evidence/audit_detection.py --out evidence/audit_detection.json [--model smollm2] [--only NAME] [--runs 5]
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import platform
import statistics
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np

from draftproof import __version__
from draftproof.audit.scoring import feed, run_engine
from draftproof.chance import Purpose, Streams
from draftproof.dist import Dist
from draftproof.draft.base import DraftRequest, Proposal
from draftproof.draft.model import ModelDrafter
from draftproof.engine import Engine
from draftproof.load import LoadOptions, load_target
from draftproof.proof import mutants
from draftproof.proof.sequential import SequentialTest
from draftproof.rounds import Settled
from draftproof.sampling.params import SamplingParams
from draftproof.schedule.base import RoundRecord
from draftproof.schedule.fixed import FixedSchedule
from draftproof.target.base import Rows, Target
from draftproof.verify import TokenVerifier
from draftproof.verify.base import Drafted, Origin, RowSource, Verdict, Verifier

PROMPTS = (
    "Describe a morning at a harbour.",
    "Why do leaves change colour?",
    "Write a short dialogue between two chess players.",
    "List some uses of a spoon, with reasons.",
    "Explain how a bicycle stays upright.",
    "Tell a story about a lighthouse keeper and a letter.",
    "What should one pack for a week in the mountains?",
    "Compare tea and coffee in one paragraph.",
)
ANSWER = 64  # tokens
Vector = np.ndarray


# -- wrong laws: what a position really emits, given its p and q --------------------------------------------------


def right_residual(p: Vector, q: Vector) -> Vector:
    rest = np.maximum(0, p - q)
    total = rest.sum()
    return rest / total if total > 0 else p


def ratio(p: Vector, q: Vector) -> Vector:
    return np.minimum(1, p / np.where(q > 0, q, 1)) * (q > 0)


def emitted(drawn: Vector, accept: Vector, replacement: Vector) -> Vector:
    kept = drawn * accept
    return kept + (1 - kept.sum()) * replacement


def minus_drafted_only(p: Vector, q: Vector) -> Vector:
    both = np.minimum(p, q)
    share = q * (1 - ratio(p, q)) / (1 - both)
    return both + p * share.sum() - share * both


def softmaxed(p: Vector, q: Vector) -> Vector:
    weights = np.exp(np.maximum(0, p - q))
    return weights / weights.sum()


def argmax_of(q: Vector) -> Vector:
    point = np.zeros_like(q)
    point[int(np.argmax(q))] = 1
    return point


def top_two(q: Vector) -> Vector:
    cut = np.zeros_like(q)
    best = np.lexsort((np.arange(len(q)), -q))[:2]
    cut[best] = q[best] / q[best].sum()
    return cut


def colder(q: Vector) -> Vector:
    return q * q / (q @ q)


Law = Callable[[Vector, Vector], Vector]
DRAFTED: dict[str, Law] = {
    "replacement from p": lambda p, q: emitted(q, ratio(p, q), p),
    "softmaxed residual": lambda p, q: emitted(q, ratio(p, q), softmaxed(p, q)),
    "inverted ratio": lambda p, q: emitted(q, ratio(q, p), right_residual(p, q)),
    "residual reversed": lambda p, q: emitted(q, ratio(p, q), right_residual(q, p)),
    "accept iff p >= q": lambda p, q: emitted(q, p >= q, right_residual(p, q)),
    "accept iff p >= 0.3": lambda p, q: emitted(q, p >= 0.3, right_residual(p, q)),
    "residual minus drafted only": minus_drafted_only,
    "match, then redraw": lambda p, q: emitted(q, p, p),
    "argmax draft, soft q": lambda p, q: emitted(argmax_of(q), ratio(p, q), right_residual(p, q)),
    "draft cut to two, raw q": lambda p, q: emitted(top_two(q), ratio(p, q), right_residual(p, q)),
    "draft colder than reported": lambda p, q: emitted(colder(q), ratio(p, q), right_residual(p, q)),
}


# -- wrong parts --------------------------------------------------------------------------------------------------


class BonusAtOne(TokenVerifier):
    """The bonus token is drawn at temperature 1 where the request says 0.7."""

    def verify(self, drafted: Drafted, rows: RowSource, streams: Streams, start: int) -> Verdict:
        verdict = super().verify(drafted, rows, streams, start)
        if verdict.origin is not Origin.BONUS:
            return verdict
        p = rows.p(len(drafted.tokens))
        weights = p.probs**0.7
        wrong = Dist(weights / weights.sum(), ids=p.ids, size=p.size)
        token = streams.at(Purpose.OTHER, start + len(drafted.tokens)).draw(wrong)
        return dataclasses.replace(verdict, token=token)


@dataclass
class WrongDraws:
    """A drafter that draws from another law than the q it reports."""

    inner: ModelDrafter
    law: Callable[[Vector], Vector]
    name: str = "wrong-draws"

    def open(self, id: int) -> None:
        self.inner.open(id)

    def close(self, id: int) -> None:
        self.inner.close(id)

    def commit(self, id: int, tokens: Seq[int]) -> None:
        self.inner.commit(id, tokens)

    def propose(self, requests: Seq[DraftRequest]) -> list[Proposal]:
        return self.inner.propose([dataclasses.replace(r, sampler=_WrongSampler(r, self.law)) for r in requests])


@dataclass
class _WrongSampler:
    request: DraftRequest
    law: Callable[[Vector], Vector]

    def distribution(self, rows: Rows, row: int, drafted: Seq[int], temperature: float | None = None) -> Dist:
        return self.request.sampler.distribution(rows, row, drafted, temperature)

    def draw(self, q: Dist, index: int) -> int:
        return self.request.sampler.draw(Dist(self.law(q.probs)), index)


# -- the bias -----------------------------------------------------------------------------------------------------


class Bias:
    """An observer that averages the total variation between what a position emits and p, over all positions."""

    def __init__(self, fault: str) -> None:
        self.fault = fault
        self.total = 0.0
        self.positions = 0

    def round(self, record: RoundRecord, settled: Seq[Settled]) -> None:
        for s in settled:
            count = len(s.drafted.tokens)
            for k in range(s.emitted):
                self.positions += 1
                self.total += self._bonus(s, count) if k == count and count else self._drafted(s, k, count)

    def _drafted(self, s: Settled, k: int, count: int) -> float:
        if count == 0 or self.fault not in DRAFTED:
            return 0.0
        p, q = s.rows.p(k).probs, s.drafted.q[k].probs
        return _tv(DRAFTED[self.fault](p, q), p)

    def _bonus(self, s: Settled, count: int) -> float:
        p = s.rows.p(count).probs
        if self.fault == "bonus from the previous row":
            return _tv(s.rows.p(count - 1).probs, p)
        if self.fault == "bonus at T = 1 for 0.7":
            weights = p**0.7
            return _tv(weights / weights.sum(), p)
        return 0.0


def _tv(a: Vector, b: Vector) -> float:
    return float(np.abs(a - b).sum()) / 2


# -- runs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    name: str
    verifier: Callable[[], Verifier] = TokenVerifier
    draws: Callable[[Vector], Vector] | None = None
    temperature: float = 1.0
    budget: int = 10_000


FAULTS = (
    Fault("none (the right rule)", budget=2_000),
    Fault("accept iff p >= q", mutants.AcceptIfLikelier),
    Fault("residual reversed", mutants.ResidualReversed),
    Fault("inverted ratio", mutants.InvertedRatio),
    Fault("softmaxed residual", mutants.SoftmaxedResidual),
    Fault("accept iff p >= 0.3", mutants.AcceptIfTypical),
    Fault("argmax draft, soft q", draws=argmax_of),
    Fault("draft cut to two, raw q", draws=top_two),
    Fault("draft colder than reported", draws=colder),
    Fault("replacement from p", mutants.ReplacementFromP),
    Fault("match, then redraw", mutants.MatchThenRedraw),
    Fault("residual minus drafted only", mutants.ResidualMinusDraftedOnly),
    Fault("bonus from the previous row", mutants.BonusFromPreviousRow),
    Fault("bonus at T = 1 for 0.7", BonusAtOne, temperature=0.7),
)


def run(fault: Fault, target: Target, prompts: list[list[int]], seed: int) -> dict[str, object]:
    drafter = ModelDrafter(target, temperature=1.5 * fault.temperature, name="self")
    parts = WrongDraws(drafter, fault.draws) if fault.draws else drafter
    engine = Engine(target, drafter=parts, verifier=fault.verifier(), schedule=FixedSchedule(3))
    bias = Bias(fault.name)
    engine.observers.append(bias)
    test = SequentialTest(level=1e-6, eos_ids=target.eos_ids)
    started = perf_counter()
    batch = 0
    while not test.rejected and test.n < fault.budget:
        params = [
            SamplingParams(
                max_tokens=ANSWER, temperature=fault.temperature, seed=seed * 100_000 + batch * 100 + i, ignore_eos=True
            )
            for i in range(len(prompts))
        ]
        for answer in run_engine(engine, prompts, params):
            if not test.rejected:
                feed(test, target, answer, params[0])
        batch += 1
    result = test.result()
    return {
        "seed": seed,
        "tokens": test.n,
        "found_at": result.rejected_at,
        "log10_e": min(result.log10_e, 1e9),
        "bias": bias.total / bias.positions,
        "bias_at_least": result.bias_at_least,
        "grew": result.grew[0].bet,
        "at": result.grew[0].watch,
        "seconds": round(perf_counter() - started, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--only", default="")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    target, tokenizer = load_target(options.model, LoadOptions(threads=options.threads))
    prompts = [tokenizer.chat([{"role": "user", "content": text}]) for text in PROMPTS]
    record = json.loads(options.out.read_text()) if options.out.exists() else {"faults": {}}
    for fault in FAULTS:
        if options.only not in fault.name:
            continue
        runs = record["faults"].get(fault.name, {}).get("runs", [])
        for seed in range(len(runs), options.runs):
            runs.append(run(fault, target, prompts, seed))
            found = [r["found_at"] or float("inf") for r in runs]
            median = statistics.median(found)
            record["faults"][fault.name] = {
                "bias": statistics.mean(r["bias"] for r in runs),
                "median_tokens_to_e_1e6": median if median < float("inf") else None,
                "runs": runs,
            }
            record |= {
                "what": "tokens until e >= 1e6, planted faults on a real model through the engine",
                "model": options.model,
                "target": type(target).__name__,
                "drafter": "the target itself at 1.5 times the temperature, 3 tokens a round",
                "versions": {"draftproof": __version__, "numpy": np.__version__, "python": platform.python_version()},
                "date": datetime.date.today().isoformat(),
            }
            options.out.write_text(json.dumps(record, indent=1) + "\n")
            print(fault.name, json.dumps(runs[-1]), flush=True)


if __name__ == "__main__":
    main()
