"""From the command to the answer: seconds until the first text and until the end, and peak memory of the process.

Run: python benchmarks/start.py [--weights int8] [--activations int8] [--repeats 5] [--python PATH]. Starts `draftproof
generate` in fresh processes; the model has been converted before, so this is what every start but the first takes.
Memory is the peak of the resident set (all of it, and what no file backs), as the kernel counts it, next to the size of
the weights' file.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
from pathlib import Path
from time import perf_counter

from draftproof.target.openvino_store import prepare

PROMPT = "Write a short letter to a friend about the sea."
MOST_SECONDS, MOST_MEMORY = 4.0, 1.3
CHILD = """
import sys, threading, time
from pathlib import Path
from draftproof.cli.main import main
peak = [0.0]
def watch():
    while True:
        lines = Path("/proc/self/status").read_text().splitlines()
        peak[0] = max(peak[0], next(int(x.split()[1]) / 1024 for x in lines if x.startswith("RssAnon")))
        time.sleep(0.005)
threading.Thread(target=watch, daemon=True).start()
try:
    main()
finally:
    lines = Path("/proc/self/status").read_text().splitlines()
    whole = next(int(x.split()[1]) / 1024 for x in lines if x.startswith("VmHWM"))
    print(f"\\npeak {whole:.1f} {peak[0]:.1f}", file=sys.stderr)
"""


def start(python: str, weights: str, activations: str, tokens: int) -> tuple[float, float, float, float]:
    """(seconds to the first text, seconds to the end, peak megabytes, those that no file backs) of one process."""
    command = [python, "-c", CHILD, "generate", PROMPT, "--max-tokens", str(tokens), "--seed", "1"]
    command += ["--weights", weights] if weights != "file" else []
    command += ["--activations", activations] if activations != "float32" else []
    started = perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        first = perf_counter() - started
        _, errors = process.communicate()
    ended = perf_counter() - started
    found = re.search(rb"peak ([\d.]+) ([\d.]+)", errors)
    if process.returncode or not found:
        sys.exit(f"draftproof generate failed: {errors.decode(errors='replace')}")
    return first, ended, float(found[1]), float(found[2])


def main() -> None:
    """Measure, print, and exit with 1 if a bound is broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", default="file", choices=["file", "int8", "int4", "float16"])
    parser.add_argument("--activations", default="float32", choices=["float32", "int8"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--python", default=sys.executable)
    options = parser.parse_args()
    file = prepare("smollm2", weights=options.weights).folder / "openvino_model.bin"
    megabytes = Path(file).stat().st_size / 2**20
    start(options.python, options.weights, options.activations, 8)
    runs = [start(options.python, options.weights, options.activations, options.tokens) for _ in range(options.repeats)]
    first, ended, peak, own = (statistics.median(values) for values in zip(*runs, strict=True))
    print(
        f"first text after {first:.2f} s, {options.tokens} tokens at most after {ended:.2f} s (bound {MOST_SECONDS} s)"
    )
    print(f"peak {peak:.0f} MB, {own:.0f} MB of it backed by no file; the weights' file has {megabytes:.0f} MB")
    print(f"that is {peak / megabytes:.2f} and {own / megabytes:.2f} times the weights (bound {MOST_MEMORY})")
    sys.exit(0 if ended <= MOST_SECONDS and peak <= MOST_MEMORY * megabytes else 1)


if __name__ == "__main__":
    main()
