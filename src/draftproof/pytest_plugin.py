"""A pytest plugin: the `lossless` fixture checks a verifier exactly and an engine sequentially.

    def test_my_verifier(lossless):
        lossless.verifier(MyVerifier)                        # every random branch, exact rational arithmetic

    def test_my_engine(lossless):
        lossless.engine(generate, reference, prompts)        # sampled text against the model's own p

    def test_my_check_can_fail(lossless):
        lossless.mutants(my_check)                           # every planted fault must be caught

Guarantees: exact checks have no error rate. All sequential checks of one session together raise a false alarm with
probability at most the ini option `lossless_error_rate` (default 1e-6): the k-th gets the share 6/(pi k)^2 of it,
whatever their number, and with pytest-xdist each worker the same part. What it does not do: import anything of the
package before the fixture is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Seq
from itertools import count, cycle
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from draftproof.draft.base import Drafter
    from draftproof.proof.faults import Fault
    from draftproof.proof.sequential import SequentialResult
    from draftproof.verify.base import Verifier

    Generate = Callable[[Seq[int], int], Seq[int]]
    Reference = Callable[[Seq[int], Seq[int]], Iterable[Any]]

INI = "lossless_error_rate"
_LEVELS = pytest.StashKey[Iterator[float]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the ini option."""
    parser.addini(INI, "Probability that any sequential check of a session alarms falsely.", default="1e-6")


def pytest_configure(config: pytest.Config) -> None:
    """Divide the session's error rate among the checks to come."""
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    config.stash[_LEVELS] = shares(float(config.getini(INI)) / workers)


@pytest.fixture
def lossless(pytestconfig: pytest.Config) -> Lossless:
    """Checks of losslessness; each fails the test with what it found."""
    return Lossless(pytestconfig.stash[_LEVELS])


def shares(rate: float) -> Iterator[float]:
    """Levels that sum to `rate`: 6/(pi k)^2 of it for k = 1, 2, 3, ..."""
    if not 0 < rate < 1:
        raise pytest.UsageError(f"{INI}={rate:g} - an error rate between 0 and 1")
    return (rate * 6 / (math.pi * k) ** 2 for k in count(1))


class Lossless:
    """The checks behind the fixture."""

    def __init__(self, levels: Iterator[float]) -> None:
        self._levels = levels

    def verifier(
        self,
        make: Callable[[], Verifier],
        *,
        drafters: dict[str, Callable[[int], Drafter]] | None = None,
        vocab_sizes: Seq[int] = (2, 3),
        lengths: Seq[int] = (1, 2, 3),
        tokens: int = 4,
    ) -> int:
        """Prove a verifier in the production engine on toy models; returns how many cases there were.

        make: a fresh verifier. drafters: name to a drafter for a vocabulary size; default: every kind there is
        (sampled, point mass, mixed, none). lengths: draft lengths. tokens: of an answer. Fails at the first case whose
        exact joint law differs, with the first answer that has another probability.
        """
        from draftproof.engine import Engine
        from draftproof.proof.cases import compare
        from draftproof.proof.engine_law import engine_law, target_law
        from draftproof.proof.toys import DRAFTERS, PROMPT, toy_model, toy_target
        from draftproof.sampling.params import SamplingParams
        from draftproof.schedule.fixed import FixedSchedule

        cases = 0
        params = SamplingParams(max_tokens=tokens)
        for name, drafter in (drafters or DRAFTERS).items():
            for size in vocab_sizes:
                right = target_law(toy_model(size), PROMPT, params, frozenset([size - 1]))
                for length in lengths:

                    def build(size: int = size, length: int = length, drafter: Any = drafter) -> Engine:
                        return Engine(
                            toy_target(size),
                            drafter=drafter(size),
                            verifier=make(),
                            schedule=FixedSchedule(length),
                        )

                    law = engine_law(build, [(PROMPT, params)])
                    case = f"{name} drafter, {size} tokens, draft length {length}"
                    found = compare(case, law, {(answer,): w for answer, w in right.items()}, 0.0).difference
                    if found is not None:
                        pytest.fail(
                            f"{case}: P{found.answer} is {found.got}, the target's is {found.expected}", pytrace=False
                        )
                    cases += 1
        return cases

    def engine(
        self,
        generate: Generate,
        reference: Reference,
        prompts: Seq[Seq[int]],
        *,
        tokens: int = 5000,
        must_find: float | None = 0.1,
        level: float | None = None,
        noise: float = 0.0,
        eos_ids: frozenset[int] = frozenset(),
    ) -> SequentialResult:
        """Put an engine's sampled text to the sequential test; returns what it saw.

        generate(prompt, seed): the answer's token ids; called with the prompts in turn and seeds 0, 1, 2, ...
        reference(prompt, answer): the target's p at each token of the answer, shape (V,) each, after the sampling
        controls. tokens: how many to look at. must_find: fails too if so many tokens would not show a shift of the
        argmax's probability by this much (None: do not ask). level: error rate of this check instead of its share of
        the session's. noise, eos_ids: as in `SequentialTest`.
        """
        from draftproof.proof.sequential import SequentialTest

        test = SequentialTest(level=next(self._levels) if level is None else level, noise=noise, eos_ids=eos_ids)
        for seed, prompt in enumerate(cycle(prompts)):
            answer = [int(token) for token in generate(prompt, seed)]
            if not answer:
                pytest.fail(f"the answer to prompt {seed % len(prompts)} with seed {seed} is empty", pytrace=False)
            text = [*prompt, *answer]
            for at, p in enumerate(reference(prompt, answer), start=len(prompt)):
                test.update(text[at], p, history=text[max(0, at - 64) : at])
            if test.rejected:
                pytest.fail(str(test.result()), pytrace=False)
            if test.n >= tokens:
                break
        result = test.result()
        shift = result.detectable.get("the argmax", 0.0)
        if must_find is not None and shift > must_find:
            pytest.fail(
                f"too few tokens to say: {test.n} of them show a shift of the argmax by {shift:.3f} or more, "
                f"asked for {must_find:g}",
                pytrace=False,
            )
        return result

    def mutants(self, check: Callable[[Fault], bool], *, only: str = "") -> int:
        """Run a check of yours on every planted fault; fails with the names of those it does not catch.

        check(fault): True if the check notices that `fault.build()`, an engine on `fault.model`, is not lossless. only:
        faults whose name contains this. Returns how many there were.
        """
        from draftproof.proof.faults import faults

        chosen = [fault for fault in faults() if only in fault.name]
        missed = [fault.name for fault in chosen if not check(fault)]
        if missed or not chosen:
            pytest.fail(f"not caught: {', '.join(missed)}" if missed else f"no fault is named {only!r}", pytrace=False)
        return len(chosen)
