"""What the bets cost beside the pass that scores: CPU milliseconds per token on a real model's rows, one thread.

As in an audit, every row is put to the test as it comes.

python evidence/audit_cost.py --out evidence/audit_cost_BACKEND.json [--model smollm2] [--backend auto]
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
from pathlib import Path
from time import process_time, thread_time

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


def _drafts(row: Dist) -> list[Dist | None]:
    """A q of every kind, made of another row."""
    ids = np.sort(np.argsort(-row.dense())[:8192])
    sparse = Dist(row.dense()[ids] / row.dense()[ids].sum(), ids=ids, size=row.size)
    return [None, Dist.point(row.top(1)[0][0], row.size), sparse, row]


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
        drafts = [_drafts(p) for p in target_distributions(target, answer, params)]
        for kind, name in enumerate(KINDS):
            test = SequentialTest(noise=1e-3)  # as an audit of a real engine allows for
            scoring = bets = 0.0
            clock = thread_time()
            for i, p in enumerate(target_distributions(target, answer, params)):
                scoring += (now := thread_time()) - clock
                test.update(answer.tokens[i], p, q=drafts[i - 1][kind], history=ids)
                clock = thread_time()
                bets += clock - now
            rounds["scoring_pass"].append(scoring)
            rounds[name].append(bets)
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
