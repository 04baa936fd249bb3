"""A target's embedding table, LM head and sizes straight from its GGUF file, without torch.

What it is for: drafting beside the OpenVINO target, which needs neither torch nor a converted folder. Guarantees: the
values are those a conversion to a Hugging Face folder would hold, the file's own ones dequantized to float32; they are
read once per file and then mapped from the user's cache, so that only rows that are used come into memory. What it
does not do: find the file.
"""

from __future__ import annotations

import importlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from draftproof.errors import MissingExtra, ModelFileError
from draftproof.models.cache import cache_root, complete, fresh_folder, writing

if TYPE_CHECKING:
    from draftproof.draft.dspark.hidden import TargetFacts

Array = npt.NDArray[Any]

_TENSORS = {"embedding": "token_embd.weight", "head": "output.weight"}


def gguf_tables(file: Path, fingerprint: str) -> tuple[TargetFacts, Array, Array]:
    """(sizes, embedding, LM head), the tables (vocab, hidden) float32, and the same array where they are tied.

    fingerprint: of the file's content. Raises MissingExtra without gguf, ModelFileError for a file that is damaged or
    lacks a table or a size, or if the cache cannot be written.
    """
    from draftproof.draft.dspark.hidden import TargetFacts

    folder = cache_root() / "tables" / f"{file.stem}-{fingerprint[:16]}"
    if not complete(folder):
        with fresh_folder(folder) as temporary:
            facts, tables = read_gguf(file, fingerprint)
            with writing(folder):
                for name, table in tables.items():
                    np.save(temporary / f"{name}.npy", table)
                (temporary / "facts.json").write_text(json.dumps(asdict(facts)), encoding="utf-8")
    facts = TargetFacts(**json.loads((folder / "facts.json").read_text(encoding="utf-8")))
    # Copy on write: nobody's change can reach the file.
    mapped = {n: np.load(folder / f"{n}.npy", mmap_mode="c") for n in _TENSORS if (folder / f"{n}.npy").is_file()}
    return facts, mapped["embedding"], mapped.get("head", mapped["embedding"])


def read_gguf(file: Path, fingerprint: str) -> tuple[TargetFacts, dict[str, Array]]:
    """Sizes, and the tables the file holds: "embedding", and "head" unless they are tied."""
    from draftproof.draft.dspark.hidden import TargetFacts

    try:
        library = importlib.import_module("gguf")
    except ImportError as error:
        raise MissingExtra("reading a GGUF file needs gguf", "pip install 'draftproof[openvino]'") from error
    try:
        reader = library.GGUFReader(file)
        kind = reader.fields["general.architecture"].contents()

        def field(key: str, *otherwise: Any) -> Any:
            if otherwise and f"{kind}.{key}" not in reader.fields:
                return otherwise[0]
            return reader.fields[f"{kind}.{key}"].contents()

        tensors = {tensor.name: tensor for tensor in reader.tensors}
        tables = {
            name: np.asarray(library.quants.dequantize(tensors[t].data, tensors[t].tensor_type), dtype=np.float32)
            for name, t in _TENSORS.items()
            if name == "embedding" or t in tensors
        }
        heads, hidden = int(field("attention.head_count")), int(field("embedding_length"))
        facts = TargetFacts(
            fingerprint=fingerprint,
            layers=int(field("block_count")),
            vocab=len(tables["embedding"]),
            hidden=hidden,
            heads=heads,
            kv_heads=int(field("attention.head_count_kv", heads)),
            head_dim=int(field("attention.key_length", hidden // heads)),
            mlp=int(field("feed_forward_length")),
            rope_theta=float(field("rope.freq_base", 10_000.0)),
            norm_eps=float(field("attention.layer_norm_rms_epsilon")),
        )
    except (ValueError, KeyError, IndexError, TypeError, OSError) as error:
        # What numpy and gguf raise on a damaged file has no common type.
        raise ModelFileError(f"{file.name} lacks or garbles {error}", "DSpark needs a whole llama-like file") from error
    return facts, tables
