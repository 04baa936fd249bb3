"""A target's hidden states of whole sequences, put into a store once.

Guarantees: what is stored of a token is what the target computes at that token in any engine (up to the rounding of
its dtype and of float16). Stops after any sequence and goes on where it stopped. What it does not do: write text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch
import torch.nn.functional as F

from draftproof.draft.dspark.hidden import HiddenTarget
from draftproof.target.base import Array, Feed
from draftproof.train.corpus import Text
from draftproof.train.store import FeatureStore


def store_texts(
    store: FeatureStore,
    texts: Iterable[Text],
    target: HiddenTarget,
    head: Array,
    *,
    dtype: torch.dtype = torch.float32,
    on_text: Callable[[Text], None] = lambda text: None,
) -> int:
    """Score every text that is not stored yet; returns how many were added.

    The target's last kept layer must be its last one (after the final norm): p follows from it and `head`, the LM
    head's table (vocab, hidden).
    """
    added = 0
    table = torch.from_numpy(np.ascontiguousarray(head)).to(dtype)
    for text in texts:
        if not store.has(text.tokens):
            features = _features(target, text.tokens)
            last = torch.from_numpy(features[:, -head.shape[1] :]).to(dtype)
            log_total = F.linear(last, table).float().logsumexp(-1).numpy()
            added += store.add(
                text.tokens,
                features,
                log_total,
                prompt_length=text.prompt_length,
                temperature=text.temperature,
                kind=text.kind,
            )
        on_text(text)
    return added


def _features(target: HiddenTarget, tokens: tuple[int, ...]) -> Array:
    handle = target.open()
    try:
        target.score([Feed(handle, list(tokens), rows=1)])
        states = target.hidden(handle)  # (layers, tokens, hidden)
    finally:
        target.close(handle)
    return np.concatenate(list(states), axis=-1)
