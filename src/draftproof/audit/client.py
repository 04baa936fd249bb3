"""A client of OpenAI-compatible servers, as careful as an audit has to be.

Guarantees: requests, their time and their number are bounded; at most ATTEMPTS tries, only for 429 and 5xx, with a
pause that the server may name; whatever goes wrong is a `ServerTrouble` that says what, so that the audit can say
"cannot tell" and keep what it has. The key comes from the environment, and is neither printed nor kept elsewhere.
What it does not do: guess; what an answer does not contain is None.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Any, Literal

from draftproof.errors import DraftproofError, InvalidValue, MissingExtra

try:
    import httpx2
except ImportError as error:
    raise MissingExtra("auditing a server needs httpx2", "pip install httpx2") from error

ATTEMPTS = 3
LONGEST_PAUSE = 10.0  # seconds, whatever the server asks for
BODY = 300  # characters of an error answer that are repeated

Api = Literal["completions", "chat"]
Json = dict[str, Any]


class ServerTrouble(DraftproofError):
    """A server that is down, slow, refuses, or answers what cannot be read."""


class Refused(ServerTrouble):
    """The server answered 4xx: it does not do this request. status: the code."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(f"refused with {status}: {message}")


class Failed(ServerTrouble):
    """The server answered 5xx, every time it was asked."""


class LimitReached(ServerTrouble):
    """The audit's own limit of requests or seconds; nothing is wrong with the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """How to talk to a server.

    base_url: up to and including /v1. model: its name there. api: completions or chat. stream: read answers as events.
    headers: sent with every request. key_env: the environment variable that holds the key, if any. timeout: seconds
    for one request. concurrency: requests at a time. requests, seconds: the most for the whole audit.
    """

    base_url: str
    model: str
    api: Api = "completions"
    stream: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    key_env: str = "OPENAI_API_KEY"
    timeout: float = 60.0
    concurrency: int = 4
    requests: int = 5000
    seconds: float = 3600.0

    def __post_init__(self) -> None:
        if not self.base_url.startswith(("http://", "https://")):
            raise InvalidValue(f"base_url={self.base_url!r}", "starts with http:// or https://, usually ends with /v1")
        if self.api not in ("completions", "chat"):
            raise InvalidValue(f"api={self.api!r}", "completions or chat")
        for name in ("timeout", "concurrency", "requests", "seconds"):
            if not getattr(self, name) > 0:
                raise InvalidValue(f"{name}={getattr(self, name)}", "above 0")


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer. What the server did not send is None.

    tokens: their texts; ids: their ids; logprobs: natural logarithms, one for each token. finish: the finish reason.
    usage: prompt_tokens, completion_tokens, total_tokens. prompt_ids: what the server made of the prompt.
    """

    text: str
    tokens: Seq[str] | None = None
    ids: Seq[int] | None = None
    logprobs: Seq[float] | None = None
    finish: str | None = None
    usage: Mapping[str, int] | None = None
    prompt_ids: Seq[int] | None = None


class Client:
    """Asks for completions. transport: of `httpx2`, for tests."""

    def __init__(self, options: ServerOptions, transport: httpx2.BaseTransport | None = None) -> None:
        self.options = options
        headers = dict(options.headers)
        if key := os.environ.get(options.key_env):
            headers.setdefault("Authorization", f"Bearer {key}")
        self._secrets = [s for s in (key, *options.headers.values()) if s]
        self._http = httpx2.Client(headers=headers, timeout=options.timeout, transport=transport)
        self._started = monotonic()
        self.asked = 0

    def close(self) -> None:
        """End all connections."""
        self._http.close()

    def complete(self, prompt: str, *, streamed: bool | None = None, **settings: Any) -> Completion:
        """One answer to a prompt (in a chat: to one user message).

        streamed: read it as events; None follows the options. settings: the request's other fields.
        """
        o = self.options
        body: Json = {"model": o.model, **settings}
        if o.api == "chat":
            body["messages"] = [{"role": "user", "content": prompt}]
        else:
            body["prompt"] = prompt
        path = "/chat/completions" if o.api == "chat" else "/completions"
        if o.stream if streamed is None else streamed:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return self._ask(o.base_url.rstrip("/") + path, body)

    def complete_all(self, requests: Seq[tuple[str, Json]]) -> list[Completion | ServerTrouble]:
        """Answers to (prompt, settings) in their order, a few at a time; what failed is there as its trouble."""

        def one(request: tuple[str, Json]) -> Completion | ServerTrouble:
            try:
                return self.complete(request[0], **request[1])
            except ServerTrouble as trouble:
                return trouble

        with ThreadPoolExecutor(self.options.concurrency) as pool:
            return list(pool.map(one, requests))

    # -- one request -------------------------------------------------------------------------------------

    def _ask(self, url: str, body: Json) -> Completion:
        before = ""  # a server that an answer brings down says why once, and is gone at the next try
        for attempt in range(1, ATTEMPTS + 1):
            self.asked += 1
            if self.asked > self.options.requests or monotonic() - self._started > self.options.seconds:
                raise LimitReached("the audit's own limit of requests or seconds is reached", "allow it more")
            try:
                with self._http.stream("POST", url, json=body) as response:
                    if response.status_code < 400:
                        return _read(response, body)
                    response.read()
                    again = response.status_code == 429 or response.status_code >= 500
                    said = self._without_secrets(response.text)[:BODY]
                    if not again:
                        raise Refused(response.status_code, said)
                    if attempt == ATTEMPTS:
                        kind = Failed if response.status_code >= 500 else ServerTrouble
                        raise kind(f"answers {response.status_code}: {said}")
                    pause = _pause(response, attempt)
                    before = f"; the try before, it answered {response.status_code}: {said}"
            except httpx2.TimeoutException as error:
                limit = f"{self.options.timeout:g} s"
                raise ServerTrouble(f"no answer within {limit}{before}", "allow it more time") from error
            except httpx2.HTTPError as error:
                raise ServerTrouble(f"cannot be reached: {error}{before}", "check address and server") from error
            sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    def _without_secrets(self, text: str) -> str:
        for secret in self._secrets:  # some servers repeat a bad key in their answer
            text = text.replace(secret, "...")
        return text


def _pause(response: httpx2.Response, attempt: int) -> float:
    asked = response.headers.get("retry-after", "")
    seconds = float(asked) if asked.replace(".", "", 1).isdigit() else 0.5 * 2**attempt
    return min(seconds, LONGEST_PAUSE)


def _read(response: httpx2.Response, body: Json) -> Completion:
    if body.get("stream"):
        return _parse(list(_events(response)), streamed=True)
    response.read()
    try:
        answer = json.loads(response.text)
    except json.JSONDecodeError as error:
        raise ServerTrouble(f"answers no JSON: {response.text[:BODY]!r}") from error
    return _parse([answer], streamed=False)


def _events(response: httpx2.Response) -> Iterator[Json]:
    ended = False
    try:
        for event in httpx2.EventSource(response):
            if event.data.strip() == "[DONE]":
                ended = True
                break
            yield json.loads(event.data)
    except (httpx2.HTTPError, httpx2.SSEError, json.JSONDecodeError) as error:
        raise ServerTrouble(f"a stream that cannot be read: {error}") from error
    if not ended:
        raise ServerTrouble("the stream was cut: it ended without [DONE]")


def _parse(parts: list[Json], *, streamed: bool) -> Completion:
    """One completion from the answer, or from the pieces of a stream."""
    text, finish, usage = "", None, None
    tokens: list[str] | None = None  # an empty list is an answer without tokens, None one that does not show them
    ids: list[int] | None = None
    prompt_ids: list[int] | None = None
    logprobs: list[float] = []
    try:
        for part in parts:
            if "error" in part:
                raise ServerTrouble(f"answers an error: {str(part['error'])[:BODY]}")
            usage = part.get("usage") or usage
            for choice in part.get("choices", [])[:1]:
                message = choice.get("delta" if streamed else "message") or {}
                text += choice.get("text") or message.get("content") or ""
                finish = choice.get("finish_reason") or finish
                prompt_ids = choice.get("prompt_token_ids") or part.get("prompt_token_ids") or prompt_ids
                if choice.get("token_ids") is not None:
                    ids = [*(ids or []), *choice["token_ids"]]
                if choice.get("logprobs"):
                    some_tokens, some_logprobs = _logprobs(choice["logprobs"])
                    tokens = [*(tokens or []), *some_tokens]
                    logprobs += some_logprobs
    except (KeyError, TypeError, AttributeError) as error:
        raise ServerTrouble(f"answers in a form that cannot be read: {error!r}") from error
    known = {k: int(v) for k, v in usage.items() if isinstance(v, int)} if usage else None
    return Completion(text, tokens, ids, logprobs or None, finish, known, prompt_ids)


def _logprobs(given: Json) -> tuple[list[str], list[float]]:
    """(tokens, log-probabilities) of either API's form."""
    if given.get("content") is not None:  # chat
        return [t["token"] for t in given["content"]], [float(t["logprob"]) for t in given["content"]]
    tokens = given.get("tokens") or []
    values = given.get("token_logprobs") or []
    return list(tokens), [float("nan") if v is None else float(v) for v in values]
