"""A reference model beside a server: which ids the server's answer stands for, and what p says of them.

Guarantees: nothing is re-tokenized: sampled text has more than one spelling in tokens, and only the server knows which
it drew. Token texts that several ids share stay sets of ids, and so do ids that servers write in different ways: bytes
of an unfinished character as U+FFFD or not at all, special tokens by name or not at all. Each id is in one such set, so
that reading an answer is a function of its ids, whatever the server's way. An answer that ended by itself gets the
end-of-text token the server does not show, because leaving it out would bias the test. What it does not do: guess;
`ServerTrouble` says why an answer cannot be read.
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
BY_ID = "token_id:"  # how vLLM writes a token where it is asked for ids in place of texts


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
        """Raise ServerTrouble if the server shows other prompt ids, or counts another number: tokenizer or template."""
        remedy = "another tokenizer or chat template; name the model the server runs"
        expected = self.prompt_ids(prompt, api)
        counted = (completion.usage or {}).get("prompt_tokens")
        if counted is not None and counted != len(expected):
            raise ServerTrouble(f"the server counts {counted} prompt tokens, the reference {len(expected)}", remedy)
        if completion.prompt_ids is not None and list(completion.prompt_ids) != expected:
            raise ServerTrouble("the server's prompt ids are not the reference's", remedy)

    def read(self, completion: Completion) -> list[Reading]:
        """The ids behind an answer, token by token, its end included.

        Raises ServerTrouble if the server sends neither ids nor token texts, shows fewer tokens than it counts, if a
        text is none of the vocabulary's, or if the answer ended for another reason than its length or its own end.
        """
        if completion.finish not in ("stop", "length"):
            raise ServerTrouble(f"finish reason {completion.finish!r}: the answer was filtered, cut or rewritten")
        ended = completion.finish == "stop"
        end: Reading = tuple(sorted(self.target.eos_ids))
        if completion.ids is not None:
            readings: list[Reading] = [(i,) for i in completion.ids]
        elif completion.tokens is not None:
            readings = [self._reading(text) for text in completion.tokens]
            if end and not any(text.startswith(BY_ID) for text in completion.tokens):
                end = self._reading("")  # the set that the end would be in if it were shown
        elif ended and not completion.text:
            readings = []  # it ended at once; there was nothing to send
        else:
            raise ServerTrouble("neither token ids nor token texts are sent", "start the server with log-probabilities")
        outside = [r[0] for r in readings if not 0 <= r[0] < self.target.vocab_size]
        if outside:
            raise ServerTrouble(f"token id {outside[0]} is not in the reference's vocabulary", "another tokenizer")
        self._check_count(completion, len(readings))
        if ended and not (readings and set(readings[-1]) <= set(end)):
            if not end:
                raise ServerTrouble("the answer ended by itself, and the reference knows no end-of-text token")
            readings.append(end)
        return readings

    def _check_count(self, completion: Completion, shown: int) -> None:
        """A token that is counted and not shown changes what later ones were drawn from; only the end may be one."""
        counted = (completion.usage or {}).get("completion_tokens")
        hidden = 0 if counted is None else counted - shown
        if hidden != 0 and not (hidden == 1 and completion.finish == "stop"):
            raise ServerTrouble(f"the server counts {counted} tokens of an answer and shows {shown}")

    def _reading(self, text: str) -> Reading:
        if text.startswith(BY_ID):
            return (int(text.removeprefix(BY_ID)),)
        if self._ids_of is None:
            self._ids_of = self._classes()
        if text not in self._ids_of:
            raise ServerTrouble(f"the token {text!r} is not in the reference's vocabulary", "another tokenizer")
        return self._ids_of[text]

    def _classes(self) -> dict[str, Reading]:
        """The ids behind each text. Ids that some server would write with one text are together under all of theirs."""
        above: dict[str, str] = {}
        written: list[str] = []

        def root(text: str) -> str:
            while above[text] != text:
                text = above[text]
            return text

        for i in range(self.target.vocab_size):
            text = self.tokenizer.decode([i], skip_special=False)
            written.append(text)
            texts = {text, text.replace("\ufffd", ""), self.tokenizer.decode([i])}
            if i in self.target.eos_ids:
                texts.add("")
            for t in texts:
                above.setdefault(t, t)
            for t in texts:
                above[root(t)] = root(min(texts))
        ids: defaultdict[str, list[int]] = defaultdict(list)
        for i, text in enumerate(written):
            ids[root(text)].append(i)
        return {text: tuple(ids[root(text)]) for text in above}

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
