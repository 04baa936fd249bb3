"""From the target's row to p, and from a draft model's row to q: one pipeline for both.

The order, which is the one vLLM documents for its V1 sampler (its grammar mask comes before the sampler too):

    grammar; allowed ids; banned ids and banned words; min tokens; logit bias; custom processors;
    repetition, frequency, presence penalty; [temperature 0: argmax]; temperature; min-p; top-k; top-p

Guarantees: row i of a block is processed with the history plain decoding would have had: prompt, committed tokens,
and drafted tokens before i, each once. Probabilities are float64 and exactly 0 outside the support; on exact rows they
stay Fractions unless a bias, a processor, a penalty or a temperature other than 0 and 1 makes them irrational, which
turns the row into float64 log-probabilities first. What it does not do: stop rules; see `sequence`.

Dead ends. Where no token is left, `DeadEnd` is raised: whether a prefix is dead depends on the prefix alone, so an
answer may be ended there, whatever was drafted beyond it, without touching the law of what came before. Whoever
verifies a block may put any distribution in a dead row's place, as long as no token from that row on is emitted.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from collections.abc import Sequence as Seq

import numpy as np

from draftproof.dist import Dist
from draftproof.errors import DraftproofError, InvalidValue, Unsupported
from draftproof.sampling import processors as custom
from draftproof.sampling.constraint import Cursor, TokenConstraint
from draftproof.sampling.grammar import Grammar
from draftproof.sampling.masks import HardMasks, in_vocabulary
from draftproof.sampling.params import SamplingParams
from draftproof.sampling.penalties import Penalties
from draftproof.sampling.processors import Processor
from draftproof.sampling.row import WorkingRow
from draftproof.sampling.scores import Scores
from draftproof.sampling.truncation import distribution
from draftproof.target.base import Rows
from draftproof.text import Tokenizer


class DeadEnd(DraftproofError):
    """No token is possible in a row: masks and grammar, or they and the model's zeros, rule out every one."""


class Controls:
    """The sampling controls of one request, with the state they need.

    prompt: its ids (the repetition penalty looks at them). eos_ids: the model's own; ignored for min_tokens if the
    request ignores them. tokenizer: for words and grammars given as text. processors: those the engine's user has
    registered. Raises InvalidValue for what cannot be: ids outside the vocabulary, a text that is no grammar, controls
    that leave no first token; UnknownName for a processor; MissingExtra without llguidance.

    Copies share what never changes; a copy and its original do not see each other's commits.
    """

    __slots__ = (
        "_answer",
        "_bias",
        "_cursor",
        "_free",
        "_masks",
        "_penalties",
        "_processors",
        "_prompt",
        "params",
        "vocab_size",
    )

    def __init__(
        self,
        params: SamplingParams,
        vocab_size: int,
        *,
        prompt: Seq[int] = (),
        eos_ids: frozenset[int] = frozenset(),
        tokenizer: Tokenizer | None = None,
        processors: Mapping[str, Processor] | None = None,
    ) -> None:
        self.params = params
        self.vocab_size = vocab_size
        self._prompt = tuple(prompt)
        self._answer: list[int] = []
        end_ids = params.stop_ids if params.ignore_eos else params.stop_ids | eos_ids
        self._masks = HardMasks(params, vocab_size, end_ids, tokenizer)
        self._penalties = Penalties(params, prompt)
        self._processors = custom.chosen(params.processors, processors or {})
        bias = dict(params.logit_bias)
        in_vocabulary("logit_bias", bias, vocab_size)
        self._bias = np.array(list(bias), dtype=np.int64), np.array(list(bias.values()), dtype=np.float64)
        constraint = _constraint(params, eos_ids, tokenizer)
        self._cursor = None if constraint is None else Cursor(constraint.start(vocab_size, eos_ids), eos_ids)
        # Whether every row stays what the model said, up to temperature and truncation.
        self._free = (
            self._cursor is None
            and self._masks.never
            and not (len(self._bias[0]) or self._processors or self._penalties.active)
        )
        if not self._masks.some(None if self._cursor is None else self._cursor.mask(())):
            raise InvalidValue("the controls leave no first token", "loosen allowed, banned, min_tokens or the grammar")

    def __deepcopy__(self, memo: dict[int, object]) -> Controls:
        twin = copy.copy(self)
        twin._answer = list(self._answer)
        twin._penalties = copy.deepcopy(self._penalties, memo)
        twin._cursor = copy.deepcopy(self._cursor, memo)
        return twin

    @property
    def narrow(self) -> bool:
        """Whether a grammar or a list of allowed ids may leave few tokens in a row."""
        return self._cursor is not None or self._masks.allowed is not None

    def distribution(
        self,
        rows: Rows,
        row: int,
        drafted: Seq[int],
        temperature: float | None = None,
        *,
        peak: int | None = None,
    ) -> Dist:
        """p (or q) from one row.

        rows: logits or probabilities, shape (rows, vocab). drafted: the drafted tokens before the row. temperature
        overrides the request's, for drafters with their own. peak: where the row's largest value lies, the first of
        equals, if that is known. Raises DeadEnd if no token is possible, BadLogits for NaN or +inf.
        """
        params = self.params
        t = params.temperature if temperature is None else temperature
        working = self._controlled(rows, row, drafted, float_log=t not in (0, 1), peak=peak)
        if t == 0:
            return Dist.point(working.token_at(working.peak()), self.vocab_size)
        return distribution(working, temperature=t, min_p=params.min_p, top_k=params.top_k, top_p=params.top_p)

    def scores(self, rows: Rows, row: int, drafted: Seq[int], *, raw: bool) -> Scores:
        """Log-probabilities of one row.

        raw: the model's own, before any control. Otherwise those of `distribution`, impossible outside its support; at
        temperature 0, where that is a single token, those of the row its argmax was taken of.
        """
        if raw:
            return Scores.of_logits(WorkingRow(rows, row, log=True))
        if self.params.temperature == 0:
            return Scores.of_logits(self._controlled(rows, row, drafted, float_log=True))
        return Scores.of_dist(self.distribution(rows, row, drafted))

    def allowed_prefix(self, drafted: Seq[int]) -> int:
        """How many of the drafted tokens the masks and the grammar allow, each after those before it.

        Cutting a proposal there is exact where the first token cut is a point mass (its q is None): it is a function
        of the tokens before it, so cutting is a rule for the draft length that looks at nothing but those, and such
        rules are exact (algorithms.md, section 7); the token itself had p = 0 and only cost a row. A token that was
        sampled is not cut: it was dropped for what it turned out to be, and the tokens left would be too likely.
        There the masks are part of q, or p = 0 rejects it and the residual is drawn from.
        """
        allowed = len(drafted) if self._cursor is None else self._cursor.reach(tuple(drafted))
        for i in range(allowed):
            if not self._masks.permits(drafted[i], self._answer, drafted[:i]):
                return i
        return allowed

    def commit(self, token: int) -> None:
        """A token was added to the answer."""
        self._answer.append(token)
        if self._penalties.active:
            self._penalties.commit(token)
        if self._cursor is not None:
            self._cursor.commit(token)

    def _controlled(
        self, rows: Rows, row: int, drafted: Seq[int], *, float_log: bool, peak: int | None = None
    ) -> WorkingRow:
        """The row after everything that can change its argmax. `float_log`: as logits even if it comes as a table."""
        if self._free:
            return _possible(WorkingRow(rows, row, log=float_log, peak=peak))
        return _possible(self._changed(rows, row, drafted, float_log=float_log, peak=peak))

    def _changed(self, rows: Rows, row: int, drafted: Seq[int], *, float_log: bool, peak: int | None) -> WorkingRow:
        """The row after the controls of a request that has some."""
        biased = len(self._bias[0]) > 0
        irrational = biased or bool(self._processors) or self._penalties.active
        working = WorkingRow(rows, row, log=float_log or irrational, peak=peak)
        mask = None if self._cursor is None else self._cursor.mask(tuple(drafted))
        if mask is not None:  # without one the row cannot be reached, and any row will do
            working.restrict(mask)
        if not self._masks.never:
            if self._masks.allowed is not None:
                working.restrict(self._masks.allowed)
            working.forbid(self._masks.banned)
            working.forbid(np.array(sorted(self._masks.forbidden(self._answer, drafted)), dtype=np.int64))
        if biased:
            at, known = working.positions(self._bias[0])
            with np.errstate(over="ignore"):  # `top` below looks
                working.writable()[at] += self._bias[1][known]
        for name, processor in self._processors:
            history = (*self._prompt, *self._answer, *drafted)
            logits = custom.run(name, processor, history, working.dense())
            working.writable()[:] = logits if working.ids is None else logits[working.ids]
        if self._penalties.active:
            self._penalties.apply(working, drafted)
        return working


def _possible(working: WorkingRow) -> WorkingRow:
    """The row itself; DeadEnd if no token is left in it."""
    if not working.top() > (-np.inf if working.log else 0):
        raise DeadEnd("no token is possible here", "loosen the controls or the grammar")
    return working


def _constraint(params: SamplingParams, eos_ids: frozenset[int], tokenizer: Tokenizer | None) -> TokenConstraint | None:
    asked = params.constraint
    if asked is None:
        return None
    if not eos_ids:
        raise Unsupported("a grammar on a model without EOS ids", "a grammar ends its answers at EOS")
    if isinstance(asked, TokenConstraint):
        return asked
    kind, text = asked
    if tokenizer is None:
        raise InvalidValue(f"{kind} without a tokenizer", "build the engine with one")
    return Grammar(kind, text, tokenizer)
