"""Models made into IR folders: what a conversion keeps of its source."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

pytest.importorskip("openvino")

from draftproof.models.tokenizer import FileTokenizer
from draftproof.target.openvino import OpenVINOTarget
from draftproof.target.openvino_store import prepare

from . import tiny_ir
from .tiny_ir import VOCAB


def test_what_optimum_exports_keeps_the_tokenizer_the_template_and_the_ends_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """optimum-intel writes the graph; tokenizer, chat template and ids that end an answer are the source's files."""
    source = tmp_path / "source"
    source.mkdir()
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.save(str(source / "tokenizer.json"))
    (source / "tokenizer_config.json").write_text('{"eos_token": "w2"}')
    (source / "config.json").write_text('{"architectures": ["X"], "eos_token_id": 2, "max_position_embeddings": 99}')
    (source / "generation_config.json").write_text('{"eos_token_id": [2, 5]}')
    (source / "chat_template.jinja").write_text("w1 {{ messages[0]['content'] }} w3")
    (source / "model.safetensors").write_bytes(b"weights")
    (source / "model.safetensors.index.json").write_text("{}")
    asked: list[object] = []

    class Exporter:
        @classmethod
        def from_pretrained(cls, folder: Path, **options: object) -> Exporter:
            asked.append((folder, options))
            return cls()

        def save_pretrained(self, folder: Path) -> None:
            tiny_ir.save(tiny_ir.tiny(), folder)

    package, intel = ModuleType("optimum"), ModuleType("optimum.intel")
    intel.OVModelForCausalLM = Exporter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "optimum", package)
    monkeypatch.setitem(sys.modules, "optimum.intel", intel)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    exported = prepare(source)
    assert asked == [(source, {"export": True, "compile": False, "load_in_8bit": False})]
    kept = {file.name for file in exported.folder.iterdir()}
    assert kept >= {"openvino_model.xml", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    assert not kept & {"model.safetensors", "model.safetensors.index.json"}
    tokenizer = FileTokenizer(exported.folder)
    assert tokenizer.chat([{"role": "user", "content": "w7"}]) == tokenizer.encode("w1 w7 w3")
    target = OpenVINOTarget.load(source, threads=1)
    assert (target.eos_ids, target.context_limit) == ({2, 5}, 99)
    assert len(asked) == 1  # done once
