"""Peers: their own processes, missing ones named, broken ones survived. The peer here is a small fake library."""

import stat
import sys
from pathlib import Path

import pytest

from draftproof.bench.peers import NAMES, PeerFailed, PeerJob, Peers, model_files
from draftproof.errors import InvalidValue, UnknownName
from draftproof.sampling.params import SamplingParams

LLAMA = "llama-cpp-python"

FAKE = """
import os, sys, time
import cProfile  # takes `profile` of the standard library; torch imports it too
__version__ = "0.0.fake"
print("a library that talks")
class Llama:
    def __init__(self, file, n_ctx, n_threads, n_threads_batch, draft_model, verbose):
        if "damaged" in file:
            raise ValueError("not a model")
        self.draft, self.file = draft_model, file
    def reset(self): pass
    def set_seed(self, seed): self.seed = seed
    def generate(self, ids, temp, top_k, top_p, min_p, repeat_penalty):
        print("talks again")
        assert (top_k, top_p, min_p, repeat_penalty) == (0, 1.0, 0.0, 1.0)
        if ids == [13]:
            sys.exit("out of luck")
        if ids == [14]:
            raise RuntimeError("cannot")
        step = self.draft.num_pred_tokens if self.draft else 1
        token = ids[-1]
        while True:
            time.sleep(0.001)
            token += step
            yield token
"""
SPECULATIVE = """
class LlamaPromptLookupDecoding:
    def __init__(self, num_pred_tokens): self.num_pred_tokens = num_pred_tokens
"""


def interpreter(folder: Path, arguments: str, path: Path | None = None) -> str:
    """A Python that differs from this one by its arguments and what it can import."""
    file = folder / f"python{len(list(folder.iterdir()))}"
    environment = f"PYTHONPATH={path} " if path else ""
    file.write_text(f'#!/bin/sh\n{environment}exec {sys.executable} {arguments} "$@"\n')
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return str(file)


@pytest.fixture
def with_fake(tmp_path: Path) -> str:
    library = tmp_path / "site"
    (library / "llama_cpp").mkdir(parents=True)
    (library / "llama_cpp" / "__init__.py").write_text(FAKE)
    (library / "llama_cpp" / "llama_speculative.py").write_text(SPECULATIVE)
    return interpreter(tmp_path, "-S", library)


def job(python: str, name: str = LLAMA, file: str = "model.gguf", **options) -> PeerJob:
    return PeerJob(files={name: lambda: Path(file)}, threads=1, pythons={name: python}, **options)


@pytest.mark.parametrize("name", NAMES)
def test_a_peer_that_is_not_installed_is_named_and_no_error(tmp_path: Path, name: str):
    with Peers(job(interpreter(tmp_path, "-S"), name)) as peers:
        assert [(s.name, s.status, s.detail) for s in peers.statuses] == [
            (name, "missing", f"not installed; pip install {name}")
        ]
        assert peers.modes == []


def test_a_peer_answers_plain_and_with_every_lookup_length(with_fake: str):
    with Peers(job(with_fake, lookups=(3, 7))) as peers:
        assert [(s.status, s.detail) for s in peers.statuses] == [("measured", "0.0.fake")]
        assert [m.name for m in peers.modes] == [f"{LLAMA} plain", f"{LLAMA} lookup 3", f"{LLAMA} lookup 7"]
        assert {m.baseline for m in peers.modes} == {f"{LLAMA} plain"}
        params = SamplingParams(temperature=0, max_tokens=4, seed=1)
        answers = [m.answer([5], params, floor=True) for m in peers.modes]
    assert [a.tokens for a in answers] == [(6, 7, 8, 9), (8, 11, 14, 17), (12, 19, 26, 33)]
    for answer in answers:
        assert answer.first_tokens == 1
        assert answer.first_seconds >= 0.001
        assert answer.decode_seconds >= 3 * 0.001
        assert answer.floor_seconds is None


def test_a_peer_ends_where_the_model_ends_unless_told_otherwise(with_fake: str):
    with Peers(job(with_fake, eos=(7,), lookups=())) as peers:
        (mode,) = peers.modes
        assert mode.answer([5], SamplingParams(max_tokens=4, seed=1), floor=False).tokens == (6, 7)
        onwards = SamplingParams(max_tokens=4, seed=1, ignore_eos=True)
        assert mode.answer([5], onwards, floor=False).tokens == (6, 7, 8, 9)


@pytest.mark.parametrize(("prompt", "said"), [(13, "ended: out of luck"), (14, "RuntimeError: cannot")])
def test_a_peer_that_breaks_says_why(with_fake: str, prompt: int, said: str):
    with Peers(job(with_fake)) as peers, pytest.raises(PeerFailed, match=said):
        peers.modes[0].answer([prompt], SamplingParams(seed=1), floor=False)


def test_a_peer_that_cannot_load_its_model_is_named_with_the_reason(with_fake: str):
    with Peers(job(with_fake, file="damaged.gguf")) as peers:
        assert [(s.status, s.detail) for s in peers.statuses] == [("failed", "ValueError: not a model")]
        assert peers.modes == []


def test_a_model_that_a_peer_cannot_have_leaves_the_others(with_fake: str, tmp_path: Path):
    def none() -> Path:
        raise InvalidValue("no such kind of file")

    both = PeerJob(
        files={"transformers": none, LLAMA: lambda: Path("model.gguf")}, threads=1, pythons={LLAMA: with_fake}
    )
    with Peers(both) as peers:
        assert [s.status for s in peers.statuses] == ["failed", "measured"]
        assert len(peers.modes) == 2


def test_an_interpreter_that_is_not_there_is_named(tmp_path: Path):
    with Peers(job(str(tmp_path / "nowhere"))) as peers:
        assert [s.status for s in peers.statuses] == ["failed"]
        assert "nowhere" in peers.statuses[0].detail


def test_no_peer_outlives_the_run(with_fake: str):
    with Peers(job(with_fake)) as peers:
        processes = [p._process for p in peers._processes]
        assert [p.poll() for p in processes] == [None, None]
    assert all(p.returncode is not None for p in processes)


def test_unknown_peers_and_senseless_lookups_are_refused():
    with pytest.raises(UnknownName):
        PeerJob(files={"vllm": Path}, threads=1)
    with pytest.raises(InvalidValue):
        PeerJob(files={}, threads=1, lookups=(0,))


def test_every_peer_has_a_model_file():
    assert set(model_files("smollm2", "file")) == set(NAMES)
