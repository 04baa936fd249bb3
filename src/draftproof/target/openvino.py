"""The OpenVINO target: a stateful IR on the CPU, several sequences in one infer call, no torch.

Short passes may have graphs of their own, compiled for one number of tokens, beside the one for any number; a pass
takes the narrowest that it fits.

Guarantees: rows of a sequence depend only on its own tokens; whether tokens come one by one, in drafts
of any length, next to other sequences or after rollbacks changes a row by rounding only (about 1e-4 in
logits): keys and values are kept in float32 and products computed in float32. Activations are 8-bit integers if asked
for (`openvino_compile`), each row scaled by itself. The plugin's own defaults (bfloat16, keys and values of 8 bits,
another kernel for single rows) move the same row by 0.3 to 0.6 with the number of rows in the pass, which breaks
"same answer as plain decoding". Rolling back is free. What it does not do: sampling, stopping, GPUs.

Rows handed out belong to the caller and stay valid. A call that raises changes nothing.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from collections.abc import Sequence as Seq
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from draftproof.errors import InvalidValue, Unsupported
from draftproof.models.cache import Progress
from draftproof.target.base import Array, Feed, LogitRows, Rows
from draftproof.target.openvino_compile import (
    LEAST,
    Activations,
    Graph,
    cap_threads,
    check_rows,
    compile_graph,
    narrow_passes,
    read_graph,
)
from draftproof.target.openvino_pages import Pages, Part, Scored
from draftproof.target.openvino_store import WeightFormat, need, prepare

CHUNK = 512
"""Most new tokens of one sequence in one pass: bounds the memory of a long prompt."""

PATIENCE = 100
"""Passes that prompts may take more without a graph for any number of tokens: about what compiling one costs."""

_log = logging.getLogger(__name__)


class OpenVINOTarget:
    """A `draftproof.target.base.Target` around a compiled OpenVINO model."""

    def __init__(
        self,
        graphs: Seq[Graph],
        *,
        name: str,
        context_limit: int | None = None,
        eos_ids: frozenset[int] = frozenset(),
        threads: int = 1,
        least: int = 1,
        widen: Callable[[], Graph] | None = None,
    ) -> None:
        """least: fewest tokens of a pass (`openvino_compile.LEAST`). widen: compiles the graph for any number of
        tokens, where `graphs` has none, once it is worth it; rows must be the same bits in all of them.
        """
        facts = graphs[0].facts
        self.name: str = name
        self.vocab_size: int = facts.vocab_size
        self.context_limit: int | None = context_limit
        self.eos_ids: frozenset[int] = eos_ids
        self.threads: int = threads
        self.narrow: int | None = None if widen is None else max(graph.tokens or 0 for graph in graphs)
        """Tokens of a pass beyond which the graph for any number is needed (`target.base.narrow_tokens`)."""
        self._pages = Pages(graphs, least=least)
        self._widen = widen
        self._patience = PATIENCE
        self._facts = facts
        self._hidden: dict[int, Array] = {}  # (tokens, layers * size) of each sequence's last feed
        self._handles = itertools.count()

    @classmethod
    def load(
        cls,
        model: str | Path,
        *,
        weights: WeightFormat = "file",
        activations: Activations = "float32",
        threads: int | None = None,
        progress: Progress | None = None,
        hidden_layers: tuple[int, ...] = (),
        narrow: tuple[int, ...] | None = None,
    ) -> OpenVINOTarget:
        """Load an IR folder, a GGUF file, an alias, or (with optimum-intel) a Hugging Face folder or Hub id.

        weights: "file" keeps the model's values; "int4", "int8" and "float16" round them. activations: "int8" rounds
        what goes into products as well: faster, and further rows are nearly free. threads: default all CPUs this
        process may use. hidden_layers: layers whose hidden states `score` keeps, counted as in
        `output_hidden_states` (0 is the embedding, the last comes after the final norm). narrow: for passes of up to
        so many tokens compile graphs of their own (each takes the memory of the weights); None is what
        `openvino_compile.narrow_passes` says. Raises InvalidValue, ModelNotFound, ModelFileError, MissingExtra, and
        Unsupported naming what the graph lacks.
        """
        need("openvino")
        count = cap_threads(threads)
        if activations not in LEAST:
            raise InvalidValue(f"activations={activations!r}", f"one of {', '.join(LEAST)}")
        prepared = prepare(model, weights=weights, progress=progress)
        if narrow is not None and not all(LEAST[activations] <= tokens <= CHUNK for tokens in narrow):
            raise InvalidValue(f"narrow={narrow}", f"passes of {LEAST[activations]} to {CHUNK} tokens")
        if narrow is None:
            narrow = narrow_passes(prepared, weights, activations)
        # Rows of 8-bit activations are the same bits in every graph, so that one may be compiled when it is needed.
        later = bool(narrow) and activations == "int8"
        source = read_graph(prepared, hidden_layers)
        with ThreadPoolExecutor(count) as pool:
            graphs = list(
                pool.map(partial(compile_graph, source, count, activations), narrow if later else (*narrow, None))
            )
        target = cls(
            graphs,
            name=prepared.name,
            context_limit=prepared.context_limit,
            eos_ids=prepared.eos_ids,
            threads=count,
            least=LEAST[activations],
            # Read once more by then: a graph that waits would hold the memory of its steps, and of what was joined.
            widen=(lambda: compile_graph(read_graph(prepared, hidden_layers), count, activations)) if later else None,
        )
        if activations != "float32":
            check_rows(target)
        return target

    def open(self) -> int:
        """A new empty sequence."""
        handle = next(self._handles)
        self._pages.open(handle)
        return handle

    def close(self, handle: int) -> None:
        """Free the sequence."""
        self.length(handle)
        self._pages.close(handle)
        self._hidden.pop(handle, None)

    def length(self, handle: int) -> int:
        """Tokens in the sequence's cache."""
        if handle not in self._pages:
            raise InvalidValue(f"sequence {handle}", "a handle from open() that is not closed")
        return self._pages.length(handle)

    def rollback(self, handle: int, length: int) -> None:
        """Forget every token from `length` on; nothing is copied or computed."""
        now = self.length(handle)
        if not 0 <= length <= now:
            raise InvalidValue(f"rollback to {length} of a sequence of {now} tokens", f"0 <= length <= {now}")
        self._pages.rollback(handle, length)

    def hidden(self, handle: int) -> Array:
        """Hidden states of the tokens of the last feed: float32, (hidden_layers, tokens, size), a view.

        Raises Unsupported if no `hidden_layers` were asked for, InvalidValue before the first feed.
        """
        if not self._facts.hidden_layers:
            raise Unsupported("no hidden states are kept", "load the target with hidden_layers=(...)")
        self.length(handle)
        if handle not in self._hidden:
            raise InvalidValue(f"no hidden states of sequence {handle} yet", "score a feed first")
        states = self._hidden[handle]
        return states.reshape(len(states), -1, self._facts.hidden_size).transpose(1, 0, 2)

    def score(self, feeds: Seq[Feed]) -> list[Rows]:
        """One pass over all feeds; of a feed longer than CHUNK all but the end is run before, and feeds that no graph
        takes together run one after another.

        Raises InvalidValue for a handle that is not open or fed twice, an id outside the vocabulary, or
        more tokens than the context limit.
        """
        self._check(feeds)
        if not feeds:
            return []
        lengths = [len(feed.tokens) for feed in feeds]
        if not self._pages.fits(lengths) and self._widen is not None:
            self._widen_if_worth(lengths)
        chunk = CHUNK if self._pages.fits(lengths) else self._pages.most or CHUNK
        before = {feed.handle: self.length(feed.handle) for feed in feeds}
        early: dict[int, list[Scored]] = {}
        last: list[Part] = []
        try:
            for feed in feeds:
                *pieces, end = _pieces(feed, chunk)
                early[feed.handle] = [self._pages.run([piece])[0] for piece in pieces]
                last.append(end)
            together = self._pages.fits([len(part.tokens) for part in last])
            answers = self._pages.run(last) if together else [self._pages.run([part])[0] for part in last]
        except BaseException:
            for handle, length in before.items():
                self._pages.rollback(handle, length)
            raise
        whole = [_joined([*early[feed.handle], end]) for feed, end in zip(feeds, answers, strict=True)]
        for feed, scored in zip(feeds, whole, strict=True):
            if scored.hidden is not None:
                self._hidden[feed.handle] = scored.hidden
        return [LogitRows(scored.rows) for scored in whole]

    def _widen_if_worth(self, lengths: Seq[int]) -> None:
        """Compile the graph for any number of tokens if narrow passes of prompts have taken as long, or for a batch."""
        assert self._widen is not None
        assert self._pages.most is not None
        self._patience -= sum(-(-length // self._pages.most) for length in lengths) - 1
        if len(lengths) == 1 and self._patience > 0:
            return
        wide, self._widen = self._widen(), None
        self._pages.add(wide)
        try:
            check_rows(self)
        except Unsupported as error:
            self._pages.drop(wide)
            _log.warning("%s; passes stay narrow, so that long prompts and batches are slow", error)

    def _check(self, feeds: Seq[Feed]) -> None:
        if len({feed.handle for feed in feeds}) != len(feeds):
            raise InvalidValue("one sequence is fed twice in a pass", "one feed per handle")
        for feed in feeds:
            length = self.length(feed.handle) + len(feed.tokens)
            if self.context_limit is not None and length > self.context_limit:
                raise InvalidValue(f"{length} tokens", f"{self.name} takes at most {self.context_limit}")
            if min(feed.tokens) < 0 or max(feed.tokens) >= self.vocab_size:
                bad = next(t for t in feed.tokens if not 0 <= t < self.vocab_size)
                raise InvalidValue(f"token id {bad}", f"ids of {self.name} are 0..{self.vocab_size - 1}")


def _pieces(feed: Feed, chunk: int) -> list[Part]:
    """A feed cut into parts of at most `chunk` tokens, with the wanted rows of each."""
    total = len(feed.tokens)
    if total <= chunk:
        return [Part(feed.handle, feed.tokens, feed.rows, feed.width)]
    first_row = total - feed.rows
    cuts = [(start, min(start + chunk, total)) for start in range(0, total, chunk)]
    return [Part(feed.handle, feed.tokens[a:b], max(0, b - max(a, first_row))) for a, b in cuts]


def _joined(pieces: Seq[Scored]) -> Scored:
    """A feed's pieces as one."""
    if len(pieces) == 1:
        return pieces[0]
    states = [piece.hidden for piece in pieces if piece.hidden is not None]
    return Scored(np.concatenate([piece.rows for piece in pieces]), np.concatenate(states) if states else None)
