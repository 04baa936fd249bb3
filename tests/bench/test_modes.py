"""What is measured of one answer, on a clock that only model calls move."""

from dataclasses import replace

import pytest
from bench_kit import PASS, ROW, SIZE, ClockedTarget, FakeClock, Overhead, lookup, parts, plain

from draftproof.bench.answers import Answer
from draftproof.bench.calls import Log, RecordingTarget
from draftproof.bench.modes import EngineMode, Spec, wrong_drafter
from draftproof.errors import InvalidValue, UnknownName
from draftproof.sampling.params import SamplingParams
from draftproof.target.base import Feed

PROMPT = [*range(SIZE), 0, 1]  # once round: the lookup drafter knows everything
PARAMS = SamplingParams(temperature=0, max_tokens=11, seed=1)


def test_plain_decoding_takes_one_pass_a_token_after_the_prompt():
    answer = plain(parts(FakeClock())).answer(PROMPT, PARAMS, floor=False)
    assert answer.tokens == tuple((2 + i) % SIZE for i in range(11))
    assert answer.first_tokens == 1
    assert answer.first_seconds == PASS + ROW * (len(PROMPT) - 1)
    assert answer.decode_seconds == 10 * PASS
    assert answer.decoded == 10
    assert len(answer.rounds) == 10


def test_speculative_rounds_are_described_by_their_rows_and_acceptance():
    answer = lookup(parts(FakeClock()), 4).answer(PROMPT, PARAMS, floor=False)
    # 5 tokens with the prompt's pass, 5 in a round of 5 rows, the last one alone: the budget leaves no room.
    assert answer.first_tokens == 5
    assert [(r.rows, r.drafted, r.accepted, r.emitted) for r in answer.rounds] == [(5, 4, 4, 5), (1, 0, 0, 1)]
    assert [r.context for r in answer.rounds] == [len(PROMPT) + 5, len(PROMPT) + 10]
    assert answer.decode_seconds == (PASS + 4 * ROW) + PASS


def test_time_outside_model_calls_is_what_remains():
    clock = FakeClock()
    mode = lookup(parts(clock), 4)
    mode._drafter = Overhead(mode._drafter, clock, each=0.5)
    mode.begin()
    answer = mode.answer(PROMPT, PARAMS, floor=False)
    # The prompt's round and the next one ask the drafter; only the latter is decoding.
    assert answer.decode_seconds - answer.model_seconds == pytest.approx(0.5)


def test_the_floor_is_measured_by_making_the_same_calls_again():
    clock = FakeClock()
    target = ClockedTarget(clock)
    mode = lookup(parts(clock, target), 4)
    first = mode.answer(PROMPT, PARAMS, floor=False)
    fed = list(target.fed)
    target.fed.clear()
    second = mode.answer(PROMPT, PARAMS, floor=True)
    assert target.fed == fed + fed
    assert second.floor_seconds == second.model_seconds == first.model_seconds
    assert first.floor_seconds is None


def test_a_floor_on_a_machine_that_has_become_faster_says_so():
    clock = FakeClock()
    target = ClockedTarget(clock)
    mode = plain(parts(clock, target))
    answered, replay = target.score, []

    def score(feeds):
        replay.append(len(replay))
        target.slower = 1.0 if len(replay) <= 11 else 0.5
        return answered(feeds)

    target.score = score
    answer = mode.answer(PROMPT, PARAMS, floor=True)
    assert answer.floor_seconds == pytest.approx(0.5 * answer.model_seconds)


def test_an_answer_in_turns_is_the_answer_in_one_piece_and_takes_the_same_time():
    clock = FakeClock()
    mode = lookup(parts(clock), 4)
    whole = mode.answer(PROMPT, PARAMS, floor=True)
    answering = mode.start(PROMPT, PARAMS, floor=True)
    goals = iter(range(1, 100))
    while (answer := answering.go(next(goals))) is None:
        clock.now += 1000  # others have their turn
    assert answer == replace(whole, rounds=answer.rounds)
    assert [replace(r, draft_seconds=0) for r in answer.rounds] == [replace(r, draft_seconds=0) for r in whole.rounds]
    assert next(goals) > 7  # 5 tokens, then a round of 5, then the last one: three turns of rounds, the others of none


def test_a_turn_ends_with_the_round_that_reaches_its_goal():
    answering = plain(parts(FakeClock())).start(PROMPT, PARAMS, floor=False)
    target = answering._engine.target.inner
    passes = [0]
    for goal in (1, 2, 5):
        target.fed.clear()
        assert answering.go(goal) is None
        passes.append(len(target.fed))
    assert passes[1:] == [1, 1 + 1, 1 + 3]  # a pass for each token, and the last one of the turn before again
    answering.close()
    assert target.open_sequences == 0


def test_an_answer_goes_on_as_if_no_other_had_been_given_in_between():
    """Where another shape of pass is dear: plain decoding would pay for what lookup left, in every turn."""
    clock = FakeClock()
    target = ClockedTarget(clock, switch=5.0)
    p = parts(clock, target)
    alone = plain(p).answer(PROMPT, PARAMS, floor=True)
    other, answering = lookup(p, 4), plain(p).start(PROMPT, PARAMS, floor=True)
    goals = iter(range(1, 100))
    while (answer := answering.go(next(goals))) is None:
        other.answer(PROMPT, PARAMS, floor=False)
    assert answer.decode_seconds == alone.decode_seconds
    assert answer.floor_seconds == alone.floor_seconds


def test_the_last_passes_again_leave_targets_as_they_were():
    clock = FakeClock()
    target = ClockedTarget(clock)
    recording = RecordingTarget(target, clock)
    recording.log = log = Log(clock)
    first, second = recording.open(), recording.open()
    recording.score([Feed(first, [0, 1, 2], 1), Feed(second, [0, 1], 1)])
    recording.score([Feed(first, [3, 4], 2), Feed(second, [2], 1)])
    recording.rollback(first, 4)
    calls, cached = len(log.calls), [list(target._caches[h]) for h in (first, second)]
    target.fed.clear()
    log.last_passes_again()
    assert target.fed == [([3, 4], 2), ([2], 1)]
    assert [target._caches[h] for h in (first, second)] == cached
    assert len(log.calls) == calls


def test_answers_and_replays_leave_no_sequence_behind():
    clock = FakeClock()
    target = ClockedTarget(clock)
    mode = lookup(parts(clock, target))
    mode.answer(PROMPT, PARAMS, floor=True)
    assert target.open_sequences == 0
    target.context_limit = 4
    with pytest.raises(InvalidValue):
        lookup(parts(clock, target)).answer(PROMPT, PARAMS, floor=True)
    assert target.open_sequences == 0


def test_a_replay_that_breaks_leaves_no_sequence_behind():
    clock = FakeClock()
    target = ClockedTarget(clock)
    mode = plain(parts(clock, target))
    working, passes = target.score, []

    def score(feeds):
        passes.append(feeds)
        if len(passes) == 15:  # the answer takes 11
            raise MemoryError
        return working(feeds)

    target.score = score
    with pytest.raises(MemoryError):
        mode.answer(PROMPT, PARAMS, floor=True)
    assert target.open_sequences == 0


def test_calls_of_a_draft_model_are_model_calls_too():
    clock = FakeClock()
    mode = EngineMode(Spec("model:any", "token", "fixed", 2), parts(clock))
    answer = mode.answer(PROMPT, PARAMS, floor=True)
    assert answer.decode_seconds == answer.model_seconds == answer.floor_seconds
    assert answer.decode_seconds > 10 * PASS / 3


def test_the_wrong_drafter_is_never_right_and_never_ends_an_answer():
    clock = FakeClock()
    target = ClockedTarget(clock)
    target.eos_ids = frozenset([SIZE - 1])
    drafter = wrong_drafter(target)
    request = type("R", (), {"tokens": [1], "limit": 3, "sampler": None})()
    assert drafter.propose([request])[0].tokens == [SIZE - 2] * 3


def test_specs_are_refused_before_anything_is_loaded():
    for spec in ({"draft": "no"}, {"verifier": "no"}, {"schedule": "no"}):
        with pytest.raises(UnknownName):
            Spec(**spec)
    with pytest.raises(InvalidValue):
        Spec(length=99)


def test_names_tell_modes_apart():
    assert Spec("none").name == "plain"
    assert Spec("lookup").name == "lookup"
    assert Spec("lookup", schedule="fixed", length=4).name == "lookup fixed 4"
    assert Spec("suffix", verifier="coupled").name == "suffix (coupled)"


@pytest.mark.parametrize(
    "senseless",
    [
        {"tokens": (), "first_tokens": 0},
        {"first_tokens": 3},
        {"first_seconds": 2.0},
        {"first_seconds": -1.0},
    ],
)
def test_an_answer_that_cannot_be_is_refused(senseless):
    good = {"tokens": (1, 2), "seconds": 1.0, "first_tokens": 1, "first_seconds": 0.5}
    Answer(**good)
    with pytest.raises(InvalidValue):
        Answer(**{**good, **senseless})


def test_a_mode_is_named_by_its_schedule() -> None:
    names = [Spec("lookup", "token", schedule, 4).name for schedule in ("adaptive", "fixed", "prefix", "prefix-budget")]
    assert names == ["lookup", "lookup fixed 4", "lookup prefix", "lookup prefix-budget"]
