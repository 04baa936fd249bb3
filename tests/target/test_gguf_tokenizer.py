"""The tokenizer written from a GGUF file's vocabulary: its tokens, merges, special tokens and splitting rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from draftproof.models.gguf_tokenizer import write_tokenizer
from draftproof.models.tokenizer import FileTokenizer

WORDS = ["<|end|>", "<think>", "a", "b", "1", "2", "Ġ", "ab", "12", "Ġab"]
FIELDS: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": WORDS,
    "tokenizer.ggml.token_type": [3, 4] + [1] * 8,
    "tokenizer.ggml.merges": ["a b", "1 2", "Ġ ab"],
    "tokenizer.ggml.eos_token_id": 0,
    "tokenizer.chat_template": "{% for m in messages %}{{ m.content }}<|end|>{% endfor %}",
}


class Field:
    def __init__(self, value: Any) -> None:
        self.value = value

    def contents(self) -> Any:
        return self.value


class Reader:
    def __init__(self, **changed: Any) -> None:
        named = {f"tokenizer.ggml.{key}": value for key, value in changed.items()}
        self.fields = {key: Field(value) for key, value in (FIELDS | named).items()}


def ids(folder: Path, text: str) -> list[str]:
    return [WORDS[i] for i in FileTokenizer(folder).encode(text)]


def test_text_becomes_the_files_tokens_and_back(tmp_path: Path) -> None:
    assert write_tokenizer(Reader(), tmp_path)
    assert ids(tmp_path, "ab ab<|end|><think>") == ["ab", "Ġab", "<|end|>", "<think>"]
    tokenizer = FileTokenizer(tmp_path)
    assert tokenizer.decode(tokenizer.encode("ab ab<|end|><think>")) == "ab ab<think>"
    assert tokenizer.chat([{"role": "user", "content": "ab"}]) == [7, 0]


def test_the_splitting_rule_is_the_one_the_file_names(tmp_path: Path) -> None:
    write_tokenizer(Reader(), tmp_path)
    assert ids(tmp_path, "12") == ["1", "2"], "smollm takes every digit alone"
    write_tokenizer(Reader(pre="gpt-2"), tmp_path)
    assert ids(tmp_path, "12") == ["12"]
    write_tokenizer(Reader(pre="qwen2"), tmp_path)
    assert ids(tmp_path, "12") == ["1", "2"]
    write_tokenizer(Reader(pre="llama-bpe"), tmp_path)
    assert ids(tmp_path, "12") == ["12"]


@pytest.mark.parametrize("changed", [{"model": "llama"}, {"pre": "something new"}])
def test_another_kind_of_vocabulary_writes_nothing(tmp_path: Path, changed: dict[str, str]) -> None:
    assert not write_tokenizer(Reader(**changed), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.model
def test_smollm2_has_the_ids_that_transformers_reads_from_the_same_file(smollm2: tuple[Any, Any]) -> None:
    from draftproof.target.openvino_store import prepare

    pytest.importorskip("openvino_genai")
    ours, theirs = FileTokenizer(prepare("smollm2").folder), smollm2[1]
    text = "In 2024, Zoë paid 3.14 € for 12 pies;\n\n\tdef f(x): return x**2  # 日本語 🙂 it's we'll; x²³ ½ ٣٤ 12³4"
    assert ours.encode(text) == theirs.encode(text)
    assert ours.fingerprint() == theirs.fingerprint()
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yo"},
        {"role": "user", "content": "?"},
    ]
    assert ours.chat(messages) == theirs.chat(messages)
