"""Every row sees the history plain decoding would have had (faults class C): at each place of a block and after it."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pytest
from sampling_kit import SmallTokenizer, controls, logits, probs, table

from draftproof.errors import InvalidValue
from draftproof.sampling.controls import Controls, DeadEnd
from draftproof.sampling.params import SamplingParams
from draftproof.target.base import LogitRows

INF = float("inf")
SENSITIVE: dict[str, dict[str, Any]] = {
    "repetition": {"repetition_penalty": 1.5},
    "frequency": {"frequency_penalty": 0.7},
    "presence": {"presence_penalty": 0.7},
    "banned words": {"banned_words": [(0, 1), (1, 1, 2), (2, 2)]},
    "min tokens": {"min_tokens": 4},
    "all": {
        "repetition_penalty": 1.5,
        "frequency_penalty": 0.7,
        "presence_penalty": 0.7,
        "banned_words": [(0, 1)],
        "min_tokens": 3,
        "logit_bias": {1: 0.5},
    },
}


@pytest.mark.parametrize("name", SENSITIVE)
def test_row_i_equals_the_row_after_committing_the_i_drafted_tokens(name: str) -> None:
    rows = logits([0.5, 0.4, 0.3, 0.2], [0.1, 0.9, -0.3, 0.6], [1.0, 1.0, 1.0, 1.0], [-1, -2, -3, -1])
    for answer in ([], [0], [1, 1], [2, 0, 0, 1]):
        for drafted in ([0, 0, 2], [1, 1, 2], [2, 2, 2], [0, 1, 3]):
            block = controls(4, prompt=[2, 0], answer=answer, eos=[3], **SENSITIVE[name])
            for i in range(4):
                step = controls(4, prompt=[2, 0], answer=[*answer, *drafted[:i]], eos=[3], **SENSITIVE[name])
                expected = step.distribution(rows, i, ())
                assert probs(block.distribution(rows, i, drafted[:i])) == probs(expected)


def test_a_frequency_penalty_of_two_after_a_drafted_zero_makes_the_second_drafted_zero_lose() -> None:
    rows = logits([1, 0.9], [1, 0.9], [1, 0.9])
    asked = controls(2, temperature=0, frequency_penalty=2)
    assert [asked.distribution(rows, i, [0, 0][:i]).token for i in range(3)] == [0, 1, 1]


def test_the_penalty_grows_with_every_token_of_a_block_and_not_once_a_block() -> None:
    four = controls(2, answer=[0, 0, 0, 0], frequency_penalty=0.5)
    p = probs(four.distribution(logits([0, 0]), 0, ()))
    assert math.log(p[1] / p[0]) == pytest.approx(4 * 0.5)
    drafted = controls(2, frequency_penalty=0.5)
    assert probs(drafted.distribution(logits([0, 0]), 0, [0, 0, 0, 0])) == p


def test_each_occurrence_counts_once_and_the_prompt_only_for_repetition() -> None:
    row = logits([1.0, -1.0, 1.0, -1.0])
    repeated = controls(4, prompt=[0, 0, 1], answer=[0], repetition_penalty=2.0).distribution(row, 0, [1])
    expected = np.exp([0.5, -2.0, 1.0, -1.0])
    assert probs(repeated) == pytest.approx((expected / expected.sum()).tolist())
    counted = controls(4, prompt=[0, 0, 1], answer=[2], frequency_penalty=1.0, presence_penalty=0.25)
    expected = np.exp([1.0, -1.0, 1.0 - 2 - 0.25, -1.0])
    assert probs(counted.distribution(row, 0, [2])) == pytest.approx((expected / expected.sum()).tolist())


def test_penalties_follow_bias_in_the_order_repetition_frequency_presence() -> None:
    asked = {"logit_bias": {0: 3.0}, "repetition_penalty": 2.0, "frequency_penalty": 1.0, "presence_penalty": 0.5}
    p = probs(controls(2, answer=[0], **asked).distribution(logits([1.0, 0.0]), 0, ()))
    assert math.log(p[0] / p[1]) == pytest.approx((1 + 3) / 2 - 1 - 0.5)


def test_a_penalty_of_one_request_does_not_reach_another() -> None:
    rows = logits([1, 1], [1, 1], [1, 1])
    punished, plain = controls(2, frequency_penalty=2.0), controls(2)
    for i in range(3):
        assert probs(punished.distribution(rows, i, [0] * i))[0] == pytest.approx(1 / (1 + math.exp(2 * i)))
        assert probs(plain.distribution(rows, i, [0] * i)) == [0.5, 0.5]


def test_min_tokens_counts_tokens_and_rejects_eos_at_the_second_place_of_a_block() -> None:
    x, y, eos = 0, 1, 2
    rows = logits(*[[0, 0, 5]] * 5)
    asked = controls(3, eos=[eos], min_tokens=3)
    assert [asked.distribution(rows, i, [x, eos, y][:i]).prob(eos) > 0 for i in range(4)] == [False, False, False, True]
    assert asked.allowed_prefix([x, eos, y]) == 1
    for token in (x, x, x, x):
        asked.commit(token)
    assert asked.distribution(rows, 0, ()).prob(eos) > 0.9


def test_min_tokens_masks_every_id_that_would_end_the_answer_and_no_other() -> None:
    row = logits([0, 0, 0])
    assert probs(controls(3, eos=[2], stop_ids=[0], min_tokens=1).distribution(row, 0, ())) == [0, 1, 0]
    assert probs(controls(3, eos=[2], ignore_eos=True, min_tokens=1).distribution(row, 0, ())) == pytest.approx(
        [1 / 3] * 3
    )


def test_the_last_token_of_a_banned_phrase_is_banned_where_the_answer_ends_with_the_rest() -> None:
    asked = controls(3, prompt=[0], banned_words=[(0, 1), (1, 2, 2)])
    row = logits([0, 0, 0])
    assert asked.distribution(row, 0, ()).prob(1) > 0  # the prompt's 0 is not the answer's
    assert asked.distribution(row, 0, [0]).prob(1) == 0
    assert asked.distribution(row, 0, [0, 2]).prob(1) > 0
    asked.commit(1)
    assert asked.distribution(row, 0, [2]).prob(2) == 0
    assert asked.distribution(row, 0, ()).prob(2) > 0
    assert asked.allowed_prefix([2, 0, 1]) == 2


def test_a_banned_word_as_text_is_banned_alone_and_after_a_space() -> None:
    tokenizer = SmallTokenizer()
    params = SamplingParams(banned_words=["no"])
    asked = Controls(params, tokenizer.size, tokenizer=tokenizer)
    row = LogitRows(np.zeros((1, tokenizer.size), dtype=np.float32))
    p = asked.distribution(row, 0, ())
    banned = {i for i in range(tokenizer.size) if p.prob(i) == 0}
    assert banned == {*tokenizer.encode("no"), *tokenizer.encode(" no")}
    with pytest.raises(InvalidValue, match="without a tokenizer"):
        Controls(params, tokenizer.size)


@pytest.mark.parametrize(
    "asked",
    [
        {"banned_ids": [4]},
        {"allowed_ids": [0, 4]},
        {"stop_ids": [9]},
        {"logit_bias": {4: 1}},
        {"banned_words": [[0, 4]]},
    ],
)
def test_ids_outside_the_vocabulary_are_refused_by_name(asked: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue, match=next(iter(asked))):
        controls(4, **asked)


@pytest.mark.parametrize(
    "asked",
    [
        {"allowed_ids": [3], "min_tokens": 1},
        {"banned_ids": [0, 1, 2, 3]},
        {"allowed_ids": [1], "banned_words": [[1]], "banned_ids": [2]},
        {"banned_ids": [0, 1, 2], "min_tokens": 1},
    ],
)
def test_controls_that_leave_no_first_token_are_refused_before_it(asked: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue, match=r"(no first|leave no) token"):
        controls(4, eos=[3], **asked)


def test_a_row_that_every_mask_empties_later_is_a_dead_end() -> None:
    asked = controls(2, allowed_ids=[0], banned_words=[(0, 0)])
    assert asked.distribution(logits([0, 0]), 0, ()).token == 0
    with pytest.raises(DeadEnd):
        asked.distribution(logits([0, 0]), 0, [0])
    with pytest.raises(DeadEnd):  # the model's own zeros and the mask together
        controls(2, allowed_ids=[0]).distribution(table(["0", "1"]), 0, ())


def test_a_drafters_own_temperature_replaces_the_requests_and_nothing_else() -> None:
    asked = controls(3, temperature=0.5, banned_ids=[2])
    row = logits([1, 0, 9])
    p = probs(asked.distribution(row, 0, (), 2.0))
    assert math.log(p[0] / p[1]) == pytest.approx(0.5)
    assert p[2] == 0
    assert asked.distribution(row, 0, (), 0).token == 0


def test_two_temperatures_give_two_distributions_and_neither_is_the_argmax() -> None:
    one, two = (probs(controls(3, temperature=t).distribution(logits([0.2, 0, -0.2]), 0, ())) for t in (1.0, 2.0))
    assert one != two
    assert all(p > 0 for p in one + two)


def test_the_cost_of_penalties_is_in_the_history_and_not_recounted_from_it() -> None:
    # Statistical only in the machine's speed: 50 times the history may cost at most 10 times as much.
    def seconds(length: int) -> float:
        asked = controls(100, answer=[i % 10 for i in range(length)], frequency_penalty=0.1)
        row = logits([0.0] * 100)
        best = math.inf
        for _ in range(20):
            start = time.perf_counter()
            asked.distribution(row, 0, [1, 2])
            best = min(best, time.perf_counter() - start)
        return best

    assert seconds(50_000) < 10 * seconds(1_000)
