"""`make evidence`: every slow measurement, in turn; each goes on from what it has already saved."""

from __future__ import annotations

import subprocess
import sys

SCRIPTS = ("evidence.equality", "evidence.control_matrix")

for script in SCRIPTS:
    print(f"== {script}", flush=True)
    subprocess.run([sys.executable, "-m", script], check=True)
