"""What the bets cost beside the pass that scores: CPU milliseconds per token on a real model's rows, one thread.

python evidence/audit_cost.py --out evidence/audit_cost.json [--model smollm2] [--backend auto]
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
from pathlib import Path
from time import process_time

import numpy as np

from draftproof.audit.scoring import run_engine, target_distributions
from draftproof.dist import Dist
from draftproof.draft.none import NoDrafter
from draftproof.engine import Engine
from draftproof.load import LoadOptions, load_target
from draftproof.proof.sequential import SequentialTest
from draftproof.sampling.params import SamplingParams

PROMPT = "Describe a morning at a harbour."


KINDS = ("bets", "bets_with_point_q", "bets_with_sparse_q", "bets_with_dense_q")
"""What is known of the draft: nothing; one token (lookup); 8 192 ids (dspark); a row of the whole vocabulary."""


def _drafts(rows: list[Dist]) -> list[list[Dist | None]]:
    """A q of every kind for every row, made of its neighbour."""
    dense = rows[1:] + rows[:1]
    sparse = []
    for row in dense:
        ids = np.sort(np.argsort(-row.dense())[:8192])
        sparse.append(Dist(row.dense()[ids] / row.dense()[ids].sum(), ids=ids, size=row.size))
    points = [Dist.point(row.top(1)[0][0], row.size) for row in dense]
    return [[None] * len(rows), [*points], [*sparse], [*dense]]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    target, tokenizer = load_target(options.model, LoadOptions(backend=options.backend, threads=1))
    ids = tokenizer.chat([{"role": "user", "content": PROMPT}])
    engine = Engine(target, drafter=NoDrafter())
    params = SamplingParams(max_tokens=options.tokens, seed=1, ignore_eos=True)
    rounds: dict[str, list[float]] = {name: [] for name in ("plain_decoding", "scoring_pass", *KINDS)}
    for _ in range(options.rounds):
        started = process_time()
        [answer] = run_engine(engine, [ids], [params])
        rounds["plain_decoding"].append(process_time() - started)
        started = process_time()
        rows = list(target_distributions(target, answer, params))
        rounds["scoring_pass"].append(process_time() - started)
        for name, drafts in zip(KINDS, _drafts(rows), strict=True):
            test = SequentialTest()
            started = process_time()
            for token, p, q in zip(answer.tokens, rows, drafts, strict=True):
                test.update(token, p, q=q, history=ids)
            rounds[name].append(process_time() - started)
    medians = {name: 1000 * statistics.median(times) / options.tokens for name, times in rounds.items()}
    record = {
        "what": "CPU milliseconds per token, one thread, medians",
        "model": options.model,
        "target": type(target).__name__,
        "vocabulary": target.vocab_size,
        "tokens": options.tokens,
        "rounds": options.rounds,
        "milliseconds": medians,
        "bets_over_plain_decoding": medians["bets"] / medians["plain_decoding"],
        "over_scoring_pass": {name: medians[name] / medians["scoring_pass"] for name in KINDS},
        "date": datetime.date.today().isoformat(),
    }
    options.out.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record))


if __name__ == "__main__":
    main()
