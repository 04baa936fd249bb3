"""What the audit finds in other engines' sampled speculation, on a real model and the same weights.

transformers: plain, prompt lookup, and an assistant, which is the model itself without its last layers, so that its
rows differ from the target's as a smaller model's do. openvino-genai: plain and prompt lookup. Half of the prompts ask
for copying, so that lookup drafts are often right. Nothing is told to the test but tokens and p.

    python evidence/audit_peers.py transformers --out evidence/audit_peers_transformers.json [--tokens 4000]
    python evidence/audit_peers.py openvino-genai --out evidence/audit_peers_openvino_genai.json
    python evidence/audit_peers.py llama-cpp-python --python PATH --out evidence/audit_peers_llama_cpp_python.json
"""

from __future__ import annotations

import argparse
import copy
import datetime
import json
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from pathlib import Path

import torch

from draftproof.audit.page import audit_page
from draftproof.audit.peers import Peer, audit_peers
from draftproof.audit.process_peer import opened, start_peers, version_of
from draftproof.audit.report import AuditReport
from draftproof.audit.transformers_peer import TransformersPeer, load_reference
from draftproof.load import LoadOptions, load_target
from draftproof.target.base import Target
from draftproof.text import Tokenizer

PROMPTS = (
    "Describe a morning at a harbour.",
    "Why do leaves change colour?",
    "Write a short dialogue between two chess players.",
    "Repeat this three times: the grey heron stands in the shallow water and waits.",
    "Write the numbers from one to twenty in words, twice.",
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("engine", choices=["transformers", "openvino-genai", "llama-cpp-python"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--answer", type=int, default=64)
    parser.add_argument("--layers", type=int, default=24, help="layers the assistant keeps")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--python", help="the Python that has the engine, if it is another one")
    options = parser.parse_args()
    report = transformers_peers(options) if options.engine == "transformers" else process_peers(options)
    record = {**report.to_json(), "date": datetime.date.today().isoformat(), "assistant_layers": options.layers}
    options.out.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n")
    options.out.with_suffix(".html").write_text(audit_page(report), encoding="utf-8")
    for finding in report.findings:
        print(f"{finding.check}: {finding.verdict}: {finding.detail}")


def transformers_peers(options: argparse.Namespace) -> AuditReport:
    torch.set_num_threads(options.threads)
    model, target, tokenizer = load_reference(options.model)
    assistant = copy.deepcopy(model)
    assistant.model.layers = assistant.model.layers[: options.layers]
    assistant.config.num_hidden_layers = options.layers
    ends = target.eos_ids
    peers = [
        TransformersPeer(model, eos_ids=ends),
        TransformersPeer(model, lookup=5, eos_ids=ends),
        TransformersPeer(model, assistant=assistant, eos_ids=ends),
    ]
    return judged(options, peers, target, tokenizer, ("transformers", "torch"))


def process_peers(options: argparse.Namespace) -> AuditReport:
    target, tokenizer = load_target(options.model, LoadOptions(backend="openvino", threads=options.threads))
    name, ends = options.engine, target.eos_ids
    with start_peers(
        name, options.model, eos_ids=ends, lookup=5, threads=options.threads, python=options.python
    ) as peers:
        return judged(options, opened(peers), target, tokenizer, (), version_of(peers))


def judged(
    options: argparse.Namespace,
    peers: Seq[Peer],
    target: Target,
    tokenizer: Tokenizer,
    packages: tuple[str, ...],
    versions_there: Mapping[str, str] | None = None,
) -> AuditReport:
    return audit_peers(
        f"{options.engine}, {options.model}",
        peers,
        target,
        [tokenizer.chat([{"role": "user", "content": text}]) for text in PROMPTS],
        tokens=options.tokens,
        answer=options.answer,
        packages=packages,
        versions_there=versions_there,
        report=lambda line: print(line, flush=True),
    )


if __name__ == "__main__":
    main()
