"""False alarms of the sequential test: 1 000 lossless runs of 5 000 tokens at level 1e-3.

Half of the runs are engine answers on a random table model (all four verifiers), half are drawn from recorded rows of
a real model, drafted from the same rows at another temperature. Writes one JSON file, after every run, and goes on
where an earlier invocation stopped.

    python evidence/audit_false_alarms.py --out evidence/audit_false_alarms.json [--runs 1000] [--model smollm2]
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "audit"))
from audit_tables import Markov  # the same table models as the tests use

from draftproof import __version__
from draftproof.audit.scoring import run_engine
from draftproof.dist import Dist
from draftproof.load import LoadOptions, load_engine
from draftproof.proof.bets import Bets
from draftproof.proof.sequential import SequentialTest
from draftproof.sampling.params import SamplingParams
from draftproof.target.base import Feed
from draftproof.verify import BlockVerifier, CoupledVerifier, MatchVerifier, TokenVerifier
from draftproof.verify.base import Origin

TOKENS = 5000
LEVEL = 1e-3
VERIFIERS = (TokenVerifier, BlockVerifier, MatchVerifier, CoupledVerifier)
PROMPTS = (
    "Describe a morning at a harbour.",
    "Why do leaves change colour?",
    "Write a short dialogue between two chess players.",
    "List some uses of a spoon, with reasons.",
)


def table_run(run: int) -> SequentialTest:
    verifier = VERIFIERS[run % len(VERIFIERS)]()
    return Markov(seed=run % 7).audit(verifier, tokens=TOKENS, seed=run, level=LEVEL, stop=False)


class RecordedRows:
    """Rows of a real model along its own text at T = 1 and 0.7; drafts from the same rows at 1.5 times that."""

    def __init__(self, model: str, count: int) -> None:
        engine = load_engine(model, draft="none", options=LoadOptions(threads=1))
        self.rows: list[tuple[Bets, Bets, np.ndarray, np.ndarray]] = []
        each = count // (2 * len(PROMPTS))
        for temperature in (1.0, 0.7):
            for i, prompt in enumerate(PROMPTS):
                ids = engine.encode(prompt)
                params = SamplingParams(max_tokens=each, temperature=temperature, seed=i, ignore_eos=True)
                [answer] = run_engine(engine, [ids], [params])
                text = [*answer.prompt, *answer.tokens]
                handle = engine.target.open()
                [rows] = engine.target.score([Feed(handle, text[:-1], rows=len(answer.tokens))])
                engine.target.close(handle)
                for k, row in enumerate(rows.values):
                    history = text[max(0, len(ids) + k - 64) : len(ids) + k]
                    self._add(row.astype(np.float64) / temperature, history, engine.target.eos_ids)

    def _add(self, logits: np.ndarray, history: list[int], eos_ids: frozenset[int]) -> None:
        p, q = _softmax(logits), _softmax(logits / 1.5)
        drafted = Bets.place(p, q=Dist(q), history=history, eos_ids=eos_ids)
        plain = Bets.place(p, history=history, eos_ids=eos_ids)
        self.rows.append((drafted, plain, np.cumsum(p), np.minimum(1, q / p)))

    def run(self, seed: int) -> SequentialTest:
        """Rounds of three drafts: a token x ~ p, accepted with probability min(1, q/p)(x), as the exact rule has it."""
        random = np.random.default_rng(seed)
        test = SequentialTest(level=LEVEL)
        previous: Origin | None = None
        place = 0
        order = random.integers(len(self.rows), size=TOKENS)
        uniforms = random.random((TOKENS, 2))
        for r, (u, v) in zip(order, uniforms, strict=True):
            drafted, plain, running, accept = self.rows[r]
            token = min(int(np.searchsorted(running, u * running[-1], side="right")), len(running) - 1)
            if place == 3:
                origin, place = Origin.BONUS, 0
            elif v < accept[token]:
                origin, place = Origin.ACCEPTED, place + 1
            else:
                origin, place = Origin.RESIDUAL, 0
            bets = plain if origin is Origin.BONUS else drafted
            test.settle(bets, token, origin=origin, previous=previous)
            previous = origin
        return test


def _softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rows", type=int, default=400)
    options = parser.parse_args()
    record = json.loads(options.out.read_text()) if options.out.exists() else {"runs": []}
    record |= {
        "what": "lossless runs put to the sequential test",
        "tokens_per_run": TOKENS,
        "level": LEVEL,
        "model": options.model,
        "recorded_rows": options.rows,
        "versions": {"draftproof": __version__, "numpy": np.__version__, "python": platform.python_version()},
    }
    recorded: RecordedRows | None = None
    for run in range(len(record["runs"]), options.runs):
        source = "table" if run % 2 == 0 else "recorded rows"
        if source == "table":
            test = table_run(run // 2)
        else:
            recorded = recorded or RecordedRows(options.model, options.rows)
            test = recorded.run(run)
        result = test.result()
        record["runs"].append(
            {
                "source": source,
                "seed": run,
                "alarm_at": result.rejected_at,
                "max_log10_e": round(result.log10_e_max, 4),
                "bias_at_least": result.bias_at_least,
            }
        )
        record["alarms"] = sum(r["alarm_at"] is not None for r in record["runs"])
        record["date"] = datetime.date.today().isoformat()
        if run % 10 == 9 or run == options.runs - 1:
            options.out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{len(record['runs'])} runs, {record['alarms']} alarms at level {LEVEL}")


if __name__ == "__main__":
    main()
