"""What a DSpark checkpoint does on prompts it has never seen: acceptance by position, tokens a round, calibration.

    python evidence/dspark_eval.py --prompts FOLDER --checkpoint DIR [--against DIR ...] --out FILE.json

FOLDER holds files of one JSON object a line with "turns"; the first turn is asked. The engine answers with the first
checkpoint's drafter, which gives the measured figures; every checkpoint is then replayed over the very same texts
(`draftproof.train.evaluate`), which compares drafters without the noise of different draws.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from draftproof.draft.dspark import calibration
from draftproof.draft.dspark import checkpoint as checkpoints
from draftproof.draft.dspark.drafter import DSparkDrafter
from draftproof.draft.dspark.hidden import TargetTables
from draftproof.draft.dspark.module import module_of
from draftproof.draft.dspark.tap import FeatureTap
from draftproof.engine import Engine
from draftproof.models.store import resolve
from draftproof.models.tokenizer import FileTokenizer
from draftproof.result import Result
from draftproof.sampling.params import SamplingParams
from draftproof.schedule.fixed import FixedSchedule
from draftproof.target.transformers import TransformersTarget
from draftproof.train.corpus import Text
from draftproof.train.evaluate import anchored, replay
from draftproof.train.pipeline import collect, rounds_of
from draftproof.train.rows import RowMaker


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--against", type=Path, nargs="*", default=[])
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--limit", type=int, default=16, help="prompts per file")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    report = {"prompts": options.limit, "max_tokens": options.max_tokens, "dtype": options.dtype, "sets": {}}
    tables = TargetTables.load(options.target)
    tokenizer = FileTokenizer(resolve(options.target).path)
    loaded = {str(path): checkpoints.load(path) for path in [options.checkpoint, *options.against]}
    first = loaded[str(options.checkpoint)]
    target = TransformersTarget.load(
        options.target, dtype=options.dtype, threads=options.threads, hidden_layers=first.config.feature_layers
    )
    tap = FeatureTap(target)
    drafter = DSparkDrafter(first, tap, tables)
    engine = Engine(tap, drafter=drafter, tokenizer=tokenizer, schedule=FixedSchedule(first.config.block))
    for file in sorted(options.prompts.glob("*.jsonl")):
        lines = file.read_text(encoding="utf-8").splitlines()[: options.limit]
        prompts = [engine.encode(json.loads(line)["turns"][0]) for line in lines]
        for temperature in (1.0, 0.0):
            params = [
                SamplingParams(max_tokens=options.max_tokens, temperature=temperature, seed=i)
                for i in range(len(prompts))
            ]
            started = perf_counter()
            results = engine.generate_all(prompts, params)
            key = f"{file.stem}, T={temperature:g}"
            entry: dict[str, Any] = {"engine": measured(results), "seconds": perf_counter() - started}
            texts = [
                Text((*prompt, *result.token_ids), len(prompt), temperature)
                for prompt, result in zip(prompts, results, strict=True)
                if len(result.token_ids) > first.config.block
            ]
            with tempfile.TemporaryDirectory() as folder:
                store = collect(target, tables, iter(texts), first.config.feature_layers, Path(folder))
                for name, checkpoint in loaded.items():
                    maker = RowMaker(
                        module_of(checkpoint),
                        torch.from_numpy(tables.embedding),
                        torch.from_numpy(tables.head),
                        dtype=torch.float32,
                    )
                    blocks = [anchored(maker, store, e) for e in store.entries]
                    found = replay(blocks)
                    entry[name] = {
                        "tokens_per_round": found.tokens_per_round,
                        "drafts_per_round": found.drafts_per_round,
                        "by_position": found.by_position,
                    }
                    rounds = rounds_of(blocks)
                    if temperature > 0 and rounds is not None:
                        entry[name]["ece"] = calibration.ece(rounds, checkpoint.temperatures)
            report["sets"][key] = entry
            print(key, json.dumps(entry), flush=True)
    options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def measured(results: list[Result]) -> dict[str, Any]:
    """Counters of all answers together."""
    block = max(len(r.speculation.accepted_at) for r in results)

    def total(field: str, k: int) -> int:
        return sum(getattr(r.speculation, field)[k] for r in results if k < len(getattr(r.speculation, field)))

    emitted = sum(r.usage.completion_tokens for r in results)
    rounds = sum(r.speculation.rounds for r in results)
    accepted = [total("accepted_at", k) for k in range(block)]
    reached = [total("drafted_at", 0), *accepted[:-1]]
    return {
        "tokens": emitted,
        "rounds": rounds,
        "tokens_per_round": emitted / rounds,
        "by_position": [a / r if r else 0.0 for a, r in zip(accepted, reached, strict=True)],
        "surprises": sum(r.speculation.surprises for r in results),
    }


if __name__ == "__main__":
    main()
