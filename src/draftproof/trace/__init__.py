"""A real decode, written down: recorded, kept as JSON Lines, shown as a page."""

from draftproof.trace.jsonl import read_trace, write_trace
from draftproof.trace.page import trace_page
from draftproof.trace.record import Recorder
from draftproof.trace.records import Trace

__all__ = ["Recorder", "Trace", "read_trace", "trace_page", "write_trace"]
