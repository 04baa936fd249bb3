"""Writes the measured tables of docs/audit.md from the evidence's JSON files, between its marker lines.

python evidence/audit_table.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

EVIDENCE = Path(__file__).parent
PAGE = EVIDENCE.parent / "docs" / "audit.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def main() -> None:
    parts = [
        *_detection(_read("audit_detection.json")),
        *_false_alarms(_read("audit_false_alarms.json")),
        *_engine(_read("audit_engine.json")),
        *_cost([_read(path.name) for path in sorted(EVIDENCE.glob("audit_cost*.json"))]),
        *_peers([_read(path.name) for path in sorted(EVIDENCE.glob("audit_peers_*.json"))]),
    ]
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(before + "\n".join([BEGIN, "", *parts, "", END]) + after, encoding="utf-8")


def _read(name: str) -> dict[str, Any]:
    path = EVIDENCE / name
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _detection(record: dict[str, Any]) -> list[str]:
    if not record:
        return []
    lines = [
        f"Tokens until e >= 1e6 on {record['model']} ({record['target']}, {record['date']}), drafts by "
        f"{record['drafter']}; median of the runs. The bias is computed from p and q at every position.",
        "",
        "| fault | bias per token (TV) | tokens to e >= 1e6 | runs | what grew |",
        "|---|---|---|---|---|",
    ]
    faults = sorted(record["faults"].items(), key=lambda item: -item[1]["bias"])
    for name, fault in faults:
        runs = fault["runs"]
        median = fault["median_tokens_to_e_1e6"]
        tokens = f"{median:g}" if median is not None else f"not found in {min(r['tokens'] for r in runs)}"
        grew = max({r["grew"] for r in runs}, key=lambda g: sum(r["grew"] == g for r in runs))
        lines.append(f"| {name} | {fault['bias']:.3f} | {tokens} | {len(runs)} | {grew if median else '-'} |")
    return [*lines, ""]


def _false_alarms(record: dict[str, Any]) -> list[str]:
    if not record:
        return []
    runs = record["runs"]
    tables = sum(r["source"] == "table" for r in runs)
    return [
        f"False alarms: {record['alarms']} in {len(runs)} lossless runs of {record['tokens_per_run']} tokens at level "
        f"{record['level']:g} ({tables} engine answers on table models, {len(runs) - tables} from "
        f"{record['recorded_rows']} recorded rows of {record['model']}; {record['date']}).",
        "",
    ]


def _engine(record: dict[str, Any]) -> list[str]:
    if not record:
        return []
    parts = record["parts"]
    kinds = {(p["verifier"], p["drafter"], p["temperature"]) for p in parts}
    return [
        f"This engine on {record['model']} ({record['target']}, {record['date']}): {record['alarms']} alarms in "
        f"{record['tokens']} tokens, {len(parts)} parts over {len(kinds)} combinations of verifier, drafter and "
        f"temperature; largest log10 e {max(p['max_log10_e'] for p in parts):.2f}.",
        "",
    ]


def _cost(records: list[dict[str, Any]]) -> list[str]:
    if not records:
        return []
    lines = [
        "CPU milliseconds per token at one thread, vocabulary 49 152:",
        "",
        "| target | plain decoding | scoring pass | bets | with q of one token | of 8 192 ids | of all ids |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in records:
        ms = r["milliseconds"]
        bets = [f"{ms[k]:.2f} ({share:.1%})" for k, share in r["over_scoring_pass"].items()]
        lines.append(f"| {r['target']} | {ms['plain_decoding']:.2f} | {ms['scoring_pass']:.2f} | {' | '.join(bets)} |")
    return [*lines, "", "In brackets: the share of the scoring pass.", ""]


def _peers(records: list[dict[str, Any]]) -> list[str]:
    lines: list[str] = []
    for record in records:
        facts = record["facts"]
        versions = ", ".join(f"{k} {v}" for k, v in facts.items() if k not in ("level (all peers)", "row noise"))
        lines += [f"{record['subject']} ({record['date']}; {versions}):", "", "| check | verdict | what was seen |"]
        lines += ["|---|---|---|"]
        lines += [f"| {f['check']} | {f['verdict']} | {f['detail']} |" for f in record["findings"]]
        lines += [""]
    return lines


if __name__ == "__main__":
    main()
