"""What is stored is whole: crashes, full disks and doubles leave a store that can be used."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from draftproof.errors import DraftproofError, InvalidValue, ModelFileError
from draftproof.train.store import INDEX, FeatureStore

WIDTH = 4


def _add(store: FeatureStore, seed: int, length: int = 9) -> bool:
    source = np.random.default_rng(seed)
    tokens = source.integers(0, 50, length).tolist()
    features = source.normal(size=(length, WIDTH)).astype(np.float32)
    return store.add(tokens, features, np.arange(length, dtype=np.float32), prompt_length=3, temperature=1.0)


def test_a_store_gives_back_what_was_put_in(tmp_path: Path) -> None:
    store = FeatureStore.create(tmp_path, width=WIDTH, facts={"model": "m"})
    assert _add(store, 1)
    assert _add(store, 2, 12)
    again = FeatureStore.open(tmp_path)
    source = np.random.default_rng(2)
    tokens, features, totals = again.read(again.entries[1])
    assert tokens.tolist() == source.integers(0, 50, 12).tolist()
    np.testing.assert_array_equal(features, source.normal(size=(12, WIDTH)).astype(np.float16))
    assert totals.tolist() == list(range(12))
    assert again.token_counts(50, again.entries).sum() == 21


def test_a_sequence_is_stored_once(tmp_path: Path) -> None:
    store = FeatureStore.create(tmp_path, width=WIDTH, facts={})
    assert _add(store, 1)
    assert not _add(store, 1)
    assert not _add(FeatureStore.create(tmp_path, width=WIDTH, facts={}), 1)
    assert len(store.entries) == 1


def test_what_a_crash_left_behind_is_cut_off(tmp_path: Path) -> None:
    store = FeatureStore.create(tmp_path, width=WIDTH, facts={})
    _add(store, 1)
    with (tmp_path / "features.f16").open("ab") as file:
        file.write(b"\1" * 13)
    with (tmp_path / INDEX).open("a") as file:
        file.write('{"start": 9, "len')
    after = FeatureStore.create(tmp_path, width=WIDTH, facts={})
    assert len(after.entries) == 1
    _add(after, 2)
    tokens, features, _ = FeatureStore.open(tmp_path).read(after.entries[1])
    source = np.random.default_rng(2)
    assert tokens.tolist() == source.integers(0, 50, 9).tolist()
    np.testing.assert_array_equal(features, source.normal(size=(9, WIDTH)).astype(np.float16))


def test_a_full_disk_leaves_what_was_written_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FeatureStore.create(tmp_path, width=WIDTH, facts={})
    _add(store, 1)
    real = Path.open

    def full(self: Path, *args: object, **kwargs: object) -> object:
        if self.name == "log_total.f32" and args and args[0] == "ab":
            raise OSError(28, "No space left on device")
        return real(self, *args, **kwargs)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(DraftproofError, match="No space"):
        _add(store, 2)
    monkeypatch.undo()
    after = FeatureStore.create(tmp_path, width=WIDTH, facts={})
    assert len(after.entries) == 1
    assert _add(after, 3)
    np.testing.assert_array_equal(after.read(after.entries[1])[2], np.arange(9))


@pytest.mark.parametrize("name", ["tokens.i32", "features.f16", "log_total.f32"])
def test_a_store_that_lacks_numbers_is_refused_and_left_as_it_is(tmp_path: Path, name: str) -> None:
    """A copy that was interrupted: made longer again it would be trained on zeros."""
    store = FeatureStore.create(tmp_path, width=WIDTH, facts={})
    _add(store, 1)
    short = (tmp_path / name).read_bytes()[:-5]
    (tmp_path / name).write_bytes(short)
    for opened in (lambda: FeatureStore.open(tmp_path), lambda: FeatureStore.create(tmp_path, width=WIDTH, facts={})):
        with pytest.raises(ModelFileError, match="shorter"):
            opened()
    assert (tmp_path / name).read_bytes() == short
    (tmp_path / name).unlink()
    with pytest.raises(ModelFileError, match="shorter"):
        FeatureStore.open(tmp_path)


def test_opening_a_store_does_not_write_its_index_and_repairing_it_is_all_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FeatureStore.create(tmp_path, width=WIDTH, facts={})
    _add(store, 1)

    def stopped(self: Path, *args: object, **kwargs: object) -> int:
        self.write_bytes(b"")
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", stopped)
    assert len(FeatureStore.create(tmp_path, width=WIDTH, facts={}).entries) == 1
    with (tmp_path / INDEX).open("a") as file:
        file.write('{"start": 9, "len')
    with pytest.raises(KeyboardInterrupt):
        FeatureStore.create(tmp_path, width=WIDTH, facts={})
    monkeypatch.undo()
    after = FeatureStore.create(tmp_path, width=WIDTH, facts={})
    np.testing.assert_array_equal(after.read(after.entries[0])[2], np.arange(9))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"features": np.zeros((9, WIDTH + 1))}, "features"),
        ({"features": np.full((9, WIDTH), 1e6)}, "float16"),
        ({"features": np.full((9, WIDTH), np.nan)}, "float16"),
        ({"prompt_length": 9}, "prompt and answer"),
    ],
)
def test_what_cannot_be_stored_is_refused(tmp_path: Path, change: dict[str, object], match: str) -> None:
    store = FeatureStore.create(tmp_path, width=WIDTH, facts={})
    values: dict[str, object] = {"features": np.zeros((9, WIDTH)), "prompt_length": 3, **change}
    with pytest.raises(InvalidValue, match=match):
        store.add(
            list(range(9)),
            values["features"],  # type: ignore[arg-type]
            np.zeros(9),
            prompt_length=values["prompt_length"],  # type: ignore[arg-type]
            temperature=1.0,
        )
    assert FeatureStore.open(tmp_path).entries == []


def test_a_store_made_with_other_settings_is_refused(tmp_path: Path) -> None:
    FeatureStore.create(tmp_path, width=WIDTH, facts={"model": "a"})
    with pytest.raises(InvalidValue, match="other settings"):
        FeatureStore.create(tmp_path, width=WIDTH, facts={"model": "b"})


def test_a_folder_that_is_no_store_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="no feature store"):
        FeatureStore.open(tmp_path)
