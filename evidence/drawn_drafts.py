"""How often retrieval's first token is accepted: the likeliest one, and one that is drawn, on the very same rows.

The target answers prompts of other origin at T = 1 without drafts; at every token of the answers p is compared with
what retrieval would have proposed there: p of its point mass, and the sum of min(p, q) of its law. No token is drawn,
so both are expectations and the difference has the error of the rows alone. Writes evidence/results/drawn-drafts.json.

    python -m evidence.drawn_drafts --prompts FOLDER [--limit 32] [--tokens 128]
"""

from __future__ import annotations

import numpy as np

from draftproof.dist import Dist
from draftproof.draft.base import DraftRequest
from draftproof.engine import Engine
from draftproof.load import LoadOptions, load_target
from draftproof.prompts import encode
from draftproof.registry import DraftContext, make_drafter
from draftproof.sampling.params import SamplingParams
from draftproof.target.base import Feed, LogitRows, Rows
from draftproof.train.corpus import read_prompts
from evidence.free_drafters import KINDS, asked
from evidence.record import Record

SEED = 20261201


class Sampler:
    """A request at T = 1 that says whether tokens are drawn, and draws the likeliest."""

    temperature = 1.0

    def __init__(self, draws: bool) -> None:
        self.draws = draws

    def distribution(self, rows: Rows, row: int, drafted: object, temperature: float | None = None) -> Dist:
        raise AssertionError("retrieval has no rows")

    def draw(self, q: Dist, index: int) -> int:
        return q.top(1)[0][0]


def main() -> None:
    arguments = asked(__doc__)
    options = LoadOptions(backend="openvino", weights=arguments.weights, activations=arguments.activations)
    target, tokenizer = load_target("smollm2", options)
    drafter = make_drafter("retrieval", DraftContext("", target, tokenizer, load_model=lambda name: (target, None)))
    record = Record("drawn-drafts")
    for kind in KINDS:
        if kind in record.parts:
            continue
        engine = Engine(target, tokenizer=tokenizer)
        found: list[tuple[float, float]] = []
        texts = read_prompts(arguments.prompts / f"{kind}.jsonl")[: arguments.limit]
        for i, text in enumerate(texts):
            prompt = list(encode(text, tokenizer, target.vocab_size, chat=True))
            params = SamplingParams(temperature=1, max_tokens=arguments.tokens, seed=SEED + i)
            ids = [*prompt, *engine.generate(prompt, params).token_ids]
            handle = target.open()
            (rows,) = target.score([Feed(handle, ids[:-1], rows=len(ids) - len(prompt))])
            target.close(handle)
            assert isinstance(rows, LogitRows)
            logits = rows.values.astype(np.float64)
            p = np.exp(logits - logits.max(axis=1, keepdims=True))
            p /= p.sum(axis=1, keepdims=True)
            drafter.open(i)
            for row, at in enumerate(range(len(prompt), len(ids))):
                point, drawn = (
                    drafter.propose([DraftRequest(i, ids[:at], len(prompt), 1, Sampler(draws))])[0]
                    for draws in (False, True)
                )
                assert drawn.q is not None
                q = drawn.q[0]
                assert q is not None
                overlap = float(np.minimum(p[row], q.dense()).sum())
                found.append((float(p[row, point.tokens[0]]) if point.tokens else 0.0, overlap))
            drafter.close(i)
        values = np.array(found)
        gain = values[:, 1] - values[:, 0]
        record.add(
            kind,
            {
                "prompts": len(texts),
                "rows": len(values),
                "point_mass": float(values[:, 0].mean()),
                "drawn": float(values[:, 1].mean()),
                "difference": float(gain.mean()),
                "error_of_difference": float(gain.std(ddof=1) / np.sqrt(len(gain))),
                "seed": SEED,
                "weights": arguments.weights,
                "activations": arguments.activations,
            },
        )
        print(kind, record.parts[kind], flush=True)


if __name__ == "__main__":
    main()
