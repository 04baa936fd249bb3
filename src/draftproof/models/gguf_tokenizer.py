"""From the vocabulary inside a GGUF file to tokenizer.json and tokenizer_config.json, without torch.

What it is for: a model converted from GGUF can be talked to with no more than the `tokenizers` library, and a text has
the same tokens in every backend.
Guarantees: byte-level BPE with the file's tokens, merges, special tokens and chat template, and the
splitting rule that the file names. What it does not do: other kinds of vocabulary (SentencePiece, WordPiece)
or splitting rules not listed here; then nothing is written and `FileTokenizer` says what is missing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

_CONTROL, _USER_DEFINED = 3, 4
"""Token types of GGUF that are matched before splitting: control tokens are special, the others are text."""

_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = _QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")


def write_tokenizer(reader: Any, folder: Path) -> bool:
    """Write the two files into `folder` from an opened GGUF file; False if its vocabulary is of another kind."""
    values = {key: field.contents() for key, field in reader.fields.items() if key.startswith("tokenizer.")}
    splitting = splitting_of(values)
    if values.get("tokenizer.ggml.model") != "gpt2" or splitting is None:
        return False
    tokens: list[str] = values["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in values["tokenizer.ggml.merges"]]
    kinds: list[int] = values.get("tokenizer.ggml.token_type", [1] * len(tokens))
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = splitting
    tokenizer.decoder = decoders.ByteLevel()
    whole = [(token, kind) for token, kind in zip(tokens, kinds, strict=True) if kind in (_CONTROL, _USER_DEFINED)]
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=k == _CONTROL) for t, k in whole])
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {"add_bos_token": bool(values.get("tokenizer.ggml.add_bos_token", False))}
    for ours, theirs in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token = values.get(f"tokenizer.ggml.{theirs}_token_id")
        if token is not None:
            config[f"{ours}_token"] = tokens[token]
    if "tokenizer.chat_template" in values:
        config["chat_template"] = values["tokenizer.chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    return True


def splitting_of(values: Mapping[str, Any]) -> Any:
    """The pre-tokenizer that the file's values name (`tokenizer.ggml.pre`); None if it is not known here."""
    name = str(values.get("tokenizer.ggml.pre", "gpt-2"))
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if name in ("default", "gpt-2"):
        return words
    if name == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
    if name in ("qwen2", "llama-bpe"):
        pattern = Regex(_QWEN2 if name == "qwen2" else _LLAMA3)
        return pre_tokenizers.Sequence([pre_tokenizers.Split(pattern, "isolated"), bytes_only])
    return None
