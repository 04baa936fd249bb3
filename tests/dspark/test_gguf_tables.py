"""Tables and sizes from a GGUF file: the file's own values, read once, or a refusal that names what is missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

gguf = pytest.importorskip("gguf")

from draftproof.draft.dspark import gguf_tables as module  # noqa: E402
from draftproof.draft.dspark.gguf_tables import gguf_tables  # noqa: E402
from draftproof.draft.dspark.hidden import TargetFacts  # noqa: E402
from draftproof.errors import ModelFileError  # noqa: E402

VOCAB, HIDDEN = 11, 32


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "cache"))


def _file(path: Path, *, tied: bool = True, without: str = "") -> dict[str, np.ndarray]:
    source = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    numbers = {"block_count": 3, "embedding_length": HIDDEN, "feed_forward_length": 48, "attention.head_count": 4}
    for key, number in (numbers | {"attention.head_count_kv": 2}).items():
        if key != without:
            writer.add_uint32(f"llama.{key}", number)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    tables = {"token_embd.weight": source.normal(size=(VOCAB, HIDDEN)).astype(np.float32)}
    if not tied:
        tables["output.weight"] = source.normal(size=(VOCAB, HIDDEN)).astype(np.float32)
    for name, table in tables.items():
        writer.add_tensor(name, table)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tables


@pytest.mark.parametrize("tied", [True, False])
def test_tables_and_sizes_are_the_files_own(tmp_path: Path, tied: bool) -> None:
    expected = _file(tmp_path / "a.gguf", tied=tied)
    facts, embedding, head = gguf_tables(tmp_path / "a.gguf", "f" * 64)
    assert facts == TargetFacts("f" * 64, 3, VOCAB, HIDDEN, 4, 2, 8, 48, 10_000.0, float(np.float32(1e-5)))
    np.testing.assert_array_equal(embedding, expected["token_embd.weight"])
    np.testing.assert_array_equal(head, expected["token_embd.weight" if tied else "output.weight"])
    assert (head is embedding) == tied


def test_a_file_is_read_once_and_no_change_reaches_what_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = _file(tmp_path / "a.gguf")
    first = gguf_tables(tmp_path / "a.gguf", "f" * 64)[1]
    first[0] = 0
    monkeypatch.setattr(module, "read_gguf", lambda *a: pytest.fail("read again"))
    np.testing.assert_array_equal(gguf_tables(tmp_path / "a.gguf", "f" * 64)[1], expected["token_embd.weight"])


def test_a_file_that_lacks_a_size_or_is_cut_off_is_refused(tmp_path: Path) -> None:
    _file(tmp_path / "a.gguf", without="feed_forward_length")
    with pytest.raises(ModelFileError, match=r"a\.gguf lacks or garbles 'llama\.feed_forward_length'"):
        gguf_tables(tmp_path / "a.gguf", "f" * 64)
    data = (tmp_path / "a.gguf").read_bytes()
    (tmp_path / "a.gguf").write_bytes(data[:100])
    with pytest.raises(ModelFileError, match=r"a\.gguf lacks or garbles"):
        gguf_tables(tmp_path / "a.gguf", "f" * 64)
    assert not list((tmp_path / "cache" / "tables").iterdir())
