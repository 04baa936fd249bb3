"""Graphs for narrow passes: which there are, when the one for any number of tokens joins them, and that all agree."""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("openvino")

from draftproof.errors import InvalidValue
from draftproof.target import openvino_compile
from draftproof.target.base import Feed
from draftproof.target.openvino import OpenVINOTarget
from draftproof.target.openvino_runner import Runner

from .tiny_ir import some, values

TINY = 1e-4


def compiled(target: OpenVINOTarget) -> list[int | None]:
    """Tokens of the passes that have a graph, None for any number."""
    return [runner.tokens for runner in target._pages._runners]


def test_the_graph_for_any_number_of_tokens_is_compiled_when_prompts_or_a_batch_are_worth_it(folder: Path) -> None:
    rng = random.Random(8)
    target = OpenVINOTarget.load(folder, threads=1, activations="int8", narrow=(7,))
    assert compiled(target) == [7]
    for _ in range(8):  # 86 passes more than one wide pass each
        target.score([Feed(target.open(), some(rng, 75), 1)])
    assert compiled(target) == [7]
    target.score([Feed(target.open(), some(rng, 200), 1)])
    assert compiled(target) == [7, None]

    batch = OpenVINOTarget.load(folder, threads=1, activations="int8", narrow=(7,))
    handles = [batch.open() for _ in range(4)]
    batch.score([Feed(handle, [1], 1) for handle in handles[:3]])
    assert compiled(batch) == [7]
    batch.score([Feed(handle, [2], 1) for handle in handles])
    assert compiled(batch) == [7, None]


def test_a_wide_graph_whose_rows_differ_is_not_used_and_a_warning_says_so(
    folder: Path, fresh: Callable[[list[int]], np.ndarray], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    real = Runner.infer

    def wavering(self: Runner, ids: list[int], rest: Any) -> Any:
        logits, hidden = real(self, ids, rest)
        return logits + np.float32(0.1 * (self.tokens is None)), hidden

    monkeypatch.setattr(Runner, "infer", wavering)
    target = OpenVINOTarget.load(folder, threads=1, activations="int8", narrow=(7,))
    tokens = some(random.Random(9), 40)
    handles = [target.open() for _ in range(4)]
    scored = target.score([Feed(handle, tokens[i : i + 25], 9) for i, handle in enumerate(handles)])
    assert compiled(target) == [7]
    assert "rows would depend on how many tokens a pass takes (by 0.1 in the logits)" in caplog.text
    for i, rows in enumerate(scored):
        assert np.abs(values(rows) - fresh(tokens[i : i + 25])[-9:]).max() < TINY


def test_only_small_models_of_8_bit_weights_and_activations_get_a_narrow_graph_unasked(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for weights, activations, expected in (
        ("int8", "int8", [5, 9]),
        ("int8", "float32", [None]),
        ("file", "int8", [None]),
    ):
        target = OpenVINOTarget.load(folder, threads=1, weights=weights, activations=activations)  # type: ignore[arg-type]
        assert compiled(target) == expected
        assert target.narrow == (9 if expected == [5, 9] else None)
    monkeypatch.setattr(openvino_compile, "_SMALL", 1000)
    assert compiled(OpenVINOTarget.load(folder, threads=1, weights="int8", activations="int8")) == [None]


def test_narrow_passes_of_a_length_that_cannot_be_are_refused(folder: Path) -> None:
    with pytest.raises(InvalidValue, match=r"narrow=\(1, 7\).*passes of 2 to 512 tokens"):
        OpenVINOTarget.load(folder, threads=1, activations="int8", narrow=(1, 7))
    with pytest.raises(InvalidValue, match=r"narrow=\(0,\).*passes of 1 to 512 tokens"):
        OpenVINOTarget.load(folder, threads=1, narrow=(0,))


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads the system's list of mapped files")
def test_the_weights_file_is_mapped_once_whatever_graphs_there_are(folder: Path, tmp_path: Path) -> None:
    own = Path(shutil.copytree(folder, tmp_path / "own"))
    target = OpenVINOTarget.load(own, threads=1, activations="int8", narrow=(5, 7, 9))
    assert compiled(target) == [5, 7, 9]
    mapped = {line.split()[0] for line in Path("/proc/self/maps").read_text().splitlines() if str(own) in line}
    assert len(mapped) == 1


@pytest.mark.model
def test_rows_and_hidden_states_of_smollm2_are_the_same_bits_in_narrow_graphs_and_in_the_one_for_any_number() -> None:
    tokens = some(random.Random(4), 150, 49152)
    found = []
    for narrow in ((), (5, 9)):
        target = OpenVINOTarget.load(
            "smollm2", weights="int8", activations="int8", narrow=narrow, hidden_layers=(1, 15, 30)
        )
        handle = target.open()
        scored = [values(target.score([Feed(handle, tokens[:100], 40)])[0])]
        states = [target.hidden(handle).copy()]
        for start, end in itertools.pairwise([100, 101, 105, 110, 117, 118, 127, 129, 136, 141, 150]):
            scored.append(values(target.score([Feed(handle, tokens[start:end], end - start)])[0]))
            states.append(target.hidden(handle).copy())
        assert compiled(target) == [*narrow, *([] if narrow else [None])]
        found.append((np.concatenate(scored), np.concatenate(states, axis=1)))
    assert np.array_equal(found[0][0], found[1][0])
    assert np.array_equal(found[0][1], found[1][1])
