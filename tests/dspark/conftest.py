"""Fixtures of the DSpark tests: one tiny target for all of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import torch
from dspark_kit import tiny_model
from transformers import LlamaForCausalLM


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors this small are slower on several threads, and sums depend on how they are split."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def model() -> LlamaForCausalLM:
    return tiny_model()
