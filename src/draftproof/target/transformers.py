"""The Hugging Face target: any causal language model of `transformers` whose layers only attend backwards.

Guarantees: `score` extends several sequences of different lengths by different numbers of tokens in one
forward pass and applies the output head to the wanted rows only; after `rollback` every row equals that
of a fresh prefill up to rounding, also across the edge of a sliding window; a call that raises leaves
every sequence as it was. Rows cover the tokenizer's vocabulary: rows of a padded output head beyond it
are cut off, so their ids are impossible. What it does not do: sampling, stopping, or models that cannot
roll back (refused by name, see `architecture`).

More than WIDE new tokens (a prompt) are scored alone and in pieces of CHUNK, so that memory stays
bounded and short feeds are not padded to a long one. A model that does not take per-sequence masks
(found out by comparing one small padded pass with the same work done alone) is scored one sequence at
a time: correct, slower, and told by `one_pass`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from draftproof.errors import BadLogits, InvalidValue, MissingExtra, ModelFileError, Unsupported
from draftproof.models.store import resolve
from draftproof.models.tokenizer import FileTokenizer, eos_ids
from draftproof.target.base import Array, Feed, LogitRows, Rows, check_logits

try:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
    from transformers.utils import logging as hf_logging
except ImportError as error:
    raise MissingExtra(f"Hugging Face models need {error.name}", "pip install 'draftproof[transformers]'") from error

from draftproof.target.architecture import Architecture, refuse_config
from draftproof.target.kv import KVStore, Pass

CHUNK = 512
"""Most new tokens of one sequence in one forward pass."""
WIDE = 64
"""Most new tokens of a feed that shares its forward pass with others."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "auto": "auto"}


@dataclass(slots=True)
class _Open:
    slot: int
    length: int
    hidden: Array | None = None


@dataclass(frozen=True, slots=True)
class _Piece:
    """Part of a feed that one forward pass does: tokens from `start` on, the last `rows` wanted (maybe 0)."""

    sequence: _Open
    start: int
    tokens: list[int]
    rows: int


@dataclass(frozen=True, slots=True)
class _Scored:
    """What came out for a piece: logits (rows, vocab), and hidden states (layers, tokens, size) if asked for."""

    logits: Array
    hidden: Array | None


class TransformersTarget:
    """A `draftproof.target.base.Target` around a loaded `transformers` model.

    vocab_size: how many ids the tokenizer has (default: all of the output head). eos_ids: ids that end an
    answer (default: the model's generation config). hidden_layers: layers whose hidden states `score`
    keeps, counted as in `output_hidden_states` (0 is the embedding, i the output of layer i).
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        name: str | None = None,
        vocab_size: int | None = None,
        eos_ids: frozenset[int] | None = None,
        hidden_layers: tuple[int, ...] = (),
    ) -> None:
        self.name: str = name or model.config.name_or_path or type(model).__name__
        self._is = Architecture.of(model, self.name)
        self._model = model.eval()
        head = model.get_output_embeddings()
        rows = int(head.weight.shape[0]) if head is not None else int(model.config.get_text_config().vocab_size)
        self.vocab_size: int = rows if vocab_size is None else min(rows, vocab_size)
        self.context_limit: int | None = self._is.context_limit
        self.eos_ids: frozenset[int] = _eos_of(model) if eos_ids is None else eos_ids
        self._hidden_layers = hidden_layers
        self._device = model.get_input_embeddings().weight.device
        self._dtype = model.get_input_embeddings().weight.dtype
        self._kv = KVStore(self._is.shared)
        self._open: dict[int, _Open] = {}
        self._handles = itertools.count()
        self._one_pass: bool | None = None if self._is.masks else False

    @classmethod
    def load(
        cls,
        path_or_id: str | Path,
        *,
        dtype: str = "float32",
        device: str = "cpu",
        trust_remote_code: bool = False,
        allow_pickle: bool = False,
        threads: int | None = None,
        hidden_layers: tuple[int, ...] = (),
    ) -> TransformersTarget:
        """Load a model by alias, folder, GGUF file or Hub id (see `models.store.resolve`).

        dtype: float32, bfloat16, float16 or auto (the checkpoint's). threads: torch's thread count, which
        is one per process. trust_remote_code runs Python code from the checkpoint, allow_pickle reads
        weights in a format that can run code; both off by default. Raises InvalidValue, ModelNotFound,
        ModelFileError, MissingExtra, Unsupported.
        """
        if dtype not in DTYPES:
            raise InvalidValue(f"dtype={dtype!r}", f"one of {', '.join(DTYPES)}")
        if threads is not None:
            if threads < 1:
                raise InvalidValue(f"threads={threads}", "at least 1")
            torch.set_num_threads(threads)
        found = resolve(str(path_or_id), allow_pickle=allow_pickle)
        bars = hf_logging.is_progress_bar_enabled()
        hf_logging.disable_progress_bar()  # the caller shows its own
        try:
            config = AutoConfig.from_pretrained(found.path, trust_remote_code=trust_remote_code)
            refuse_config(config, found.name)
            model = AutoModelForCausalLM.from_pretrained(
                found.path,
                config=config,
                dtype=DTYPES[dtype],
                trust_remote_code=trust_remote_code,
                use_safetensors=None if allow_pickle else True,
            ).to(device)
        except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
            if isinstance(error, Unsupported):
                raise
            raise ModelFileError(
                f"cannot load {found.name}: {(str(error).strip().splitlines() or [type(error).__name__])[0]}",
                "check files, device and memory; a checkpoint with its own code needs trust_remote_code=True",
            ) from error
        finally:
            if bars:
                hf_logging.enable_progress_bar()
        vocabulary = FileTokenizer(found.path).vocab_size if (found.path / "tokenizer.json").is_file() else None
        return cls(
            model, name=found.name, vocab_size=vocabulary, eos_ids=eos_ids(found.path), hidden_layers=hidden_layers
        )

    # -- sequences ---------------------------------------------------------------------------------------

    def open(self) -> int:
        """A new empty sequence."""
        handle = next(self._handles)
        self._open[handle] = _Open(self._kv.acquire(), 0)
        return handle

    def close(self, handle: int) -> None:
        """Free the sequence's slot."""
        self._kv.release(self._sequence(handle).slot)
        del self._open[handle]

    def length(self, handle: int) -> int:
        """How many tokens the sequence's cache holds."""
        return self._sequence(handle).length

    def rollback(self, handle: int, length: int) -> None:
        """Forget every token from `length` on. Raises InvalidValue outside 0..self.length(handle)."""
        sequence = self._sequence(handle)
        if not 0 <= length <= sequence.length:
            raise InvalidValue(f"rollback to {length}", f"0 to {sequence.length}")
        sequence.length = length

    def hidden(self, handle: int) -> Array:
        """Hidden states of the tokens of the last feed: float32, (hidden_layers, tokens, size).

        Raises Unsupported if no `hidden_layers` were asked for, InvalidValue before the first feed.
        """
        if not self._hidden_layers:
            raise Unsupported("no hidden states are kept", "construct the target with hidden_layers=(...)")
        states = self._sequence(handle).hidden
        if states is None:
            raise InvalidValue(f"no hidden states of sequence {handle} yet", "score a feed first")
        return states

    def _sequence(self, handle: int) -> _Open:
        if handle not in self._open:
            raise InvalidValue(f"sequence {handle} is not open", "use a handle from open() that was not closed")
        return self._open[handle]

    # -- scoring -----------------------------------------------------------------------------------------

    @property
    def one_pass(self) -> bool | None:
        """Whether several sequences share a forward pass; None until the first time they could."""
        return self._one_pass

    @torch.inference_mode()
    def score(self, feeds: Seq[Feed]) -> list[Rows]:
        """One pass over all feeds; `LogitRows` of float32, shape (feed.rows, vocab_size), in order.

        Raises InvalidValue for an unknown or repeated handle, an id outside the vocabulary or a sequence
        beyond the context; BadLogits, naming position and row, for NaN, +inf or nothing finite.
        """
        pieces = [self._piece(feed) for feed in feeds]
        if len({feed.handle for feed in feeds}) != len(feeds):
            raise InvalidValue("a sequence occurs twice in one pass", "give each handle once")
        together = [i for i, piece in enumerate(pieces) if len(piece.tokens) <= WIDE]
        if len(together) > 1 and self._one_pass is None:
            self._one_pass = self._masks_hold()
        if not self._one_pass:
            together = together[:1]
        scored: dict[int, _Scored] = {}
        for i in sorted(set(range(len(pieces))) - set(together)):
            scored[i] = self._alone(pieces[i])
        if together:
            scored |= zip(together, self._forward([pieces[i] for i in together]), strict=True)
        for i, piece in enumerate(pieces):
            piece.sequence.length = piece.start + len(piece.tokens)
            piece.sequence.hidden = scored[i].hidden
        return [LogitRows(scored[i].logits) for i in range(len(pieces))]

    def _piece(self, feed: Feed) -> _Piece:
        sequence = self._sequence(feed.handle)
        tokens = [int(token) for token in feed.tokens]
        if min(tokens) < 0 or max(tokens) >= self.vocab_size:
            raise InvalidValue(f"token {min(tokens)}..{max(tokens)}", f"ids are 0 to {self.vocab_size - 1}")
        if self.context_limit is not None and sequence.length + len(tokens) > self.context_limit:
            raise InvalidValue(
                f"{sequence.length + len(tokens)} tokens in a context of {self.context_limit}", "shorten the prompt"
            )
        return _Piece(sequence, sequence.length, tokens, feed.rows)

    def _alone(self, piece: _Piece) -> _Scored:
        """A feed by itself, in chunks."""
        done: list[_Scored] = []
        first_row = len(piece.tokens) - piece.rows
        for at in range(0, len(piece.tokens), CHUNK):
            part = piece.tokens[at : at + CHUNK]
            rows = min(len(part), max(0, at + len(part) - first_row))
            done += self._forward([_Piece(piece.sequence, piece.start + at, part, rows)])
        if len(done) == 1:
            return done[0]
        hidden = [scored.hidden for scored in done if scored.hidden is not None]
        logits = [scored.logits for scored in done if len(scored.logits)]
        return _Scored(
            logits[0] if len(logits) == 1 else np.concatenate(logits),
            np.concatenate(hidden, axis=1) if hidden else None,
        )

    def _forward(self, pieces: list[_Piece]) -> list[_Scored]:
        """One forward pass of the model over the pieces; results in their order."""
        order = sorted(range(len(pieces)), key=lambda i: pieces[i].sequence.slot)
        batch = [pieces[i] for i in order]
        counts = [len(piece.tokens) for piece in batch]
        now = Pass([piece.sequence.slot for piece in batch], [piece.start for piece in batch], counts, self._device)
        arguments: dict[str, Any] = {self._is.cache_argument: self._kv.begin(now), "use_cache": True}
        padded = [piece.tokens + [0] * (now.width - len(piece.tokens)) for piece in batch]
        keep = [range(count - piece.rows, count) for count, piece in zip(counts, batch, strict=True)]
        # A slice of the last positions is all that every head understands; at least one is always taken.
        last = max(1, now.width - min(rows.start for rows in keep))
        if len(batch) == 1:
            kept: int | torch.Tensor = last
        else:
            if self._is.positions:
                arguments["position_ids"] = now.positions()
            arguments["attention_mask"] = self._masks(now)
            kept = self._row_mask(keep, now.width) if self._is.ragged_head else last
        if self._is.head_argument:
            arguments["logits_to_keep"] = kept
        if self._hidden_layers:
            arguments["output_hidden_states"] = True
        out = self._model(input_ids=torch.tensor(padded, device=self._device), **arguments)
        if self._kv.updates == 0:
            raise Unsupported(
                f"{self.name} does not use the cache it is given, so it cannot roll back",
                "use a model whose code is part of transformers",
            )
        logits = out.logits
        if logits.dim() == 3:
            # Positions of the (1-D or 2-D) slice the head was applied to.
            offset = now.width - logits.shape[1]
            logits = torch.cat([logits[b, rows.start - offset : rows.stop - offset] for b, rows in enumerate(keep)])
        values = logits[:, : self.vocab_size]
        self._check(values, batch)
        array: Array = values.float().cpu().numpy()
        split = np.split(array, np.cumsum([piece.rows for piece in batch])[:-1])
        states = [self._states(out, b, count) for b, count in enumerate(counts)]
        results = dict(zip(order, map(_Scored, split, states), strict=True))
        return [results[i] for i in range(len(pieces))]

    def _masks(self, now: Pass) -> torch.Tensor | dict[str, torch.Tensor]:
        assert self._is.masks is not None
        masks = {kind: now.mask(window) for kind, window in self._is.masks.items()}
        if self._is.additive:
            lowest = torch.full((), torch.finfo(self._dtype).min, dtype=self._dtype, device=self._device)
            masks = {kind: torch.where(mask, torch.zeros_like(lowest), lowest) for kind, mask in masks.items()}
        return masks.get("", masks)

    def _row_mask(self, keep: list[range], width: int) -> torch.Tensor:
        mask = torch.zeros((len(keep), width), dtype=torch.bool)
        for b, rows in enumerate(keep):
            mask[b, rows.start : rows.stop] = True
        return mask.to(self._device)

    def _check(self, values: torch.Tensor, batch: list[_Piece]) -> None:
        """The maximum of a row is NaN, +inf or -inf exactly when the row cannot be a distribution."""
        if not values.shape[0] or bool(torch.isfinite(values.amax(dim=-1)).all()):
            return
        for piece in batch:
            self._kv.scrub(piece.sequence.slot, piece.sequence.length)
        row = 0
        for piece in batch:
            position = piece.start + len(piece.tokens) - piece.rows
            for j in range(piece.rows):
                check_logits(values[row].float().cpu().numpy(), position=position + j + 1, row=j, who=self.name)
                row += 1

    def _states(self, out: Any, b: int, count: int) -> Array | None:
        if not self._hidden_layers:
            return None
        states: Array = (
            torch.stack([out.hidden_states[i][b, :count] for i in self._hidden_layers]).float().cpu().numpy()
        )
        return states

    def _masks_hold(self) -> bool:
        """Whether a padded pass of two short sequences gives what each gives alone."""
        first, second = _Open(self._kv.acquire(), 0), _Open(self._kv.acquire(), 0)
        ids = [i % self.vocab_size for i in (3, 5, 7, 11, 13)]
        work = [_Piece(first, 4, ids[:1], 1), _Piece(second, 1, ids[:3], 3)]
        try:
            self._forward([_Piece(first, 0, ids[:4], 1)])
            self._forward([_Piece(second, 0, ids[4:], 1)])
            alone = [self._forward([piece])[0].logits for piece in work]
            both = [scored.logits for scored in self._forward(work)]
        except (RuntimeError, TypeError, ValueError, KeyError, IndexError, AttributeError, BadLogits):
            return False  # models refuse masks they do not know in any of these ways
        finally:
            self._kv.release(first.slot)
            self._kv.release(second.slot)
        # A mask that is ignored or misread changes rows by their own size, rounding by far less.
        return all(
            float(np.abs(x - y).max()) <= 0.05 * float(np.abs(y).max()) for x, y in zip(both, alone, strict=True)
        )


def _eos_of(model: PreTrainedModel) -> frozenset[int]:
    for config in (getattr(model, "generation_config", None), model.config.get_text_config()):
        value = getattr(config, "eos_token_id", None)
        if value is not None:
            return frozenset([value] if isinstance(value, int) else value)
    return frozenset()
