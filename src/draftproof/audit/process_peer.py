"""openvino-genai and llama-cpp-python as peers, each in a process of its own (`bench.peers`).

Guarantees: plain and with the peer's own prompt lookup, at temperature 1 without any cut, on the same weights as the
reference: OpenVINO's folder is our own OpenVINO target's, llama.cpp reads the GGUF file the reference was converted
from. What it does not do: hide the runtimes' precision; the plain mode comes first and is the control.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from draftproof.bench.peers import PeerJob, PeerMode, Peers, model_files
from draftproof.errors import MissingExtra
from draftproof.sampling.params import SamplingParams


class ProcessPeer:
    """A mode of a running peer process."""

    def __init__(self, mode: PeerMode) -> None:
        self.name = mode.name
        self._mode = mode

    def generate(self, prompt: Seq[int], seed: int, max_tokens: int) -> list[int]:
        params = SamplingParams(max_tokens=max_tokens, temperature=1.0, seed=seed)
        return list(self._mode.answer(prompt, params, floor=False).tokens)


def start_peers(
    name: str,
    model: str,
    *,
    weights: str = "file",
    eos_ids: frozenset[int],
    lookup: int,
    threads: int,
    python: str | None = None,
) -> Peers:
    """The processes of one peer, to be entered; afterwards `opened` gives its modes.

    lookup: 0 for plain only. python: the interpreter that has the peer installed; None is this one.
    """
    files = {name: model_files(model, weights)[name]}
    lookups = (lookup,) if lookup else ()
    pythons = {} if python is None else {name: python}
    ends = tuple(sorted(eos_ids))
    return Peers(PeerJob(files=files, threads=threads, eos=ends, lookups=lookups, pythons=pythons))


def opened(peers: Peers) -> list[ProcessPeer]:
    """The peer's modes, plain first. Raises MissingExtra with the reason if there are none."""
    if not peers.modes:
        [status] = peers.statuses
        raise MissingExtra(f"{status.name}: {status.detail}", "install it, or audit another engine")
    return [ProcessPeer(mode) for mode in peers.modes]


def version_of(peers: Peers) -> dict[str, str]:
    """The peer's version as its own process gave it."""
    return {status.name: status.detail for status in peers.statuses}
