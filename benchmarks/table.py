"""`make bench`: measures, and writes the tables into README.md and docs/performance.md.

Run: python benchmarks/table.py [--repeats 5] [--limit N] [--peer-python NAME=PATH ...]. The READMEs get a short table,
docs/performance.md every mode, each between the lines `<!-- bench:begin -->` and `<!-- bench:end -->`;
nothing else in the files is touched. The JSON that the tables come from goes to benchmarks/results.json. Figures from
a busy machine are refused unless --busy is given.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console

from draftproof.bench import peers, report, workloads
from draftproof.bench.run import RunOptions
from draftproof.cli import bench
from draftproof.cli.generate import loading
from draftproof.load import LoadOptions

ROOT = Path(__file__).resolve().parents[1]
FILES = {"README.md": report.brief, "README.zh-CN.md": report.brief, "docs/performance.md": report.markdown}
DRAFTERS = ["lookup", "suffix", "retrieval", "wrong"]
BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"


def between(text: str, table: str, name: str) -> str:
    """The text of a file with a new table between the marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"{name} has no place for the table: add the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"


def request(options: argparse.Namespace) -> bench.BenchRequest:
    """What is measured for the tables."""
    return bench.BenchRequest(
        model=options.model,
        load=LoadOptions(
            backend="openvino", weights=options.weights, activations=options.activations, threads=options.threads
        ),
        specs=bench.specs(DRAFTERS, "token", "adaptive", 8, []),
        run=RunOptions(
            workloads=tuple(w.first(options.limit) for w in workloads.builtin()),
            max_tokens=options.max_tokens,
            repeats=options.repeats,
        ),
        peer_names=() if options.no_peers else peers.NAMES,
        peer_lookups=(5,),
        peer_pythons=tuple(bench.pair(entry) for entry in options.peer_python),
    )


def main() -> None:
    """Refuse files without marks and a busy machine first; then measure, which takes long; then write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--weights", default="int8")
    parser.add_argument("--activations", default="int8", choices=["float32", "int8"])
    parser.add_argument("--threads", type=int)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--peer-python", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--busy", action="store_true", help="write figures even from a busy machine")
    options = parser.parse_args()
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in FILES}
    for name, text in texts.items():
        between(text, "", name)
    here = report.Machine.here()
    if here.busy and not options.busy:
        sys.exit(f"the machine is busy ({here.load:.2f} runnable processes per core): wait, or give --busy")
    with loading() as progress:
        finished = bench.measure(request(options), here, progress)
    bench.show(finished, Console(highlight=False, width=160))
    for name, make in FILES.items():
        (ROOT / name).write_text(between(texts[name], make(finished), name), encoding="utf-8")
    results = json.dumps(finished.to_json(), indent=1, ensure_ascii=False)
    (ROOT / "benchmarks" / "results.json").write_text(results + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
