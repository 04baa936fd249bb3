"""Repairs one fault of vLLM's CPU kernels in a server that is started with this folder on PYTHONPATH.

What it is for: showing that this fault, and nothing else, is what the audit finds (docs/audit.md, "Servers over HTTP").
In vLLM 0.32.0, `_expand_kernel_impl` in vllm/utils/cpu_triton_utils.py converts its output to int64, lets the kernel
fill the converted copy and drops it, so the caller goes on with memory that nobody wrote: temperature, top_k and top_p
of every drafted position (vllm-project/vllm issue 55005). Here the values are written where the caller reads them.
What it does not do: change any other module; it is imported by a Python that does not have this project.
"""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

FAULTY = "vllm.utils.cpu_triton_utils"


def expand(
    output: Any,
    values: Any,
    ends: Any,
    replace_from: float,
    replace_to: float,
    MAX_NUM_TOKENS: Any = None,  # noqa: N803
) -> None:
    """output[i] = the value of the request that row i belongs to; ends: rows up to and including each request."""
    replaced = values.masked_fill(values == replace_from, replace_to)
    output.copy_(replaced.repeat_interleave(ends.diff(prepend=ends.new_zeros(1))))


class _Repairing(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        assert hasattr(module, "_expand_kernel_impl"), "another version of vLLM"
        vars(module)["_expand_kernel_impl"] = expand


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != FAULTY:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Repairing(spec.loader)
        return spec


sys.meta_path.insert(0, _Finder())
