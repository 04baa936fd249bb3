"""A server for tests of `evidence.servers`: answers /v1/models, and starts a child as real servers start workers."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--host")
parser.add_argument("--port", type=int)
parser.add_argument("--child", type=Path)
parser.add_argument("faults", nargs="*")
options = parser.parse_args()
assert os.environ["STAND_IN"] == "1"

if "stubborn" in options.faults:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
options.child.write_text(str(worker.pid))
if "ends" in options.faults:
    print("no such model: marmalade", flush=True)
    sys.exit(3)
if "silent" in options.faults:
    print("still loading", flush=True)
    time.sleep(300)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/v1/models" else 404)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: object) -> None:
        pass


HTTPServer((options.host, options.port), Handler).serve_forever()
