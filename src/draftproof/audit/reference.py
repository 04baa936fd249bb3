"""A reference model beside a server: which ids the server's answer stands for, and what p says of them.

Guarantees: nothing is re-tokenized: sampled text has more than one spelling in tokens, and only the server knows which
it drew. Token texts that several ids share stay sets of ids. An answer that ended by itself gets the end-of-text token
the server does not show, because leaving it out would bias the test. What it does not do: guess; `ServerTrouble` says
why an answer cannot be read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from itertools import takewhile

from draftproof.audit.client import Api, Completion, ServerTrouble
from draftproof.audit.scoring import Answer, target_distributions
from draftproof.dist import Dist
from draftproof.proof.bets import RECENT, Bets
from draftproof.proof.sequential import SequentialTest
from draftproof.sampling.params import SamplingParams
from draftproof.target.base import Target
from draftproof.text import Tokenizer

Reading = tuple[int, ...]
"""The ids one token of an answer may be."""


class Reference:
    """A target and its tokenizer."""

    def __init__(self, target: Target, tokenizer: Tokenizer) -> None:
        self.target = target
        self.tokenizer = tokenizer
        self._ids_of: dict[str, Reading] | None = None

    def prompt_ids(self, prompt: str, api: Api) -> list[int]:
        """What the server should have made of the prompt."""
        if api == "chat":
            return self.tokenizer.chat([{"role": "user", "content": prompt}])
        return self.tokenizer.prompt(prompt)

    def check_prompt(self, prompt: str, api: Api, completion: Completion) -> None:
        """Raise ServerTrouble if the server counts another number of prompt tokens: tokenizer or template differ."""
        counted = (completion.usage or {}).get("prompt_tokens")
        expected = len(self.prompt_ids(prompt, api))
        if counted is not None and counted != expected:
            raise ServerTrouble(
                f"the server counts {counted} prompt tokens, the reference {expected}",
                "another tokenizer or chat template; name the model the server runs",
            )

    def read(self, completion: Completion) -> list[Reading]:
        """The ids behind an answer, token by token, its end included.

        Raises ServerTrouble if the server sends neither ids nor token texts, if a text is none of the vocabulary's,
        or if the answer ended for another reason than its length or its own end.
        """
        if completion.finish not in ("stop", "length"):
            raise ServerTrouble(f"finish reason {completion.finish!r}: the answer was filtered, cut or rewritten")
        if completion.ids is not None:
            readings: list[Reading] = [(i,) for i in completion.ids]
        elif completion.tokens is not None:
            readings = [self._reading(text) for text in completion.tokens]
        elif completion.finish == "stop" and not completion.text:
            readings = []  # it ended at once; there was nothing to send
        else:
            raise ServerTrouble("neither token ids nor token texts are sent", "start the server with log-probabilities")
        outside = [r[0] for r in readings if not 0 <= r[0] < self.target.vocab_size]
        if outside:
            raise ServerTrouble(f"token id {outside[0]} is not in the reference's vocabulary", "another tokenizer")
        ends = self.target.eos_ids
        if completion.finish == "stop" and not (readings and set(readings[-1]) <= ends):
            readings.append(tuple(sorted(ends)))
        return readings

    def _reading(self, text: str) -> Reading:
        if text.startswith("token_id:"):
            return (int(text.removeprefix("token_id:")),)
        if self._ids_of is None:
            ids_of: defaultdict[str, list[int]] = defaultdict(list)
            for i in range(self.target.vocab_size):
                ids_of[self.tokenizer.decode([i], skip_special=False)].append(i)
            self._ids_of = {key: tuple(ids) for key, ids in ids_of.items()}
        if text not in self._ids_of:
            raise ServerTrouble(f"the token {text!r} is not in the reference's vocabulary", "another tokenizer")
        return self._ids_of[text]

    def distributions(self, prompt: Seq[int], readings: Seq[Reading], temperature: float = 1.0) -> Iterator[Dist]:
        """p at every token up to and including the first that is not certain; what follows that has no known past."""
        certain = [r[0] for r in takewhile(lambda r: len(r) == 1, readings)]
        tokens = certain if len(certain) == len(readings) else [*certain, readings[len(certain)][0]]
        answer = Answer(tuple(prompt), tuple(tokens))
        return target_distributions(self.target, answer, SamplingParams(temperature=temperature))

    def feed(self, test: SequentialTest, prompt: Seq[int], readings: Seq[Reading], temperature: float = 1.0) -> None:
        """Put an answer to the test."""
        text = list(prompt)
        for reading, p in zip(readings, self.distributions(prompt, readings, temperature), strict=False):
            bets = Bets.place(p, history=text[-RECENT:], eos_ids=test.eos_ids)
            test.settle(bets, reading if len(reading) > 1 else reading[0])
            text.append(reading[0])
