"""From a model on disk to an OpenVINO IR folder the target can load.

What it is for: `prepare` takes an IR folder as it is, converts a GGUF file through openvino-genai's
reader (and then gives the graph the file's own values, see `openvino_weights.restore`), and exports a
Hugging Face folder through optimum-intel when that is installed. Guarantees: a conversion is done once
per file, weight format and version of the converter; the folder appears in the cache whole or not at
all, a half-written one is detected by its manifest and made again. What it does not do: compile.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from draftproof.errors import InvalidValue, MissingExtra, ModelFileError, Unsupported
from draftproof.models.cache import Progress, cache_root, complete, fresh_folder, silent
from draftproof.models.gguf_tokenizer import write_tokenizer
from draftproof.models.store import resolve
from draftproof.models.tokenizer import eos_ids
from draftproof.target.openvino_weights import FileMatrix, requantize, restore

WeightFormat = Literal["file", "int4", "int8", "float16"]
"""`file`: the model's values as they are; the others round them, which makes another model."""

MODEL = "openvino_model.xml"
FACTS = "target.json"
_CONVERTER = 3
"""Raised whenever the folder's content changes, so that older conversions are made again."""

INSTALL = "pip install 'draftproof[openvino]'"
_INSTALL_OPTIMUM = "pip install 'optimum-intel[openvino]'"


@dataclass(frozen=True, slots=True)
class Prepared:
    """An IR folder, the model's name, and what its files say about it."""

    name: str
    folder: Path
    context_limit: int | None
    eos_ids: frozenset[int]


def need(library: str, remedy: str = INSTALL) -> Any:
    """The imported library. Raises MissingExtra with the pip command."""
    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise MissingExtra(f"this needs {library}", remedy) from error


def prepare(model: str | Path, *, weights: WeightFormat = "file", progress: Progress | None = None) -> Prepared:
    """The IR folder of a model: an IR folder, a GGUF file, an alias, or a Hugging Face folder or Hub id.

    Raises InvalidValue, ModelNotFound, ModelFileError, MissingExtra, and Unsupported for architectures
    the converters do not know.
    """
    if weights not in get_args(WeightFormat):
        raise InvalidValue(f"weights={weights!r}", f"one of {', '.join(get_args(WeightFormat))}")
    report, path = progress or silent, Path(model).expanduser()
    if (path / MODEL).is_file():
        if weights == "file":
            return Prepared(path.name, path, *_facts(path))
        fingerprint = f"{path.resolve()}:{(path / MODEL).stat().st_mtime_ns}"
        return _cached(path.name, fingerprint, weights, lambda to: _rewrite(path, to, weights))
    found = resolve(str(model), kind="gguf" if _is_gguf(str(model), path) else "hf", progress=report)
    if found.path.is_dir():
        return _cached(found.name, found.fingerprint, weights, lambda to: _export(found.path, to, weights))
    return _cached(found.name, found.fingerprint, weights, lambda to: _convert(found.path, to, weights, report))


def _is_gguf(model: str, path: Path) -> bool:
    if path.is_dir():
        return any(path.glob("*.gguf"))
    return path.exists() or path.suffix == ".gguf" or "/" not in model


def _cached(name: str, fingerprint: str, weights: WeightFormat, make: Callable[[Path], None]) -> Prepared:
    """The folder of this conversion in the cache, made if it is missing, half-written or outdated."""
    version = importlib.metadata.version("openvino")
    key = hashlib.sha256(f"{fingerprint}|{weights}|{version}|{_CONVERTER}".encode()).hexdigest()[:16]
    folder = cache_root() / "openvino" / f"{Path(name).stem}-{weights}-{key}"
    if not complete(folder):
        with fresh_folder(folder) as temporary:
            make(temporary)
    return Prepared(name, folder, *_facts(folder))


def _facts(folder: Path) -> tuple[int | None, frozenset[int]]:
    """The context limit and the ids that end an answer, from our own notes or from config.json."""
    if (folder / FACTS).is_file():
        facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
        return facts["context_limit"], frozenset(facts["eos_ids"])
    if not (folder / "config.json").is_file():
        return None, frozenset()
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    text = config.get("text_config", config)
    return text.get("max_position_embeddings"), eos_ids(folder)


def _convert(gguf: Path, folder: Path, weights: WeightFormat, report: Progress) -> None:
    """Fill `folder` from a GGUF file: openvino-genai builds the graph, the weights become the file's own."""
    genai, library = need("openvino_genai"), need("gguf")
    need("openvino_tokenizers")
    reader = _read(gguf, library)
    report(f"converting {gguf.name}: graph", 0.0)
    # The reader writes the IR beside the file it reads, so it reads through a link inside our folder.
    link = folder / "model.gguf"
    try:
        link.symlink_to(gguf.resolve())
    except OSError:  # no right to make links (Windows)
        shutil.copyfile(gguf, link)
    try:
        genai.LLMPipeline(str(link), "CPU", enable_save_ov_model=True)
    except (RuntimeError, IndexError) as error:  # what its reader raises has no common type
        kind = reader.fields["general.architecture"].contents()
        raise Unsupported(
            f"openvino-genai cannot read {gguf.name} (architecture {kind}): {str(error).strip().splitlines()[-1]}",
            "it reads the llama, qwen2 and qwen3 families; use the transformers target for others",
        ) from error
    link.unlink()
    if not (folder / MODEL).is_file():
        raise ModelFileError(f"openvino-genai wrote no graph for {gguf.name}", "update openvino-genai, or report it")
    report(f"converting {gguf.name}: weights", 0.6)
    _edit(folder, lambda model: restore(model, _matrices(reader, library)), weights)
    facts = {"context_limit": _field(reader, "context_length"), "eos_ids": _ends(reader)}
    (folder / FACTS).write_text(json.dumps(facts), encoding="utf-8")
    write_tokenizer(reader, folder)
    report(f"converting {gguf.name}", 1.0)


def _read(gguf: Path, library: Any) -> Any:
    """The opened file; openvino-genai's own reader would crash on a truncated one."""
    try:
        reader = library.GGUFReader(gguf)
        reader.fields["general.architecture"].contents()
    except (ValueError, KeyError, IndexError, TypeError, OSError) as error:
        # What numpy and gguf raise on a damaged file has no common type.
        raise ModelFileError(
            f"{gguf.name} cannot be read: {error}", "it is truncated or damaged; fetch it again"
        ) from error
    return reader


def _edit(folder: Path, change: Callable[[Any], Any], weights: WeightFormat) -> None:
    """Change the weights of the IR in `folder` and save it again. float32 constants stay float32."""
    ov = need("openvino")
    model = ov.Core().read_model(folder / MODEL)
    change(model)
    if weights != "file":
        requantize(model, weights)
    # The constants we kept are read from the old file while the new one is written.
    ov.save_model(model, folder / "new.xml", compress_to_fp16=False)
    del model
    (folder / "new.xml").replace(folder / MODEL)
    (folder / "new.bin").replace((folder / MODEL).with_suffix(".bin"))


def _rewrite(source: Path, folder: Path, weights: WeightFormat) -> None:
    """Fill `folder` with a copy of an IR folder whose weights have another format."""
    for file in source.iterdir():
        if file.is_file():
            shutil.copyfile(file, folder / file.name)
    _edit(folder, lambda model: None, weights)


def _export(source: Path, folder: Path, weights: WeightFormat) -> None:
    """Fill `folder` from a Hugging Face folder through optimum-intel, values kept; then `weights`."""
    intel = need("optimum.intel", _INSTALL_OPTIMUM)
    model = intel.OVModelForCausalLM.from_pretrained(source, export=True, compile=False, load_in_8bit=False)
    model.save_pretrained(folder)
    for file in (*source.glob("*.json"), *source.glob("*.jinja")):  # tokenizer, chat template, ids that end an answer
        if not (folder / file.name).exists() and not file.name.endswith(".index.json"):
            shutil.copyfile(file, folder / file.name)
    if weights != "file":
        _edit(folder, lambda graph: None, weights)


def _field(reader: Any, suffix: str) -> int | None:
    """A number from the file's metadata, by the end of its key."""
    for key, field in reader.fields.items():
        if key.endswith("." + suffix):
            return int(field.contents())
    return None


def _ends(reader: Any) -> list[int]:
    found = (_field(reader, f"ggml.{key}_token_id") for key in ("eos", "eot"))
    return sorted({token for token in found if token is not None})


def _matrices(reader: Any, library: Any) -> Iterator[FileMatrix]:
    """Every matrix of a GGUF file; rotary halves of llama's query and key rows are interleaved in it."""
    heads = {"attn_q": _field(reader, "attention.head_count"), "attn_k": _field(reader, "attention.head_count_kv")}
    for tensor in reader.tensors:
        shape = tuple(int(size) for size in reversed(tensor.shape))
        if len(shape) != 2:
            continue
        count = next((n for part, n in heads.items() if f".{part}.weight" in tensor.name), None)

        def load(rows: int, tensor: Any = tensor) -> Any:
            return library.quants.dequantize(tensor.data[:rows], tensor.tensor_type)

        yield FileMatrix(tensor.name, (shape[0], shape[1]), load, shape[0] // count if count else None)
