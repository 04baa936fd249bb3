"""Fixtures shared by tests that need a real model. Each model is loaded once for the whole run."""

import pytest


@pytest.fixture(scope="session")
def smollm2():
    """(target, tokenizer) of the default model, float32, transformers."""
    from draftproof.load import LoadOptions, load_target

    return load_target("smollm2", LoadOptions(backend="transformers", threads=2))
