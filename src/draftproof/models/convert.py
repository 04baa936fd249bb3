"""From a GGUF file to a folder in Hugging Face layout: float32 safetensors, config, tokenizer files.

Guarantees: the folder appears whole or not at all (see `cache.fresh_folder`); the weights are the
file's own values, dequantized to float32 without further rounding; the chat template and the special
tokens are the file's. What it does not do: quantize, or read architectures transformers does not know.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

from draftproof.errors import MissingExtra, ModelFileError
from draftproof.models.cache import Progress, fresh_folder, silent, writing

MAGIC = b"GGUF"
LAYOUT = 2
"""Raised whenever a converted folder's content changes, so that older ones are made again."""


def check_gguf(path: Path) -> None:
    """Raise ModelFileError unless `path` can be read and begins like a GGUF file."""
    try:
        with path.open("rb") as file:
            magic = file.read(len(MAGIC))
    except OSError as error:
        raise ModelFileError(
            f"cannot read {path}: {error.strerror or error}", "check the path and its rights"
        ) from error
    if magic != MAGIC:
        raise ModelFileError(f"{path} is not a GGUF file", "give a .gguf file or a folder in Hugging Face layout")


def convert_gguf(gguf: Path, folder: Path, progress: Progress = silent) -> None:
    """Write `folder` (config.json, model.safetensors, tokenizer.json, ...) from the file `gguf`.

    Raises MissingExtra without torch, transformers or gguf; ModelFileError if the file is truncated or
    of an architecture that cannot be converted, or if the folder cannot be written.
    """
    for library in ("gguf", "torch", "transformers"):
        try:
            importlib.import_module(library)
        except ImportError as error:
            raise MissingExtra(
                f"converting a GGUF file needs {error.name}", "pip install 'draftproof[transformers]'"
            ) from error
    check_gguf(gguf)
    try:
        with fresh_folder(folder) as temporary:
            _convert(gguf, temporary, progress)
    except (ValueError, KeyError, IndexError, TypeError, NotImplementedError, OSError) as error:
        # What numpy, gguf and transformers raise on a damaged file has no common type.
        raise ModelFileError(
            f"{gguf.name} cannot be converted: {_first_line(error)}",
            "the file is truncated, damaged or of an unknown architecture; fetch it again or use another",
        ) from error


def _convert(gguf: Path, folder: Path, progress: Progress) -> None:
    import torch
    from gguf import GGUFReader
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    where: dict[str, Any] = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    progress(f"converting {gguf.name}: tokenizer", 0.0)
    try:
        tokenizer = AutoTokenizer.from_pretrained(**where)
    except Exception as error:  # the tokenizers library raises bare Exception
        raise ModelFileError(
            f"{gguf.name} has no usable tokenizer: {_first_line(error)}", "fetch it again or use another"
        ) from error
    config = AutoConfig.from_pretrained(**where)
    with torch.device("meta"):  # only the names and shapes of its weights are needed
        model = AutoModelForCausalLM.from_config(config)
    reader = GGUFReader(gguf)
    state, eos = _weights(gguf, reader, model, progress)
    with writing(folder):
        progress(f"converting {gguf.name}: writing", 0.95)
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        tokenizer.save_pretrained(folder)
        _keep_splitting(reader, folder / "tokenizer.json")
        # The folder holds plain float32 weights: neither the quantization nor the file's path belongs to it.
        fields = {k: v for k, v in config.to_dict().items() if k not in ("quantization_config", "_name_or_path")}
        fields |= {"dtype": "float32", "architectures": [type(model).__name__]}
        (folder / "config.json").write_text(json.dumps(fields, indent=1), encoding="utf-8")
        generation = {
            "eos_token_id": eos,
            "bos_token_id": config.bos_token_id,
            "pad_token_id": config.pad_token_id,
        }
        (folder / "generation_config.json").write_text(json.dumps(generation, indent=1), encoding="utf-8")
    progress(f"converting {gguf.name}: done", 1.0)


def _keep_splitting(reader: Any, file: Path) -> None:
    """Split text as the GGUF file says: transformers gives every byte-level vocabulary the rule of GPT-2."""
    from tokenizers import Tokenizer

    from draftproof.models.gguf_tokenizer import splitting_of

    fields = reader.fields
    values = {key: fields[key].contents() for key in ("tokenizer.ggml.model", "tokenizer.ggml.pre") if key in fields}
    splitting = splitting_of(values) if values.get("tokenizer.ggml.model") == "gpt2" else None
    if splitting is not None and file.is_file():
        tokenizer = Tokenizer.from_file(str(file))
        tokenizer.pre_tokenizer = splitting
        tokenizer.save(str(file))


def _weights(gguf: Path, reader: Any, model: Any, progress: Progress) -> tuple[dict[str, Any], list[int]]:
    """The state dict under Hugging Face names, and the ids that end an answer.

    transformers' own loader for these files needs one more library (accelerate) and keeps the weights
    packed; its name map and its per-architecture corrections are used here, the loop is ours.
    """
    import numpy as np
    import torch
    from gguf import dequantize
    from transformers.modeling_gguf_pytorch_utils import (
        TENSOR_PROCESSORS,
        TensorProcessor,
        get_gguf_hf_weights_map,
    )

    architecture = str(reader.fields["general.architecture"].contents())
    processor = TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config=model.config.to_dict())
    names = get_gguf_hf_weights_map(model, processor)
    parsed: dict[str, dict[str, Any]] = {"tensors": {}}
    state: dict[str, Any] = parsed["tensors"]  # processors of merged expert weights write here themselves
    for i, tensor in enumerate(reader.tensors):
        progress(f"converting {gguf.name}: weights", 0.1 + 0.85 * i / len(reader.tensors))
        values = dequantize(tensor.data, tensor.tensor_type)
        result = processor.process(weights=values, name=tensor.name, tensor_key_mapping=names, parsed_parameters=parsed)
        if result.name in names:
            state[names[result.name]] = torch.from_numpy(np.array(result.weights, dtype=np.float32))
    tied = set(model.all_tied_weights_keys)
    missing = sorted(set(model.state_dict()) - set(state) - tied)
    if missing:
        raise ModelFileError(
            f"{gguf.name} lacks {len(missing)} weights of {architecture}, first {missing[0]}",
            "fetch the file again, or use the model in Hugging Face layout",
        )
    ends = [f"tokenizer.ggml.{key}_token_id" for key in ("eos", "eot", "eom")]
    eos = dict.fromkeys(int(reader.fields[key].contents()) for key in ends if key in reader.fields)
    return state, list(eos)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
