"""SamplingParams: what is refused, by name, value and range; what contradicts itself; what is kept."""

from __future__ import annotations

import copy
from dataclasses import fields
from fractions import Fraction
from typing import Any

import pytest

from draftproof.errors import InvalidValue, UnknownName
from draftproof.sampling.constraint import TokenAutomaton
from draftproof.sampling.params import SamplingParams

NAN, INF = float("nan"), float("inf")
BAD: dict[str, list[Any]] = {
    "max_tokens": [0, -1, 1.5, True, "3"],
    "min_tokens": [-1, None, 1.0],
    "ignore_eos": [1, None, "yes"],
    "stop_ids": ["12", 3, [-1], [1.5], [True]],
    "stop": ["", ["a", ""], 3, [3], b"x"],
    "include_stop": [0],
    "seed": [-1, 2**64, 1.0],
    "n": [0, None],
    "json_schema": ["", 3, [1]],
    "regex": ["", "  ", 3],
    "grammar": ["", 3],
    "allowed_ids": [[], [-1], "0"],
    "banned_ids": [[-1], None],
    "banned_words": ["", [""], [[]], [[-1]], [3], 3],
    "logit_bias": [{0: NAN}, {0: INF}, {-1: 1.0}, {"a": 1.0}, {0: "b"}, 3, [1], {0: 10**400}],
    "processors": ["", [3], 3],
    "repetition_penalty": [0, -1, NAN, INF, "a", None, True],
    "frequency_penalty": [-2.1, 2.1, NAN],
    "presence_penalty": [-2.1, 2.1, NAN],
    "temperature": [-0.1, NAN, INF, "hot", None, 10**400],
    "min_p": [-0.1, 1.1, NAN],
    "top_k": [-1, 1.5, True, None],
    "top_p": [0, -0.1, 1.1, NAN],
    "logprobs": [-1, 1.5, True],
    "raw_logprobs": [1],
    "prompt_logprobs": [-1],
    "draft": ["lookup", False, ""],
}


def test_the_table_of_bad_values_names_every_field() -> None:
    assert set(BAD) == {f.name for f in fields(SamplingParams)}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_a_bad_value_is_refused_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidValue, match=name):
        SamplingParams(**{name: value})


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens=5 with max_tokens=4"),
        ({"allowed_ids": [1, 2], "banned_ids": [2, 1, 0]}, r"allowed_ids=\[1, 2\] leave no token"),
        ({"allowed_ids": [1, 2], "banned_ids": [2], "banned_words": [[1]]}, "leave no token"),
        ({"allowed_ids": [3], "stop_ids": [3], "min_tokens": 1}, "all stop ids"),
        ({"regex": "a", "json_schema": {}}, "json_schema and regex"),
        ({"grammar": "start: /a/", "ignore_eos": True}, "ignore_eos=True with grammar"),
    ],
)
def test_a_contradiction_is_refused_before_anything_runs(asked: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidValue, match=named):
        SamplingParams(**asked)


def test_an_unknown_control_is_named_with_the_nearest_known_one() -> None:
    with pytest.raises(UnknownName, match="'temprature' - did you mean 'temperature'"):
        SamplingParams.from_mapping({"temprature": 0.5})
    assert SamplingParams.from_mapping({"temperature": 0.5, "logit_bias": {"3": 1}}) == SamplingParams(
        temperature=0.5, logit_bias={3: 1.0}
    )


def test_params_are_hashable_equal_by_value_and_their_own_copies() -> None:
    one = SamplingParams(logit_bias={4: 1, 2: -1}, banned_words=["a", [1, 2]], json_schema={"type": "object"})
    two = SamplingParams(logit_bias={2: -1.0, 4: 1.0}, banned_words=("a", (1, 2)), json_schema='{"type": "object"}')
    assert one == two
    assert hash(one) == hash(two)
    assert copy.deepcopy(one) is one


def test_fractions_stay_exact_and_constraints_stay_objects() -> None:
    automaton = TokenAutomaton({}, {0})
    params = SamplingParams(top_p=Fraction(1, 3), grammar=automaton)
    assert params.top_p == Fraction(1, 3)
    assert params.constraint is automaton
    assert SamplingParams(regex="a+").constraint == ("regex", "a+")
    assert SamplingParams().constraint is None
