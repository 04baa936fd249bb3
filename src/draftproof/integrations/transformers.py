"""Draftproof as a decoding method of `transformers`: the caller's own model, config, processors and streamer.

    from draftproof.integrations.transformers import generate
    model.generate(**inputs, max_new_tokens=200, custom_generate=generate, draft="lookup")

Guarantees: p is the caller's own: its model's logits through the very logits processors and warpers that `generate`
has prepared, each row with the history that plain decoding would have had; lengths, EOS, stopping criteria, padding,
`num_return_sequences` and the shape of what comes back are those of `generate`. What cannot be honoured is refused by
name (`refusals`). What it does not do: make a processor that is slow fast; it runs once for every verified row.

Processors and criteria must be functions of their arguments. Stop strings: `transformers` (5.24) withholds the
tokenizer from a custom method and refuses `stop_strings` itself; give `StopStringCriteria(tokenizer, [...])` in
`stopping_criteria` instead.
"""

from __future__ import annotations

import copy
import inspect
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import (
    GenerationConfig,
    GenerationMixin,
    LogitsProcessorList,
    PreTrainedModel,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
)
from transformers.generation.logits_process import PrefixConstrainedLogitsProcessor
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria
from transformers.generation.utils import GenerateDecoderOnlyOutput

from draftproof.draft.base import Drafter
from draftproof.draft.model import ModelDrafter
from draftproof.engine import Engine
from draftproof.errors import Unsupported
from draftproof.integrations.refusals import refuse, refuse_padding
from draftproof.load import load_target
from draftproof.registry import DraftContext, make_drafter, make_schedule, make_verifier
from draftproof.result import TokenEvent
from draftproof.sampling.params import SamplingParams
from draftproof.sampling.processors import Processor
from draftproof.target.transformers import TransformersTarget

LOST = ("streamer", "assistant_model", "synced_gpus", "negative_prompt_ids", "negative_prompt_attention_mask")
"""Arguments of `generate` that transformers 5.24 takes and does not hand to a custom method."""


def generate(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    *,
    draft: str | Drafter | PreTrainedModel = "lookup",
    draft_length: int = 4,
    verifier: str = "token",
    schedule: str = "fixed",
    seed: int | None = None,
    **model_kwargs: Any,
) -> torch.Tensor | GenerateDecoderOnlyOutput:
    """A decoding method for `model.generate(custom_generate=generate)`; called by it, not by users.

    input_ids: (batch, length), left-padded, already repeated `num_return_sequences` times. draft: a drafter by name
    (as on the command line), a drafter, or a draft model with the same vocabulary. seed: None takes one from torch's
    generator, so that `torch.manual_seed` repeats an answer. Returns (batch, longest), int64, padded on the right; with
    return_dict_in_generate an output whose only field is `sequences`.

    Raises Unsupported, by name, for what cannot be honoured, and what the engine raises.
    """
    lost = _lost_arguments()
    lost |= {name: model_kwargs.pop(name) for name in LOST if name in model_kwargs}  # if a later version hands it on
    refuse(model, generation_config, logits_processor, lost, model_kwargs)
    mask: torch.Tensor | None = model_kwargs.get("attention_mask")
    refuse_padding(mask, model_kwargs.get("position_ids"), input_ids.shape[1])
    streamer = lost.get("streamer")
    if streamer is not None and len(input_ids) > 1:
        raise Unsupported(f"a streamer for {len(input_ids)} answers at once", "stream one prompt at a time")
    criteria = StoppingCriteriaList(
        c for c in stopping_criteria if not isinstance(c, MaxLengthCriteria | EosTokenCriteria)
    )
    pad = generation_config._pad_token_tensor
    if pad is None and len(criteria) and len(input_ids) > 1:
        raise Unsupported("answers of different lengths without pad_token_id", "set pad_token_id")
    eos = generation_config._eos_token_tensor
    target = TransformersTarget(model, eos_ids=frozenset(() if eos is None else eos.tolist()))

    processors, temperature = _without_temperature(logits_processor, bool(generation_config.do_sample))
    rows = [_Row(ids, None if mask is None else mask[b]) for b, ids in enumerate(input_ids)]
    siblings = max(1, generation_config.num_return_sequences or 1)
    registered: dict[str, Processor] = {}
    if processors:
        registered = {str(b): row.processor(processors, b, siblings) for b, row in enumerate(rows)}
    engine = Engine(
        target,
        drafter=_drafter(draft, target),
        verifier=make_verifier(verifier),
        schedule=make_schedule(schedule, draft_length, target, _runtime(model)),
        processors=registered,
    )
    if seed is None:
        seed = int(torch.randint(2**63 - 1, ()).item()) if generation_config.do_sample else 0
    budget = generation_config.max_length - input_ids.shape[1]
    try:
        by_request = {}
        for b, row in enumerate(rows):
            params = SamplingParams(
                max_tokens=budget, temperature=temperature, seed=seed, processors=[str(b)] if processors else ()
            )
            by_request[engine.add(row.prompt, params, sample=b)] = row
        _decode(engine, by_request, criteria, streamer)
    finally:
        for request in list(engine.live):
            engine.cancel(request)
    if streamer is not None:
        streamer.end()
    longest = max(len(row.answer) for row in rows)
    filler = 0 if pad is None else int(pad)
    answers = torch.tensor([row.answer + [filler] * (longest - len(row.answer)) for row in rows], dtype=torch.long)
    sequences = torch.cat([input_ids, answers.to(input_ids.device)], dim=1)
    return GenerateDecoderOnlyOutput(sequences=sequences) if generation_config.return_dict_in_generate else sequences


class _Row:
    """One row of the batch: its padding, its prompt without it, its answer so far."""

    def __init__(self, ids: torch.Tensor, mask: torch.Tensor | None) -> None:
        padding = 0 if mask is None else int((mask == 0).sum())
        self.padding: list[int] = ids[:padding].tolist()
        self.prompt: list[int] = ids[padding:].tolist()
        self.answer: list[int] = []
        self._device = ids.device

    def processor(self, processors: LogitsProcessorList, index: int, siblings: int) -> Processor:
        """The caller's processors for this row alone, seeing its padded history as `generate` shows it."""
        own = LogitsProcessorList(_for_row(p, index, siblings) for p in processors)

        def process(history: tuple[int, ...], logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
            ids = torch.tensor([[*self.padding, *history]], device=self._device)
            scores = torch.from_numpy(logits.astype(np.float32))[None].to(self._device)
            processed: npt.NDArray[np.float64] = own(ids, scores)[0].double().cpu().numpy()
            return processed

        return process

    def stops(self, criteria: StoppingCriteriaList) -> bool:
        """Whether the caller's criteria end the answer at its newest token."""
        if not len(criteria):
            return False
        ids = torch.tensor([[*self.padding, *self.prompt, *self.answer]], device=self._device)
        return bool(torch.as_tensor(criteria(ids, None)).all())


def _decode(engine: Engine, rows: dict[int, _Row], criteria: StoppingCriteriaList, streamer: Any) -> None:
    """Run rounds until every row has ended; tokens past a criterion's stop are dropped, token by token."""
    while engine.live:
        stopped: set[int] = set()
        for event in engine.round():
            if not isinstance(event, TokenEvent) or event.request in stopped:
                continue
            row = rows[event.request]
            row.answer.append(event.token)
            if streamer is not None:
                streamer.put(torch.tensor([event.token]))
            if row.stops(criteria):
                stopped.add(event.request)
        for request in stopped & engine.live.keys():
            engine.cancel(request)


def _without_temperature(processors: LogitsProcessorList, sampling: bool) -> tuple[LogitsProcessorList, float]:
    """The processors, and the temperature if it comes last and can be left to the engine (0 for argmax)."""
    if not sampling:
        return processors, 0.0
    if len(processors) and type(processors[-1]) is TemperatureLogitsWarper:
        return LogitsProcessorList(processors[:-1]), float(processors[-1].temperature)
    return processors, 1.0


def _for_row(processor: Any, index: int, siblings: int) -> Any:
    """A processor of the batch as one of a single row, where it knows which row is which."""
    if isinstance(processor, PrefixConstrainedLogitsProcessor):
        allowed, prompt = processor._prefix_allowed_tokens_fn, index // siblings
        return PrefixConstrainedLogitsProcessor(lambda _, ids: allowed(prompt, ids), 1)
    if isinstance(processor, RepetitionPenaltyLogitsProcessor) and torch.is_tensor(processor.prompt_ignore_length):
        own = copy.copy(processor)
        own.prompt_ignore_length = processor.prompt_ignore_length[index : index + 1]
        return own
    return processor


def _drafter(draft: str | Drafter | PreTrainedModel, target: TransformersTarget) -> Drafter:
    if isinstance(draft, str):
        return make_drafter(draft, DraftContext("", target, None, load_target))
    if isinstance(draft, PreTrainedModel):
        if draft.training:
            raise Unsupported("a draft model with training=True", "call eval() on it")
        drafter = ModelDrafter(TransformersTarget(draft))
        drafter.check_vocabulary(target)
        return drafter
    return draft


def _runtime(model: PreTrainedModel) -> str:
    """What the target's speed depends on beside its name, for schedules that keep measurements."""
    return f"{model.num_parameters()} {model.dtype} {model.device} {torch.get_num_threads()} threads"


def _lost_arguments() -> dict[str, Any]:
    """What the caller gave `generate` and it kept to itself: without looking, a streamer would be silently ignored
    and an assistant silently dropped.

    Read from the frame of the running `GenerationMixin.generate`; empty if this was called in another way.
    """
    code = inspect.unwrap(GenerationMixin.generate).__code__
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code is code:
            return {name: frame.f_locals.get(name) for name in LOST}
    return {}
