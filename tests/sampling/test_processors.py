"""Custom processors: by name, with the right history, and unable to break a mask."""

from __future__ import annotations

import numpy as np
import pytest
from sampling_kit import logits, probs

from draftproof.errors import BadLogits, InvalidValue, UnknownName
from draftproof.sampling.controls import Controls
from draftproof.sampling.params import SamplingParams
from draftproof.sampling.processors import Processor


def made(processor: Processor, **asked: object) -> Controls:
    return Controls(SamplingParams(processors=["mine"], **asked), 3, prompt=[2], processors={"mine": processor})  # type: ignore[arg-type]


def test_a_processor_sees_prompt_answer_and_drafted_tokens_before_the_row() -> None:
    seen = []

    def note(history: tuple[int, ...], values: np.ndarray) -> np.ndarray:
        seen.append((history, values.tolist()))
        return values

    controls = made(note, banned_ids=[1])
    controls.commit(0)
    controls.distribution(logits([1, 2, 3]), 0, [2, 2])
    assert seen == [((2, 0, 2, 2), [1.0, -np.inf, 3.0])]


def test_a_processor_cannot_bring_back_a_masked_token() -> None:
    controls = made(lambda history, values: np.zeros(3), banned_ids=[1])
    assert probs(controls.distribution(logits([5, 5, 0]), 0, ())) == [0.5, 0, 0.5]
    narrow = made(lambda history, values: np.array([0.0, 9.0, 0.0]), allowed_ids=[0, 2])
    assert probs(narrow.distribution(logits([5, 5, 0]), 0, ())) == [0.5, 0, 0.5]


def test_an_unknown_processor_is_named_with_the_registered_ones() -> None:
    with pytest.raises(UnknownName, match=r"'mime' - did you mean 'mine'\? known: mine"):
        Controls(SamplingParams(processors=["mime"]), 3, processors={"mine": lambda h, v: v})
    with pytest.raises(UnknownName):
        Controls(SamplingParams(processors=["mine"]), 3)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_no_logits_are_an_error_with_the_processors_name(bad: float) -> None:
    with pytest.raises(BadLogits, match="'mine'"):
        made(lambda history, values: np.array([0.0, bad, 0.0])).distribution(logits([0, 0, 0]), 0, ())
    with pytest.raises(InvalidValue, match="'mine' returned shape"):
        made(lambda history, values: values[:2]).distribution(logits([0, 0, 0]), 0, ())


def test_processors_run_in_the_order_asked_for_and_before_the_penalties() -> None:
    params = SamplingParams(processors=["double", "add"], frequency_penalty=1.0)
    registered: dict[str, Processor] = {"add": lambda h, v: v + np.eye(3)[0], "double": lambda h, v: v * 2}
    controls = Controls(params, 3, processors=registered)
    p = probs(controls.distribution(logits([1, 0, 0]), 0, [0]))
    assert np.log(p[0] / p[1]) == pytest.approx(2 * 1 + 1 - 1)
