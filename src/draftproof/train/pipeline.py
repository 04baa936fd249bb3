"""From a target to a drafter's checkpoint: texts, features, training, evaluation, calibration; each step resumable.

A folder holds everything: `prompts.jsonl`, `texts.jsonl`, `features/`, one folder per trained head with its state and
`log.jsonl`, and in the end the checkpoint with its training record.

Guarantees: started again with the same arguments after an interruption, it goes on where it was and ends with the same
checkpoint. The held-out sequences are never trained on, also when texts were added since (more prompts at the end of
the file, a higher number of steps: the training goes on with all of them). What it does not do: show progress; it
reports to callbacks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from draftproof.draft.dspark import calibration
from draftproof.draft.dspark.checkpoint import Checkpoint, save, uncalibrated
from draftproof.draft.dspark.config import DSparkConfig, HeadKind
from draftproof.draft.dspark.hidden import HiddenTarget, TargetTables
from draftproof.draft.dspark.module import DSparkModule
from draftproof.errors import InvalidValue
from draftproof.models.cache import writing
from draftproof.train.batches import Batches, split
from draftproof.train.corpus import Text
from draftproof.train.evaluate import Anchored, Replay, anchored, judged, replay, survived
from draftproof.train.features import store_texts
from draftproof.train.rows import RowMaker
from draftproof.train.store import Entry, FeatureStore
from draftproof.train.trainer import StepReport, Trainer, TrainingPlan

LOG = "log.jsonl"
SCALE_SEQUENCES = 40  # enough to know how large each feature is
LARGEST_SCALE = 1e4


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterPlan:
    """What kind of drafter. held_out: sequences kept for evaluation and calibration. evaluate_every: steps."""

    head: HeadKind = "markov"
    layers: int = 2
    block: int = 5
    rank: int = 128
    draft_vocab: int = 8192
    feature_layers: tuple[int, ...] = ()
    held_out: int = 24
    evaluate_every: int = 100

    def __post_init__(self) -> None:
        for name in ("held_out", "evaluate_every"):
            if getattr(self, name) < 1:
                raise InvalidValue(f"{name}={getattr(self, name)}", "at least 1")


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Held-out figures after a step: texts sampled at T = 1 and greedy ones apart, None where there are none."""

    step: int
    sampled: Replay | None
    greedy: Replay | None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        kinds = {"sampled": self.sampled, "greedy": self.greedy}
        return {"step": self.step} | {
            name: {
                "tokens_per_round": found.tokens_per_round,
                "drafts_per_round": found.drafts_per_round,
                "by_position": found.by_position,
            }
            for name, found in kinds.items()
            if found is not None
        }


def layers_to_read(layers: int, count: int = 5) -> tuple[int, ...]:
    """`count` layers spread over the target, the last one (after the final norm) among them."""
    return tuple(sorted({round(layers * (i + 0.5) / count) for i in range(count - 1)} | {layers}))


def collect(
    target: HiddenTarget,
    tables: TargetTables,
    texts: Iterator[Text],
    feature_layers: Seq[int],
    folder: Path,
    *,
    dtype: torch.dtype = torch.float32,
    on_text: Callable[[Text], None] = lambda text: None,
) -> FeatureStore:
    """The features of all texts. The target must keep exactly `feature_layers`."""
    if feature_layers[-1] != tables.facts.layers:
        raise InvalidValue(f"feature layers {tuple(feature_layers)}", f"the last must be {tables.facts.layers}")
    facts = {
        "fingerprint": tables.facts.fingerprint,
        "layers": list(feature_layers),
        "eos_ids": sorted(target.eos_ids),
    }
    store = FeatureStore.create(folder, width=len(feature_layers) * tables.facts.hidden, facts=facts)
    store_texts(store, texts, target, tables.head, dtype=dtype, on_text=on_text)
    return store


class Training:
    """One head's training on a store: `run`, then `finish`."""

    def __init__(
        self,
        store: FeatureStore,
        tables: TargetTables,
        drafter: DrafterPlan,
        plan: TrainingPlan,
        folder: Path,
        *,
        dtype: torch.dtype,
        device: str,
    ) -> None:
        facts = tables.facts
        self.store, self.drafter, self.folder = store, drafter, folder
        self.config = DSparkConfig(
            target_fingerprint=facts.fingerprint,
            target_layers=facts.layers,
            target_vocab=facts.vocab,
            feature_layers=tuple(store.facts["layers"]),
            hidden=facts.hidden,
            layers=drafter.layers,
            heads=facts.heads,
            kv_heads=facts.kv_heads,
            head_dim=facts.head_dim,
            mlp=facts.mlp,
            block=drafter.block,
            draft_vocab=min(drafter.draft_vocab, facts.vocab),
            head=drafter.head,
            rank=drafter.rank if drafter.head != "none" else 0,
            rope_theta=facts.rope_theta,
            norm_eps=facts.norm_eps,
        )
        self.training, self.held_out = split(store, drafter.held_out, block=drafter.block)
        module = DSparkModule(self.config, seed=plan.seed)
        module.tensor("vocab").copy_(torch.from_numpy(frequent(store, self.training, self.config)))
        module.tensor("context.scale").copy_(torch.from_numpy(feature_scale(store, self.training)))
        module.to(device)
        embedding, head = torch.from_numpy(tables.embedding), torch.from_numpy(tables.head)
        self.maker = RowMaker(module, embedding, head, dtype=dtype, device=device)
        batches = Batches(
            store,
            self.training,
            sequences=plan.sequences,
            anchors=plan.anchors,
            block=drafter.block,
            seed=plan.seed,
        )
        self.trainer = Trainer(self.maker, batches, plan, folder, facts={"held_out": drafter.held_out})

    def run(self, on_step: Callable[[StepReport], None], on_evaluation: Callable[[Evaluation], None]) -> Evaluation:
        """Train to the end, evaluating on the way; returns the last evaluation."""
        self.trainer.resume()
        while self.trainer.step < self.trainer.plan.steps:
            every = self.drafter.evaluate_every
            self.trainer.run(lambda report: self._log(report, on_step), until=(self.trainer.step // every + 1) * every)
            evaluation = self.evaluate()
            self._write({"evaluation": evaluation.as_dict(), "cpu_seconds": self.trainer.cpu_seconds})
            on_evaluation(evaluation)
        return self.evaluate()

    def evaluate(self) -> Evaluation:
        """The held-out figures of the drafter as it is; texts of temperatures other than 0 and 1 have none."""
        sampled, greedy = (
            [anchored(self.maker, self.store, entry) for entry in judged(self.held_out, greedy=greedy)]
            for greedy in (False, True)
        )
        return Evaluation(self.trainer.step, replay(sampled) if sampled else None, replay(greedy) if greedy else None)

    def finish(self, evaluation: Evaluation, extra: dict[str, Any]) -> Checkpoint:
        """Calibrate on the held-out sequences and write the checkpoint with its record."""
        rounds = rounds_of([anchored(self.maker, self.store, e) for e in judged(self.held_out, greedy=False)])
        module, plan = self.maker.module, self.trainer.plan
        record = {
            "sequences": len(self.training),
            "tokens": sum(e.length for e in self.training),
            "answer_tokens": sum(e.length - e.prompt_length for e in self.training),
            "held_out": len(self.held_out),
            "plan": asdict(plan),
            "steps": self.trainer.step,
            "cpu_seconds": round(self.trainer.cpu_seconds, 1),
            "evaluation": evaluation.as_dict(),
            **extra,
        }
        checkpoint = checkpoint_of(module, uncalibrated(self.config.block), record)
        if rounds is not None:
            checkpoint = recalibrated(checkpoint, rounds)
        save(checkpoint, self.folder)
        return checkpoint

    def _log(self, report: StepReport, on_step: Callable[[StepReport], None]) -> None:
        self._write(asdict(report))
        on_step(report)

    def _write(self, line: dict[str, Any]) -> None:
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            with (self.folder / LOG).open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def checkpoint_of(module: DSparkModule, temperatures: Seq[float], record: dict[str, Any]) -> Checkpoint:
    """The module's weights as a checkpoint."""
    tensors = {name: module.tensor(name).detach().cpu().float().numpy() for name in module.config.shapes()}
    tensors["vocab"] = tensors["vocab"].astype(np.int64)
    return Checkpoint(module.config, tensors, tuple(temperatures), record)


def recalibrated(checkpoint: Checkpoint, rounds: calibration.Rounds) -> Checkpoint:
    """The checkpoint with its head's bias and temperatures fitted to these rounds, and their errors in its record.

    The bias moves so that the first position is right on average, unless temperatures alone leave less at worst.
    """
    now = float(checkpoint.tensors["confidence.bias"][0])
    found = []
    for bias in (now, float(np.float16(now + calibration.shift(rounds)))):  # as it is stored
        right = calibration.moved(rounds, bias - now)
        temperatures = calibration.fit(right)
        found.append((max(calibration.ece(right, temperatures)), bias, temperatures, right))
    _, bias, temperatures, right = min(found, key=lambda one: one[0])
    before, after = calibration.ece(rounds, checkpoint.temperatures), calibration.ece(right, temperatures)
    record = {**checkpoint.record, "ece": {"before": before, "after": after}}
    tensors = {**checkpoint.tensors, "confidence.bias": np.array([bias], np.float32)}
    return replace(checkpoint, tensors=tensors, temperatures=temperatures, record=record)


def rounds_of(blocks: Seq[Anchored]) -> calibration.Rounds | None:
    """Held-out blocks as calibration wants them; None if there are none."""
    if not blocks:
        return None
    return calibration.Rounds(
        np.concatenate([b.confidence for b in blocks]),
        np.concatenate([survived(b) for b in blocks]),
        np.concatenate([b.real for b in blocks]),
    )


def frequent(store: FeatureStore, entries: Seq[Entry], config: DSparkConfig) -> np.ndarray[Any, Any]:
    """The most frequent ids of the training texts, ascending; unseen ones last, in the tokenizer's own order."""
    counts = store.token_counts(config.target_vocab, entries)
    order = np.lexsort((np.arange(config.target_vocab), -counts))
    return np.sort(order[: config.draft_vocab])


def feature_scale(store: FeatureStore, entries: Seq[Entry]) -> np.ndarray[Any, Any]:
    """One over the root mean square of each feature, (width,) float32.

    The first token of a sequence is left out: its hidden states can be a hundred times larger than all others.
    """
    sample = np.concatenate([np.array(store.read(e)[1][1:], np.float32) for e in entries[:SCALE_SEQUENCES]])
    size = np.sqrt((sample.astype(np.float64) ** 2).mean(axis=0))
    # A feature that hardly moves says hardly anything; its scale has to fit into a checkpoint's float16.
    return np.minimum(1 / np.where(size > 0, size, 1), LARGEST_SCALE).astype(np.float32)
