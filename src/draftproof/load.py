"""From names to a running engine: finds the model, loads target, tokenizer and drafter, and times it.

What it is for: `Engine.load("smollm2", draft="lookup", verifier="token")` and the command line. Guarantees: everything
that can be refused (unknown names, another vocabulary, a model that cannot roll back) is refused here, before the
first token. What it does not do: import torch or OpenVINO unless the chosen backend needs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from time import perf_counter
from typing import Literal

from draftproof.engine import Engine
from draftproof.errors import InvalidValue, MissingExtra
from draftproof.models.cache import Progress, silent
from draftproof.models.store import resolve
from draftproof.models.tokenizer import FileTokenizer
from draftproof.registry import DraftContext, check_drafter, check_schedule, make_drafter, make_schedule, make_verifier
from draftproof.target.base import Target
from draftproof.text import Tokenizer

Backend = Literal["auto", "transformers"]
BACKENDS = ("auto", "transformers")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """How models are loaded; the same for a target and its draft model.

    backend: which runtime; "auto" takes the fastest that is installed and can run the model. dtype: float32, bfloat16,
    float16 or auto (transformers). device: "cpu" or "cuda" (transformers). threads: CPU threads, None for the
    runtime's own choice. trust_remote_code: run Python code that a checkpoint brings. allow_pickle: read weights in
    pickle format, which can run code of whoever made the file.
    """

    backend: Backend = "auto"
    dtype: str = "float32"
    device: str = "cpu"
    threads: int | None = None
    trust_remote_code: bool = False
    allow_pickle: bool = False

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise InvalidValue(f"backend={self.backend!r}", f"one of {', '.join(BACKENDS)}")
        if self.threads is not None and self.threads < 1:
            raise InvalidValue(f"threads={self.threads}", "at least 1, or None")


def load_target(
    name: str, options: LoadOptions | None = None, *, progress: Progress = silent
) -> tuple[Target, Tokenizer]:
    """Target and tokenizer of a model: an alias, a folder, a GGUF file or a Hub id."""
    options = options or LoadOptions()
    if find_spec("torch") is None or find_spec("transformers") is None:
        raise MissingExtra("no runtime for models is installed", "pip install 'draftproof[transformers]'")
    found = resolve(name, allow_pickle=options.allow_pickle, progress=progress)
    progress(f"loading {name}", 0.0)
    from draftproof.target.transformers import TransformersTarget

    target = TransformersTarget.load(
        name,
        dtype=options.dtype,
        device=options.device,
        threads=options.threads,
        trust_remote_code=options.trust_remote_code,
        allow_pickle=options.allow_pickle,
    )
    tokenizer = FileTokenizer(found.path)
    progress(f"loading {name}", 1.0)
    return target, tokenizer


def load_engine(
    model: str,
    *,
    draft: str = "lookup",
    verifier: str = "token",
    schedule: str = "adaptive",
    draft_length: int = 8,
    options: LoadOptions | None = None,
    progress: Progress = silent,
) -> Engine:
    """An engine ready to answer; `Engine.load` is this function.

    draft: "none", "lookup", "suffix", "model:ID", several joined by "+", or a drafter of another package. verifier:
    "token", "block", "match", "coupled". schedule: "adaptive" or "fixed". draft_length: 0..64 tokens a round; the
    most that "adaptive" takes.
    """
    started = perf_counter()
    check_drafter(draft)
    chosen_verifier = make_verifier(verifier)  # names are checked before anything slow happens
    check_schedule(schedule, draft_length)
    target, tokenizer = load_target(model, options, progress=progress)

    def load_model(name: str) -> tuple[Target, Tokenizer | None]:
        return load_target(name, options, progress=progress)

    drafter = make_drafter(draft, DraftContext("", target, tokenizer, load_model))
    return Engine(
        target,
        drafter=drafter,
        verifier=chosen_verifier,
        schedule=make_schedule(schedule, draft_length, target, repr(options or LoadOptions())),
        tokenizer=tokenizer,
        load_seconds=perf_counter() - started,
    )
