"""`draftproof audit`: is an engine lossless? Ours (`self`) or another.

Guarantees: exit code 0 if nothing was found wrong, 1 if something was, 2 for what cannot be run. Reports go to
standard output (a table, or one JSON object with --json) and to an HTML file if asked for; progress goes to standard
error. What it does not do: audit; see `draftproof.audit`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import typer
from rich.console import Console

from draftproof.audit.page import audit_page
from draftproof.audit.peers import audit_peers
from draftproof.audit.report import AuditReport
from draftproof.audit.self_audit import SelfAuditPlan, audit_self, self_report
from draftproof.cli import audit_options as a
from draftproof.cli import options as o
from draftproof.draft.base import Drafter
from draftproof.errors import InvalidValue
from draftproof.load import LoadOptions, load_target
from draftproof.registry import DraftContext, check_drafter, make_drafter
from draftproof.target.base import Target
from draftproof.text import Tokenizer

PROMPTS = (
    "Describe a morning at a harbour.",
    "Why do leaves change colour?",
    "Write a short dialogue between two chess players.",
    "List some uses of a spoon, with reasons.",
)

audit_app = typer.Typer(name="audit", help="Check an engine for losslessness.", no_args_is_help=True)


@audit_app.callback()
def _group() -> None:
    pass  # with a callback, `audit` stays a group of commands, however few they are


@audit_app.command("self")
def audit_self_command(
    model: o.Model = "smollm2",
    backend: o.Backend = "auto",
    dtype: o.Dtype = None,
    weights: o.Weights = None,
    activations: o.Activations = None,
    threads: o.Threads = None,
    draft: a.Drafts = ["lookup"],  # noqa: B006 - typer reads the default and never mutates it
    verifier: a.Verifiers = ["token", "block", "match", "coupled"],  # noqa: B006
    temperature: a.Temperatures = [1.0],  # noqa: B006
    draft_length: o.DraftLength = 4,
    tokens: a.Tokens = 2000,
    answer: a.Answer = 64,
    level: a.Level = 1e-3,
    seeds: a.Seeds = 1,
    prompts: a.PromptFile = None,
    as_json: a.AsJson = False,
    html: a.Html = None,
) -> None:
    """Our engine on a real model: equality with speculation off, and sampled text against the model's own p."""
    plan = SelfAuditPlan(
        verifiers=verifier,
        temperatures=temperature,
        tokens=tokens,
        answer=answer,
        level=level,
        draft_length=draft_length,
        seeds=seeds,
    )
    for name in draft:
        check_drafter(name)
    options = LoadOptions(
        backend=backend,  # type: ignore[arg-type]  # checked on construction
        dtype=dtype,
        weights=weights,
        activations=activations,
        threads=threads,
    )
    target, tokenizer = load_target(model, options)
    drafters = {name: _maker(name, target, tokenizer, options) for name in draft}
    report = audit_self(target, drafters, _encoded(prompts, tokenizer), plan, report=_progress(quiet=as_json))
    deliver(self_report(report), as_json=as_json, html=html)


@audit_app.command("transformers")
def audit_transformers_command(
    model: o.Model = "smollm2",
    dtype: o.Dtype = None,
    lookup: a.Lookup = 5,
    assistant: a.Assistant = None,
    tokens: a.Tokens = 2000,
    answer: a.Answer = 64,
    level: a.Level = 1e-3,
    prompts: a.PromptFile = None,
    as_json: a.AsJson = False,
    html: a.Html = None,
) -> None:
    """transformers' `generate` on the same weights: plain, with prompt lookup, and with an assistant if given."""
    from draftproof.audit.transformers_peer import TransformersPeer, load_reference

    own, target, tokenizer = load_reference(model, dtype=dtype or "float32")
    peers = [TransformersPeer(own, eos_ids=target.eos_ids)]
    if lookup:
        peers.append(TransformersPeer(own, lookup=lookup, eos_ids=target.eos_ids))
    if assistant is not None:
        other, _, _ = load_reference(assistant, dtype=dtype or "float32")
        peers.append(TransformersPeer(own, assistant=other, eos_ids=target.eos_ids))
    report = audit_peers(
        f"transformers generate, {model}",
        peers,
        target,
        _encoded(prompts, tokenizer),
        tokens=tokens,
        answer=answer,
        level=level,
        packages=("transformers", "torch"),
        report=_progress(quiet=as_json),
    )
    deliver(report, as_json=as_json, html=html)


@audit_app.command("openvino-genai")
def audit_openvino_command(
    model: o.Model = "smollm2",
    weights: o.Weights = None,
    threads: a.PeerThreads = 2,
    python: a.PeerPython = None,
    lookup: a.Lookup = 5,
    tokens: a.Tokens = 2000,
    answer: a.Answer = 64,
    level: a.Level = 1e-3,
    prompts: a.PromptFile = None,
    as_json: a.AsJson = False,
    html: a.Html = None,
) -> None:
    """openvino-genai on the same OpenVINO folder: plain, and with its prompt lookup."""
    options = LoadOptions(backend="openvino", weights=weights)
    _process_audit(
        "openvino-genai", model, options, threads, python, lookup, tokens, answer, level, prompts, as_json, html
    )


@audit_app.command("llama-cpp-python")
def audit_llama_command(
    model: o.Model = "smollm2",
    threads: a.PeerThreads = 2,
    python: a.PeerPython = None,
    lookup: a.Lookup = 5,
    tokens: a.Tokens = 2000,
    answer: a.Answer = 64,
    level: a.Level = 1e-3,
    prompts: a.PromptFile = None,
    as_json: a.AsJson = False,
    html: a.Html = None,
) -> None:
    """llama-cpp-python on the GGUF file the reference comes from: plain, and with its prompt lookup."""
    _process_audit(
        "llama-cpp-python", model, LoadOptions(), threads, python, lookup, tokens, answer, level, prompts, as_json, html
    )


def _process_audit(
    name: str,
    model: str,
    options: LoadOptions,
    threads: int,
    python: str | None,
    lookup: int,
    tokens: int,
    answer: int,
    level: float,
    prompts: Path | None,
    as_json: bool,
    html: Path | None,
) -> None:
    from draftproof.audit.process_peer import opened, start_peers, version_of

    target, tokenizer = load_target(model, options)
    weights = options.weights or "file"
    with start_peers(
        name, model, weights=weights, eos_ids=target.eos_ids, lookup=lookup, threads=threads, python=python
    ) as peers:
        report = audit_peers(
            f"{name}, {model}",
            opened(peers),
            target,
            _encoded(prompts, tokenizer),
            tokens=tokens,
            answer=answer,
            level=level,
            versions_there=version_of(peers),
            report=_progress(quiet=as_json),
        )
    deliver(report, as_json=as_json, html=html)


@audit_app.command("http")
def audit_http_command(
    base_url: a.BaseUrl,
    model: a.ServerModel,
    reference: a.ReferenceModel = None,
    control_url: a.ControlUrl = None,
    control_header: a.ControlHeader = [],  # noqa: B006
    header: a.Header = [],  # noqa: B006
    key_env: a.KeyEnv = "OPENAI_API_KEY",
    api: a.ApiKind = "completions",
    stream: a.Stream = False,
    answers: a.Answers = 64,
    answer: a.Answer = 64,
    level: a.Level = 1e-3,
    noise: a.Noise = 0.05,
    no_matrix: a.NoMatrix = False,
    timeout: a.Timeout = 60.0,
    concurrency: a.Concurrency = 4,
    max_requests: a.MaxRequests = 5000,
    backend: o.Backend = "auto",
    prompts: a.PromptFile = None,
    as_json: a.AsJson = False,
    html: a.Html = None,
) -> None:
    """Any OpenAI-compatible server: its sampled text and its controls, against a reference or a control server."""
    from draftproof.audit.client import Client, ServerOptions
    from draftproof.audit.http import HttpPlan, audit_http
    from draftproof.audit.reference import Reference

    def connect(url: str, headers: list[str]) -> Client:
        options = ServerOptions(
            base_url=url,
            model=model,
            api=api,  # type: ignore[arg-type]  # checked there
            stream=stream,
            headers=dict(_header(line) for line in headers),
            key_env=key_env,
            timeout=timeout,
            concurrency=concurrency,
            requests=max_requests,
        )
        return Client(options)

    plan = HttpPlan(
        prompts=_texts(prompts), answers=answers, tokens=answer, level=level, noise=noise, matrix=not no_matrix
    )
    client = connect(base_url, header)
    control = connect(control_url or base_url, [*header, *control_header]) if control_url or control_header else None
    known: Reference | None = None
    if reference is not None:
        known = Reference(*load_target(reference, LoadOptions(backend=backend)))  # type: ignore[arg-type]
    report = audit_http(client, plan, reference=known, control=control, report=_progress(quiet=as_json))
    deliver(report, as_json=as_json, html=html)


def _header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon or not name.strip():
        raise InvalidValue("a header without a colon", "write NAME: VALUE")
    return name.strip(), value.strip()


def deliver(report: AuditReport, *, as_json: bool, html: Path | None) -> None:
    """Print, write, and end with the report's exit code."""
    if html is not None:
        html.write_text(audit_page(report), encoding="utf-8")
    if as_json:
        print(json.dumps(report.to_json(), allow_nan=False))
    else:
        report.print(Console())
    if not report.ok:
        raise typer.Exit(1)


def _maker(name: str, target: Target, tokenizer: Tokenizer, options: LoadOptions) -> Callable[[], Drafter]:
    loaded: dict[str, tuple[Target, Tokenizer | None]] = {}

    def load_model(other: str) -> tuple[Target, Tokenizer | None]:
        if other not in loaded:
            loaded[other] = load_target(other, options)
        return loaded[other]

    return lambda: make_drafter(name, DraftContext("", target, tokenizer, load_model))


def _texts(path: Path | None) -> tuple[str, ...]:
    if path is None:
        return PROMPTS
    texts = tuple(line for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
    if not texts:
        raise InvalidValue(f"no prompt in {path}", "one prompt a line")
    return texts


def _encoded(path: Path | None, tokenizer: Tokenizer) -> list[list[int]]:
    texts = _texts(path)
    if not tokenizer.has_chat:
        return [tokenizer.prompt(text) for text in texts]
    return [tokenizer.chat([{"role": "user", "content": text}]) for text in texts]


def _progress(*, quiet: bool) -> Callable[[str], None]:
    console = Console(stderr=True, quiet=quiet, highlight=False)
    return lambda line: console.print(line, style="dim", markup=False)
