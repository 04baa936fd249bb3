"""Lets the tests of this folder import `audit_tables`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
