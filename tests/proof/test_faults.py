"""Every planted fault is caught by the exact proof and shows the figure of the file."""

import json
from fractions import Fraction
from pathlib import Path

import pytest

from draftproof.proof import mutants
from draftproof.proof.faults import Fault, faults, planted
from draftproof.proof.toys import toy_target

ALL = {fault.name: fault for fault in faults()}
ONLY_THE_JOINT_LAW = ("bonus_wrong_row", "bonus_wrong_temperature", "stale_cache", "shifted_rows", "past_eos")


@pytest.mark.parametrize("fault", ALL.values(), ids=ALL)
def test_planted_fault_is_caught(fault: Fault):
    caught = fault.run()
    assert caught.caught
    assert caught.equals_figure


@pytest.mark.parametrize("name", planted())
def test_first_token_law_of_the_fault_equals_the_files_figure(name):
    case, caught = planted()[name], ALL[name].run()
    assert [float(x) for x in caught.right_first_token] == case["right_first_token"]
    if case["wrong_first_token"] is not None:
        assert [float(x) for x in caught.first_token] == pytest.approx(case["wrong_first_token"], abs=1e-9)
    assert caught.first_token_error > 0


def test_the_softmaxed_residual_has_the_law_of_its_closed_form():
    # accept path [.5, .2, .1]; rejected 0.2, redrawn from softmax([0, .1, .1]).
    e = 2.718281828459045**0.1
    rest = [1 / (1 + 2 * e), e / (1 + 2 * e), e / (1 + 2 * e)]
    wanted = [0.5 + 0.2 * rest[0], 0.2 + 0.2 * rest[1], 0.1 + 0.2 * rest[2]]
    assert [float(x) for x in ALL["softmaxed_residual"].run().first_token] == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("name", ONLY_THE_JOINT_LAW)
def test_a_first_token_test_cannot_see_this_fault_and_the_joint_law_can(name):
    caught = ALL[name].run()
    assert caught.first_token_error == 0
    assert caught.joint_error > 0


def test_a_shared_stream_is_named():
    assert "PROPOSAL" in str(ALL["shared_stream"].run().reuse)


def test_without_its_fault_each_engine_is_exact():
    """The mutants' common base is the right rule: what is caught is the planted line and nothing else."""
    case = ALL["inverted_ratio"]

    def right():
        engine = case.build()
        engine.verifier = mutants.RuleMutant()
        return engine

    caught = Fault("none", "none", right, case.model, case.params, stop_ids=case.stop_ids).run()
    assert caught.joint_error == 0
    assert not caught.caught


def test_the_stale_cache_target_is_right_until_something_is_rejected():
    from draftproof.target.base import Feed

    stale = mutants.StaleCacheTarget(toy_target(3).model)
    good = toy_target(3)
    for target in (stale, good):
        target.handle = target.open()
    feeds = [(0, 1, 0), (1, 1)]
    for tokens in feeds:
        a, b = (t.score([Feed(t.handle, tokens, 1)])[0].values for t in (stale, good))
        assert (a == b).all()
    assert stale.length(stale.handle) == good.length(good.handle) == 5
    for target in (stale, good):
        target.rollback(target.handle, 4)
    assert stale.length(stale.handle) == good.length(good.handle) == 4
    assert stale._caches != good._caches


def test_the_files_figures_are_the_published_ones():
    """The package's copy of the figures: names and numbers as handed to us."""
    lines = (Path(__file__).parents[2] / "src/draftproof/proof/planted_faults.jsonl").read_text().splitlines()
    figures = {json.loads(line)["name"]: json.loads(line)["wrong_first_token"] for line in lines}
    assert figures["retrospective_schedule"] == [0.85, 0.15]
    assert figures["truncated_draw_raw_q"] == [0.25, 0.625, 0.125]
    assert Fraction(str(figures["drop_seen_token"][0])) == Fraction(84, 100)
    assert len(figures) == 9
