"""An OpenAI-compatible server in this process, on the table model of `audit_tables`, with faults to choose from."""

from __future__ import annotations

import itertools
import json
from typing import Any

import httpx2
import numpy as np
from audit_tables import SIZE, Markov

from draftproof.audit.client import Client, ServerOptions
from draftproof.audit.reference import Reference
from draftproof.target.table import TableTarget
from draftproof.text import IdTokenizer

EOS = SIZE - 1
URL = "http://fake/v1"


class FakeServer:
    """faults: names; each makes one thing wrong. ids, tokens, usage: whether they are sent."""

    def __init__(self, *faults: str, ids: bool = True, tokens: bool = True, usage: bool = True, seed: int = 0) -> None:
        self.faults = frozenset(faults)
        self.ids, self.tokens, self.usage = ids, tokens, usage
        self.markov = Markov()
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[httpx2.Headers] = []
        self._fresh = itertools.count(10_000 + seed)
        self._failures = itertools.count()

    def client(self, **options: Any) -> Client:
        defaults = {"base_url": URL, "model": "fake", "concurrency": 1}
        return Client(ServerOptions(**{**defaults, **options}), httpx2.MockTransport(self.answer))

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        body = json.loads(request.content)
        self.bodies.append(body)
        self.headers.append(request.headers)
        if "down" in self.faults:
            raise httpx2.ConnectError("connection refused")
        if "dies" in self.faults:
            if next(self._failures):
                raise httpx2.ConnectError("connection refused")
            return httpx2.Response(500, headers={"retry-after": "0"}, text="the engine is dead")
        if "slow" in self.faults:
            raise httpx2.ReadTimeout("too slow")
        if "busy" in self.faults or ("busy once" in self.faults and next(self._failures) == 0):
            return httpx2.Response(429, headers={"retry-after": "0"}, text="busy")
        if "broken" in self.faults:
            return httpx2.Response(500, text=f"trace with {request.headers.get('authorization', '')}")
        if "strict" in self.faults and {"repeat_penalty", "return_token_ids"} & body.keys():
            return httpx2.Response(400, text="unknown field")
        if "no logprobs" in self.faults and "logprobs" in body:
            return httpx2.Response(500, headers={"retry-after": "0"}, text="logits_all is off")
        if "no top_k" in self.faults and body.get("top_k", 0) > 0:
            return httpx2.Response(422, text="top_k is not supported")
        if "not json" in self.faults:
            return httpx2.Response(200, text="<html>")
        chat = request.url.path.endswith("/chat/completions")
        prompt = body["messages"][0]["content"] if chat else body["prompt"]
        answer, logprobs, finish = self._generate([int(w) for w in prompt.split()], body)
        return self._reply(body, chat, prompt, answer, logprobs, finish)

    # -- generation --------------------------------------------------------------------------------------

    def _generate(self, prompt: list[int], body: dict[str, Any]) -> tuple[list[int], list[float], str]:
        seeded = "seed" in body and "seed ignored" not in self.faults
        default = 77 if "unseeded alike" in self.faults else next(self._fresh)
        random = np.random.default_rng(body["seed"] if seeded else default)
        text, logprobs = list(prompt), []
        finish = "length"
        stop = [] if "stop ignored" in self.faults else [int(s) for s in body.get("stop", [])]
        limit = body["max_tokens"] + (3 if "max_tokens ignored" in self.faults else 0)
        while len(text) - len(prompt) < limit:
            row = self.markov.p[text[-2], text[-1]]
            token = self._draw(row, body, random)
            if token in stop:
                finish = "stop"
                break
            text.append(token)
            logprobs.append(float(np.log(row[token])))
            if token == EOS:
                finish = "stop"
                break
        if "filtered" in self.faults:
            finish = "content_filter"
        return text[len(prompt) :], logprobs, finish

    def _draw(self, row: np.ndarray, body: dict[str, Any], random: np.random.Generator) -> int:
        logits = np.log(row)
        for token, bias in body.get("logit_bias", {}).items():
            if "bias ignored" not in self.faults:
                logits[int(token)] += bias
        if "biased" in self.faults:
            logits[int(np.argmax(row))] += 0.7
        temperature = body["temperature"]
        if temperature == 0 or "greedy" in self.faults:
            return int(np.argmax(logits))
        weights = np.exp(logits / temperature)
        keep = np.ones(SIZE, dtype=bool)
        if body.get("top_k", 0) > 0 and "cuts ignored" not in self.faults:
            keep &= weights >= np.sort(weights)[-body["top_k"]]
        if "cuts ignored" not in self.faults:
            keep &= weights >= body.get("min_p", 0) * weights.max()
            if body.get("top_p", 1) < 0.5:
                keep &= weights >= weights.max()
        weights = np.where(keep, weights, 0)
        return int(random.choice(SIZE, p=weights / weights.sum()))

    # -- the answer's form -------------------------------------------------------------------------------

    def _reply(
        self, body: dict[str, Any], chat: bool, prompt: str, answer: list[int], logprobs: list[float], finish: str
    ) -> httpx2.Response:
        shown = answer[:-1] if answer and answer[-1] == EOS else answer  # as servers do: EOS has no text
        if "zero logprobs" in self.faults:
            logprobs = [0.0] * len(logprobs)
        if "shifted logprobs" in self.faults:
            logprobs = [*logprobs[1:], -1.0]
        pieces = [f"{t} " for t in shown]
        count = len(prompt.split()) + (1 if "other tokenizer" in self.faults else 0)
        wrong = 1 if "usage wrong" in self.faults else 0
        usage = {"prompt_tokens": count, "completion_tokens": len(answer)}
        usage["total_tokens"] = count + len(answer) + wrong
        if body.get("stream"):
            pieces = pieces[:-1] if "stream loses" in self.faults else pieces
            return self._events(chat, pieces, shown, logprobs, finish, usage)
        choice: dict[str, Any] = {"finish_reason": finish, "index": 0}
        choice |= {"message": {"content": "".join(pieces)}} if chat else {"text": "".join(pieces)}
        choice |= self._details(body, chat, pieces, shown, logprobs)
        return httpx2.Response(200, json={"choices": [choice], **({"usage": usage} if self.usage else {})})

    def _details(
        self, body: dict[str, Any], chat: bool, pieces: list[str], shown: list[int], logprobs: list[float]
    ) -> dict[str, Any]:
        details: dict[str, Any] = {}
        if self.ids and body.get("return_token_ids"):
            details["token_ids"] = shown
            if "other prompt ids" in self.faults:
                details["prompt_token_ids"] = [1, 0]
        if self.tokens and body.get("logprobs"):
            pairs = list(zip(pieces, logprobs, strict=False))
            content = [{"token": t, "logprob": v} for t, v in pairs]
            lists = {"tokens": [t for t, _ in pairs], "token_logprobs": [v for _, v in pairs]}
            details["logprobs"] = {"content": content} if chat else lists
        return details

    def _events(
        self, chat: bool, pieces: list[str], shown: list[int], logprobs: list[float], finish: str, usage: dict[str, int]
    ) -> httpx2.Response:
        events: list[Any] = []
        for i, piece in enumerate(pieces):
            delta = {"delta": {"content": piece}} if chat else {"text": piece}
            body = {"logprobs": True, "return_token_ids": True}
            details = self._details(body, chat, [piece], [shown[i]], [logprobs[i]])
            events.append({"choices": [{**delta, **details, "finish_reason": None}]})
        events.append({"choices": [{"delta": {}, "finish_reason": finish}]})
        events.append({"choices": [], "usage": usage})
        if "cut stream" in self.faults:
            events = events[: len(events) // 2]
        lines = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
        end = "" if "cut stream" in self.faults else "data: [DONE]\n\n"
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, text=lines + end)


def reference() -> Reference:
    return Reference(TableTarget(Markov().model(), eos_ids=(EOS,)), IdTokenizer(SIZE))
