"""Prompts: the package's own, and files that are right or wrong."""

import re
from pathlib import Path

import pytest

from draftproof.bench.workloads import NAMES, Workload, builtin, from_file
from draftproof.errors import InvalidValue, UnknownName


@pytest.mark.parametrize("name", NAMES)
def test_every_workload_has_at_least_six_different_prompts(name):
    (workload,) = builtin([name])
    assert len(set(workload.prompts)) == len(workload.prompts) >= 6


def test_extractive_prompts_hold_the_text_that_is_to_be_repeated():
    (workload,) = builtin(["extractive"])
    assert all(len(prompt) > 250 for prompt in workload.prompts)


def test_an_unknown_workload_lists_the_known_ones():
    with pytest.raises(UnknownName, match=r"did you mean 'chat'.*code.*math"):
        builtin(["chatt"])


def test_both_kinds_of_line_and_empty_lines_are_read(tmp_path: Path):
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "one"}\n\n{"turns": ["two", "three"]}\n{"prompt": "föur", "id": 4}\n', encoding="utf-8")
    assert from_file(file) == Workload("mine", ("one", "two", "föur"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"prompt": "a"}\n{"prompt": \n', "bad.jsonl line 2 is not JSON"),
        ('{"prompt": "a"}\n\n{"text": "b"}\n', "bad.jsonl line 3 holds no prompt"),
        ('{"prompt": "  "}\n', "bad.jsonl line 1 holds no prompt"),
        ('{"turns": []}\n', "bad.jsonl line 1 holds no prompt"),
        ('{"turns": [3]}\n', "bad.jsonl line 1 holds no prompt"),
        ('["a"]\n', "bad.jsonl line 1 holds no prompt"),
        ("\n\n", "bad.jsonl holds no prompt"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(tmp_path: Path, text: str, said: str):
    file = tmp_path / "bad.jsonl"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidValue, match=re.escape(said)):
        from_file(file)


def test_a_file_that_is_not_there_or_not_text_is_refused(tmp_path: Path):
    with pytest.raises(InvalidValue, match=r"cannot read prompts from .*none\.jsonl"):
        from_file(tmp_path / "none.jsonl")
    (tmp_path / "bytes.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidValue, match=r"cannot read prompts"):
        from_file(tmp_path / "bytes.jsonl")


def test_first_keeps_the_first_and_refuses_none():
    workload = Workload("w", ("a", "b", "c"))
    assert workload.first(2).prompts == ("a", "b")
    assert workload.first(None) is workload
    with pytest.raises(InvalidValue):
        workload.first(0)
