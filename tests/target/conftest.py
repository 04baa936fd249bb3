"""The one-layer model as a folder, and the rows its graph gives as it was exported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

PLAIN = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "INFERENCE_NUM_THREADS": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from . import tiny_ir  # needs OpenVINO, which not every test here does

    return tiny_ir.save(tiny_ir.tiny(), tmp_path_factory.mktemp("ir") / "tiny")


@pytest.fixture(scope="module")
def fresh() -> Callable[[list[int]], np.ndarray]:
    """Rows of every position of a sequence, from the exported graph: (len(tokens), vocab)."""
    import openvino as ov

    from . import tiny_ir

    request = ov.Core().compile_model(tiny_ir.tiny(), "CPU", PLAIN).create_infer_request()

    def rows(tokens: list[int]) -> np.ndarray:
        request.reset_state()
        n = len(tokens)
        inputs = {"input_ids": np.array([tokens]), "attention_mask": np.ones((1, n), np.int64)}
        request.infer(inputs | {"position_ids": np.arange(n)[None], "beam_idx": np.zeros(1, np.int32)})
        return request.get_output_tensor(0).data[0].copy()

    return rows
