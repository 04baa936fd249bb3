"""The pytest plugin: right parts get through, wrong ones and unsupported claims fail, and error rates add up."""

from __future__ import annotations

import math
from importlib.metadata import entry_points
from itertools import islice

import numpy  # noqa: F401  # loaded here, so that the sessions run inside this process do not load it a second time
import pytest

from draftproof.pytest_plugin import shares

pytest_plugins = ["pytester"]

INSTALLED = any(e.value == "draftproof.pytest_plugin" for e in entry_points(group="pytest11"))
ARGUMENTS = ["-q", "-p", "no:cacheprovider", *([] if INSTALLED else ["-p", "draftproof.pytest_plugin"])]

ENGINE = """
import numpy as np

ROWS = np.array([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.3, 0.3, 0.4]])

def generate(power):
    def answer(prompt, seed):
        random = np.random.default_rng(seed)
        text = list(prompt)
        for _ in range(50):
            weights = ROWS[text[-1]] ** power
            text.append(int(random.choice(3, p=weights / weights.sum())))
        return text[len(prompt):]
    return answer

def reference(prompt, answer):
    return ROWS[[prompt[-1], *answer[:-1]]]
"""


def _run(pytester: pytest.Pytester, source: str) -> pytest.RunResult:
    pytester.makepyfile(source)
    return pytester.runpytest_inprocess(*ARGUMENTS)


def test_the_shares_of_the_error_rate_sum_to_it() -> None:
    assert math.fsum(islice(shares(1e-3), 100_000)) == pytest.approx(1e-3, rel=1e-4)
    assert math.fsum(islice(shares(1e-3), 100_000)) <= 1e-3
    with pytest.raises(pytest.UsageError):
        shares(0)


def test_a_right_verifier_gets_through_and_a_wrong_one_does_not(pytester: pytest.Pytester) -> None:
    result = _run(
        pytester,
        """
        from draftproof.proof.mutants import ReplacementFromP
        from draftproof.verify import TokenVerifier

        def test_right(lossless):
            assert lossless.verifier(TokenVerifier, vocab_sizes=[3], lengths=[2], tokens=3) == 9

        def test_wrong(lossless):
            lossless.verifier(ReplacementFromP, vocab_sizes=[3], lengths=[2], tokens=3)
        """,
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*drafter, 3 tokens, draft length 2: P(*) is */*, the target's is */*"])


def test_a_right_engine_gets_through_and_a_sharper_one_does_not(pytester: pytest.Pytester) -> None:
    result = _run(
        pytester,
        ENGINE
        + """
def test_right(lossless):
    result = lossless.engine(generate(1), reference, [[0], [1]], tokens=2000)
    assert result.n >= 2000

def test_wrong(lossless):
    lossless.engine(generate(1.5), reference, [[0], [1]], tokens=2000)
""",
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*not the target's distribution*"])


def test_too_few_tokens_to_say_is_a_failure_and_not_a_pass(pytester: pytest.Pytester) -> None:
    result = _run(
        pytester, ENGINE + "\ndef test_it(lossless):\n    lossless.engine(generate(1), reference, [[0]], tokens=100)\n"
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*too few tokens to say*"])


def test_a_check_that_misses_a_fault_is_told_which(pytester: pytest.Pytester) -> None:
    result = _run(
        pytester,
        """
        def test_exact(lossless):
            assert lossless.mutants(lambda fault: fault.run().caught, only="redraw") == 1

        def test_blind(lossless):
            lossless.mutants(lambda fault: False, only="redraw")
        """,
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*not caught: match_then_redraw*"])


def test_each_check_gets_a_smaller_level_than_the_one_before(pytester: pytest.Pytester) -> None:
    result = _run(
        pytester,
        ENGINE
        + """
def test_levels(lossless, pytestconfig):
    levels = [lossless.engine(generate(1), reference, [[0]], tokens=50, must_find=None).level for _ in range(2)]
    assert levels[1] == levels[0] / 4
    assert levels[0] < float(pytestconfig.getini("lossless_error_rate"))
""",
    )
    result.assert_outcomes(passed=1)
