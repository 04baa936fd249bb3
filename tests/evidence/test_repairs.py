"""The repair of vLLM's expand: it writes where the caller reads, and changes no module but the one it names."""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path

import pytest
import torch

from evidence.servers import REPAIRS


@pytest.fixture
def repair(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """The names of the repair, whose finder is in place until the test ends."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    return runpy.run_path(str(REPAIRS / "sitecustomize.py"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
def test_every_row_gets_the_value_of_its_request(repair, dtype: torch.dtype) -> None:
    values = torch.tensor([0.0, 0.7, 3.0]).to(dtype)
    output = torch.full((6,), 9).to(dtype)
    repair["expand"](output, values, torch.tensor([2, 3, 6], dtype=torch.int32), 0, 1, MAX_NUM_TOKENS=128)
    one, low, high = torch.tensor([1.0, 0.7, 3.0]).to(dtype).tolist()
    low = low or 1  # 0.7 is 0 as an integer, and 0 is what is replaced
    assert output.tolist() == [one, one, low, high, high, high]


def test_only_the_faulty_module_is_changed(
    repair: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "vllm" / "utils"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").write_text("")
    for name in ("cpu_triton_utils", "other"):
        (package / f"{name}.py").write_text("def _expand_kernel_impl():\n    return 'as it was'\n")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert importlib.import_module("vllm.utils.cpu_triton_utils")._expand_kernel_impl is repair["expand"]
        assert importlib.import_module("vllm.utils.other")._expand_kernel_impl() == "as it was"
    finally:
        for name in [n for n in sys.modules if n.partition(".")[0] == "vllm"]:
            del sys.modules[name]
