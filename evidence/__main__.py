"""`make evidence`: every slow measurement that needs nothing but this environment, in turn; hours on two cores.

Each goes on from what it has already saved. Not here, because they need other programs: `evidence.audit_peers` for
llama-cpp-python and `evidence.audit_http` (docs/audit.md says how to run them); because they need a folder of prompts:
`evidence.free_drafters`, `evidence.drawn_drafts` and `evidence/dspark_eval.py`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def out(name: str) -> tuple[str, str]:
    """Where a script keeps its record."""
    return "--out", str(HERE / name)


SCRIPTS: tuple[tuple[str, ...], ...] = (
    ("evidence.equality",),
    ("evidence.control_matrix", "--backend", "openvino"),
    ("evidence.audit_detection", *out("audit_detection.json")),
    ("evidence.audit_engine", *out("audit_engine.json")),
    ("evidence.audit_false_alarms", *out("audit_false_alarms.json")),
    ("evidence.audit_cost", *out("audit_cost_openvino.json"), "--backend", "openvino"),
    ("evidence.audit_cost", *out("audit_cost_transformers.json"), "--backend", "transformers"),
    ("evidence.audit_table",),
)

for command in SCRIPTS:
    print(f"== {' '.join(command[:1])}", flush=True)
    subprocess.run([sys.executable, "-m", *command], check=True)
