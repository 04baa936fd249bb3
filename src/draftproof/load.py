"""From names to a running engine: finds the model, loads target, tokenizer and drafter, and times it.

What it is for: `Engine.load("smollm2", draft="lookup", verifier="token")` and the command line. Guarantees: everything
that can be refused (unknown names, another vocabulary, a model that cannot roll back) is refused here, before the
first token. What it does not do: import torch or OpenVINO unless the chosen backend needs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

from draftproof.engine import Engine
from draftproof.errors import InvalidValue, MissingExtra
from draftproof.models.cache import Progress, silent
from draftproof.models.store import resolve
from draftproof.models.tokenizer import FileTokenizer
from draftproof.registry import DraftContext, check_drafter, check_schedule, make_drafter, make_schedule, make_verifier
from draftproof.target.base import Target
from draftproof.text import Tokenizer

if TYPE_CHECKING:
    from draftproof.target.transformers import TransformersTarget

Backend = Literal["auto", "openvino", "transformers"]
BACKENDS = ("auto", "openvino", "transformers")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """How models are loaded; the same for a target and its draft model.

    backend: which runtime; "auto" takes openvino on a CPU where it is installed and reads the model, transformers
    otherwise. dtype: float32, bfloat16, float16 or auto; transformers only, None is float32. weights: file, int4, int8
    or float16; openvino only, None is the file's own values. activations: float32 or int8; openvino only, None is
    float32. narrow: tokens of passes that get a graph of their own; openvino only, None is what
    `openvino_compile.narrow_passes` says. device: "cpu" or "cuda"; transformers only. threads: CPU
    threads, None for the runtime's own choice. trust_remote_code: run Python code that a checkpoint brings.
    allow_pickle: read weights in pickle format, which can run code of whoever made the file.
    """

    backend: Backend = "auto"
    dtype: str | None = None
    weights: str | None = None
    activations: str | None = None
    narrow: tuple[int, ...] | None = None
    device: str = "cpu"
    threads: int | None = None
    trust_remote_code: bool = False
    allow_pickle: bool = False

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise InvalidValue(f"backend={self.backend!r}", f"one of {', '.join(BACKENDS)}")
        if self.threads is not None and self.threads < 1:
            raise InvalidValue(f"threads={self.threads}", "at least 1, or None")
        only = {"openvino": self._asks_transformers, "transformers": self._asks_openvino}
        for backend, asked in only.items():
            if self.backend == backend and asked:
                raise InvalidValue(
                    f"{', '.join(asked)} with backend={backend!r}", "leave it out, or change the backend"
                )
        if self._asks_transformers and self._asks_openvino:
            raise InvalidValue(
                f"{self._asks_openvino[0]} with {self._asks_transformers[0]}", "they belong to different backends"
            )

    @property
    def _asks_transformers(self) -> list[str]:
        asked = {"dtype": self.dtype is not None, "device": self.device != "cpu"}
        asked |= {"trust_remote_code": self.trust_remote_code, "allow_pickle": self.allow_pickle}
        return [name for name, wanted in asked.items() if wanted]

    @property
    def _asks_openvino(self) -> list[str]:
        return [name for name in ("weights", "activations", "narrow") if getattr(self, name) is not None]

    def backend_for(self, model: str) -> Literal["openvino", "transformers"]:
        """The runtime for this model. Raises MissingExtra if none is installed."""
        if self.backend != "auto":
            return self.backend
        here = {name: find_spec(name) is not None for name in ("openvino", "torch", "transformers", "optimum")}
        torch = here["torch"] and here["transformers"]
        if self._asks_openvino or not (self._asks_transformers or torch):
            if not here["openvino"]:
                raise MissingExtra("no runtime for models is installed", "pip install 'draftproof[openvino]'")
            return "openvino"
        if self._asks_transformers or not here["openvino"]:
            return "transformers"
        path = Path(model).expanduser()
        readable = model in openvino_aliases() or path.suffix == ".gguf" or (path / "openvino_model.xml").is_file()
        return "openvino" if readable or here["optimum"] else "transformers"


def openvino_aliases() -> tuple[str, ...]:
    """Packaged models whose architecture openvino-genai's GGUF reader knows."""
    return ("smollm2",)


def load_target(
    name: str, options: LoadOptions | None = None, *, progress: Progress = silent
) -> tuple[Target, Tokenizer]:
    """Target and tokenizer of a model: an alias, a folder, a GGUF file or a Hub id."""
    options = options or LoadOptions()
    if options.backend_for(name) == "openvino":
        return _load_openvino(name, options, progress)
    return _load_transformers(name, options, progress)


def _load_transformers(
    name: str, options: LoadOptions, progress: Progress, hidden_layers: tuple[int, ...] = ()
) -> tuple[TransformersTarget, Tokenizer]:
    if find_spec("torch") is None or find_spec("transformers") is None:
        raise MissingExtra("backend 'transformers' is not installed", "pip install 'draftproof[transformers]'")
    found = resolve(name, allow_pickle=options.allow_pickle, progress=progress)
    progress(f"loading {name}", 0.0)
    from draftproof.target.transformers import TransformersTarget

    target = TransformersTarget.load(
        name,
        dtype=options.dtype or "float32",
        device=options.device,
        threads=options.threads,
        trust_remote_code=options.trust_remote_code,
        allow_pickle=options.allow_pickle,
        hidden_layers=hidden_layers,
    )
    progress(f"loading {name}", 1.0)
    return target, FileTokenizer(found.path)


def _load_openvino(
    name: str, options: LoadOptions, progress: Progress, hidden_layers: tuple[int, ...] = ()
) -> tuple[Target, Tokenizer]:
    from draftproof.target.openvino import OpenVINOTarget
    from draftproof.target.openvino_store import prepare

    weights: Any = options.weights or "file"  # `prepare` refuses what is no weight format
    activations: Any = options.activations or "float32"  # and `load` what is no kind of activations
    prepared = prepare(name, weights=weights, progress=progress)
    progress(f"loading {name}", 0.0)
    target = OpenVINOTarget.load(
        name,
        weights=weights,
        activations=activations,
        threads=options.threads,
        hidden_layers=hidden_layers,
        narrow=options.narrow,
    )
    progress(f"loading {name}", 1.0)
    return target, FileTokenizer(prepared.folder)


def dspark_argument(draft: str) -> str | None:
    """What follows "dspark:" in a drafter's name, "" for "dspark" alone; None if no part of it reads hidden states."""
    parts = [part.strip().partition(":") for part in draft.split("+")]
    return next((argument for name, _, argument in parts if name == "dspark"), None)


def load_target_for(draft: str, model: str, options: LoadOptions, progress: Progress) -> tuple[Target, Tokenizer]:
    """The target, with the hidden states that a DSpark drafter reads if one is asked for."""
    argument = dspark_argument(draft)
    if argument is None:
        return load_target(model, options, progress=progress)
    from draftproof.draft.dspark.factory import feature_layers
    from draftproof.draft.dspark.tap import FeatureTap

    layers = feature_layers(argument, model)
    load = _load_openvino if options.backend_for(model) == "openvino" else _load_transformers
    target, tokenizer = load(model, options, progress, layers)
    return FeatureTap(target), tokenizer


def load_engine(
    model: str,
    *,
    draft: str = "auto",
    verifier: str = "token",
    schedule: str = "adaptive",
    draft_length: int = 8,
    options: LoadOptions | None = None,
    progress: Progress = silent,
) -> Engine:
    """An engine ready to answer; `Engine.load` is this function.

    draft: "none", "lookup", "suffix", "retrieval[:FOLDER]", "dspark[:FOLDER]", "model:ID", several joined by "+", a
    drafter of another package, or "auto": retrieval where a datastore comes with the model, lookup otherwise. verifier:
    "token", "block", "match", "coupled". schedule: "adaptive", "fixed", "prefix", "prefix-budget".
    draft_length: 0..64 tokens a round; the most that schedules other than "fixed" take (`registry.longest_draft`).
    """
    started = perf_counter()
    check_drafter(draft)
    chosen_verifier = make_verifier(verifier)  # names are checked before anything slow happens
    check_schedule(schedule, draft_length)
    target, tokenizer = load_target_for(draft, model, options or LoadOptions(), progress)

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
