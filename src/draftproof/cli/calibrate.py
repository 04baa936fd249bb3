"""`draftproof calibrate`: one temperature per block position for a drafter's confidences, and the reliability diagram.

Guarantees: order-preserving, so only how much is verified can change, never what is emitted. The checkpoint is
rewritten only after everything was computed. What it does not do: train. The texts are those that a training held out,
or fresh ones; those held out are like what was trained on, so fresh ones of the kind it will meet are the better judge.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from draftproof.errors import InvalidValue


def calibrate(
    checkpoint: Annotated[Path, typer.Argument(help="The drafter's folder.")],
    features: Annotated[Path, typer.Option(help="Features folder of the training, or of fresh texts.")],
    target: Annotated[str, typer.Option("--target", "-m", help="The drafter's target.")],
    held_out: Annotated[int, typer.Option(help="As in the training: sequences it did not see.", min=1)] = 24,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="The drafter was trained on no text of the folder: take them all.")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="Write the reliability diagram: FILE.png or FILE.svg.")] = None,
    dry: Annotated[bool, typer.Option("--dry-run", help="Show the figures, leave the checkpoint as it is.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Fit the confidence head's bias and temperatures on held-out texts and write them into the checkpoint."""
    import torch

    from draftproof.draft.dspark import calibration
    from draftproof.draft.dspark import checkpoint as checkpoints
    from draftproof.draft.dspark.hidden import TargetTables
    from draftproof.draft.dspark.module import module_of
    from draftproof.train.batches import split
    from draftproof.train.evaluate import anchored, judged
    from draftproof.train.pipeline import recalibrated, rounds_of
    from draftproof.train.rows import RowMaker
    from draftproof.train.store import FeatureStore

    before = checkpoints.load(checkpoint)
    tables = TargetTables.load(target)
    before.check_target(tables.facts.fingerprint, tables.facts.vocab)
    store = FeatureStore.open(features)
    if store.facts["fingerprint"] != tables.facts.fingerprint:
        raise InvalidValue(f"{features} is of another target", "give the folder of this drafter's training")
    if tuple(store.facts["layers"]) != before.config.feature_layers:
        raise InvalidValue(f"{features} holds layers {store.facts['layers']}", f"{before.config.feature_layers}")
    maker = RowMaker(
        module_of(before), torch.from_numpy(tables.embedding), torch.from_numpy(tables.head), dtype=torch.float32
    )
    if fresh:
        if store.held_out():
            raise InvalidValue(f"--fresh with {features}, on which a drafter was trained", "a folder of `train texts`")
        entries = [e for e in store.entries if e.length - e.prompt_length >= before.config.block]
    else:
        trained_with = before.record.get("held_out", held_out)
        if held_out != trained_with:
            raise InvalidValue(f"--held-out {held_out}", f"as in the training: {trained_with}")
        if (known := store.held_out()) and held_out not in known:
            raise InvalidValue(f"{features} held out {', '.join(map(str, known))}", "give the folder of this training")
        _, entries = split(store, held_out, block=before.config.block)
    entries = judged(entries, greedy=False)
    rounds = rounds_of([anchored(maker, store, entry) for entry in entries])
    if rounds is None:
        raise InvalidValue(
            "no held-out text was sampled at temperature 1", "other texts say nothing about these chances"
        )
    after = recalibrated(before, rounds)
    record = {**after.record, "calibrated_on": {"texts": len(entries), "fresh": fresh}}
    after = dataclasses.replace(after, record=record)
    if plot is not None:
        bias = float(after.tensors["confidence.bias"][0] - before.tensors["confidence.bias"][0])
        calibration.plot(rounds, calibration.moved(rounds, bias), after.temperatures, str(plot))
    if not dry:
        checkpoints.save(after, checkpoint)
    ece = after.record["ece"]
    if as_json:
        print(json.dumps({"temperatures": after.temperatures, "ece": ece, "rounds": len(rounds.logits)}))
        return
    table = Table("position", "temperature", "ECE before", "ECE after")
    for k, t in enumerate(after.temperatures):
        table.add_row(str(k + 1), f"{t:.2f}", f"{100 * ece['before'][k]:.1f} %", f"{100 * ece['after'][k]:.1f} %")
    Console().print(table)
