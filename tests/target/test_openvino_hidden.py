"""Hidden states of the OpenVINO target: those of a fresh pass of the exported graph, whatever came before.

Three layers built by hand; the exported graph (its own growing state) gives its residual stream as a reference.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

ov = pytest.importorskip("openvino")

from draftproof.errors import InvalidValue, Unsupported  # noqa: E402
from draftproof.target import openvino as module  # noqa: E402
from draftproof.target.base import Feed  # noqa: E402
from draftproof.target.openvino import OpenVINOTarget  # noqa: E402

from . import tiny_ir  # noqa: E402
from .tiny_ir import VOCAB, WIDTH  # noqa: E402

TINY = 1e-4
DEPTH = 3
LAYERS = (0, 2, 3)
PLAIN = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "INFERENCE_NUM_THREADS": 1}

Fresh = Callable[[list[int]], np.ndarray]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_ir.save(tiny_ir.tiny(layers=DEPTH), tmp_path_factory.mktemp("ir") / "deep")


@pytest.fixture(scope="module")
def fresh() -> Fresh:
    """Hidden states of a sequence, from the exported graph: (LAYERS, tokens, WIDTH)."""
    compiled = ov.Core().compile_model(tiny_ir.tiny(layers=DEPTH, stream=True), "CPU", PLAIN)
    request = compiled.create_infer_request()

    def states(tokens: list[int]) -> np.ndarray:
        request.reset_state()
        n = len(tokens)
        inputs = {"input_ids": np.array([tokens]), "attention_mask": np.ones((1, n), np.int64)}
        request.infer(inputs | {"position_ids": np.arange(n)[None], "beam_idx": np.zeros(1, np.int32)})
        return np.stack([request.get_tensor(f"stream.{layer}").data[0].copy() for layer in LAYERS])

    return states


@pytest.fixture(params=["float32", "int8"])
def target(folder: Path, request: pytest.FixtureRequest) -> OpenVINOTarget:
    """With int8, passes are filled up; the tiny model's float weights stay in float products."""
    return OpenVINOTarget.load(folder, threads=1, hidden_layers=LAYERS, activations=request.param)


def some(rng: random.Random, n: int) -> list[int]:
    return [rng.randrange(VOCAB) for _ in range(n)]


@pytest.mark.parametrize("seed", range(3))
def test_states_after_ragged_feeds_and_rollbacks_are_those_of_a_fresh_pass(
    target: OpenVINOTarget, fresh: Fresh, seed: int
) -> None:
    rng = random.Random(seed)
    live: dict[int, list[int]] = {target.open(): [] for _ in range(4)}
    for _ in range(30):
        feeds = []
        for handle in rng.sample(list(live), rng.randint(1, 4)):
            n = rng.randint(30, 45) if rng.random() < 0.15 else rng.randint(1, 6)
            feeds.append(Feed(handle, some(rng, n), rng.randint(1, n)))
        target.score(feeds)
        for feed in feeds:
            live[feed.handle] += feed.tokens
            states = target.hidden(feed.handle)
            assert states.shape == (len(LAYERS), len(feed.tokens), WIDTH)
            assert states.dtype == np.float32
            expected = fresh(live[feed.handle])[:, -len(feed.tokens) :]
            assert np.abs(states - expected).max() < TINY
        for handle, tokens in live.items():
            keep = rng.randint(max(0, len(tokens) - 6), len(tokens)) if len(tokens) < 150 else 10
            target.rollback(handle, keep)
            del tokens[keep:]


def test_a_long_feed_in_pieces_gives_the_states_of_all_its_tokens(
    target: OpenVINOTarget, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK", 16)
    tokens, other = some(random.Random(4), 70), [5, 6, 7]
    a, b = target.open(), target.open()
    target.score([Feed(a, tokens, 1), Feed(b, other, 1)])
    assert np.abs(target.hidden(a) - fresh(tokens)).max() < TINY
    assert np.abs(target.hidden(b) - fresh(other)).max() < TINY


def test_states_stay_what_they_were_after_later_passes(target: OpenVINOTarget) -> None:
    handle = target.open()
    target.score([Feed(handle, [1, 2, 3], 1)])
    states = target.hidden(handle)
    copy = states.copy()
    target.score([Feed(handle, [4, 5, 6], 1)])
    assert np.array_equal(states, copy)


def test_rows_are_the_same_with_and_without(target: OpenVINOTarget, folder: Path) -> None:
    plain = OpenVINOTarget.load(folder, threads=1)
    tokens = some(random.Random(5), 40)
    a, b = (t.score([Feed(t.open(), tokens, 7)])[0].values for t in (target, plain))
    assert np.abs(a - b).max() < TINY


def test_who_asks_for_no_states_pays_for_none(folder: Path) -> None:
    plain = OpenVINOTarget.load(folder, threads=1)
    handle = plain.open()
    plain.score([Feed(handle, [1, 2, 3], 1)])
    assert [port.names for port in plain._pages._runners[0].request.model_outputs] == [{"logits"}]
    with pytest.raises(Unsupported, match="no hidden states are kept"):
        plain.hidden(handle)


def test_what_a_caller_gets_wrong_is_refused_by_name(target: OpenVINOTarget, folder: Path) -> None:
    handle = target.open()
    with pytest.raises(InvalidValue, match=f"sequence {handle} yet"):
        target.hidden(handle)
    target.score([Feed(handle, [1], 1)])
    target.close(handle)
    assert not target._hidden
    with pytest.raises(InvalidValue, match=f"sequence {handle}"):
        target.hidden(handle)
    with pytest.raises(InvalidValue, match=rf"hidden layers \[4\] of deep .*0 \(the embedding\) to {DEPTH}"):
        OpenVINOTarget.load(folder, threads=1, hidden_layers=(1, 4))


def test_a_graph_whose_stream_cannot_be_followed_is_refused(tmp_path: Path) -> None:
    model = tiny_ir.tiny()
    head = model.output("logits").get_node().input_value(0).get_node()
    joint = head.input_value(0).get_node()
    head.input(0).replace_source_output(joint.input_value(1))  # no residual: the head reads the attention alone
    model.validate_nodes_and_infer_types()
    folder = tiny_ir.save(model, tmp_path / "straight")
    OpenVINOTarget.load(folder, threads=1)
    with pytest.raises(Unsupported, match="straight has no residual stream"):
        OpenVINOTarget.load(folder, threads=1, hidden_layers=(1,))
