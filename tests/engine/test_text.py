"""Streamed text (faults class Q): whole characters, nothing taken back, the same for every way of cutting it up."""

from __future__ import annotations

from itertools import combinations

import pytest
from engine_kit import PROMPT, Pieces, line, says, shown
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.engine import Engine
from draftproof.sampling.params import SamplingParams
from draftproof.schedule.fixed import FixedSchedule
from draftproof.stops import AnswerText
from draftproof.text import KEPT, WINDOW, TextStream

TEXT = "aé€𝄞<e<en<end>z"


def cuts(data: bytes, places: tuple[int, ...]) -> list[bytes]:
    return [data[a:b] for a, b in zip((0, *places), (*places, len(data)), strict=True)]


def streamed(pieces: list[bytes], stops: tuple[str, ...] = (), *, include: bool = False) -> tuple[list[str], str]:
    """The pieces that came out, and the final text."""
    stream = TextStream(Pieces(pieces))
    answer = AnswerText(stops, include=include)
    out = []
    for token in range(len(pieces)):
        out.append(answer.push(stream.push(token)))
        if answer.stopped is not None:
            break
    else:
        out.append(answer.push(stream.flush(), watch=False))
    out.append(answer.flush())
    return out, answer.text


def test_every_way_of_cutting_a_text_into_tokens_gives_the_same_text() -> None:
    data = "é€𝄞<e<end>".encode()
    for count in range(4):
        for places in combinations(range(1, len(data)), count):
            pieces, text = streamed(cuts(data, places))
            assert "".join(pieces) == text == data.decode()
            assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize(
    ("stops", "kept", "found"),
    [
        (("<end>",), "aé€𝄞<e<en", "<end>"),
        (("<en",), "aé€𝄞<e", "<en"),
        (("nd>", "<end>"), "aé€𝄞<e<en", "<end>"),  # they end together: the longest
        (("<end>z", "end>"), "aé€𝄞<e<en<", "end>"),  # the one that ends first
        (("€𝄞",), "aé", "€𝄞"),
        (("nope",), TEXT, None),
        (("zz", "<<"), TEXT, None),
    ],
)
def test_a_stop_string_is_found_however_the_text_is_cut(
    stops: tuple[str, ...], kept: str, found: str | None, include: bool
) -> None:
    data = TEXT.encode()
    expected = kept + (found if include and found else "")
    ways = [places for count in range(3) for places in combinations(range(1, len(data)), count)]
    for places in [*ways, tuple(range(1, len(data)))]:
        pieces, text = streamed(cuts(data, places), stops, include=include)
        assert text == expected
        assert "".join(pieces) == expected


def test_text_that_a_stop_string_may_take_back_is_held_and_no_more() -> None:
    answer = AnswerText(["abc", "bcd!"])
    assert [answer.push(c) for c in "xabxbcdab"] == ["x", "", "", "abx", "", "", "", "bcd", ""]
    assert answer.flush() == "ab"
    assert answer.text == "xabxbcdab"


def test_with_include_stop_nothing_needs_to_be_held() -> None:
    answer = AnswerText(["abc"], include=True)
    assert [answer.push(c) for c in "xabc"] == ["x", "a", "b", "c"]
    assert answer.stopped == "abc"


def test_the_certain_part_of_a_token_that_ends_in_mid_character_is_given_at_once() -> None:
    stream = TextStream(Pieces([b"abc\xe2", b"\x82", b"\xac!"]))
    assert [stream.push(i) for i in range(3)] == ["abc", "", "€!"]
    # so a stop string in front of an unfinished character ends the answer in its own token
    engine = Engine(line([0, 1, 2], 3), drafter=says([0, 1, 2]), tokenizer=Pieces([b"abc\xe2", b"\x82", b"\xac!"]))
    result = engine.generate([2, 2], SamplingParams(max_tokens=3, temperature=0, stop=["bc"]))
    assert (list(result.token_ids), result.text) == ([0], "a")


def test_bytes_that_never_become_a_character_are_shown_and_do_not_stall_the_stream() -> None:
    pieces = [b"\x80"] * 40 + [b"a"]
    stream = TextStream(Pieces(pieces))
    out = [stream.push(i) for i in range(len(pieces))]
    assert "".join(out) == "\ufffd" * 40 + "a"
    assert "".join(out[:20]).count("\ufffd") >= 17  # at most three bytes are held


def test_an_answer_that_ends_in_mid_character_shows_the_replacement_character_once() -> None:
    stream = TextStream(Pieces([b"a", b"\xf0\x9d"]))
    assert [stream.push(0), stream.push(1), stream.flush(), stream.flush()] == ["a", "", "\ufffd", ""]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=5), min_size=1, max_size=4 * WINDOW))
def test_the_pieces_of_any_bytes_add_up_to_the_decoding_of_all(pieces: list[bytes]) -> None:
    out, text = streamed(pieces)
    assert "".join(out) == text == b"".join(pieces).decode(errors="replace")


@settings(max_examples=300, deadline=None)
@given(
    st.text("ab<>", min_size=1, max_size=40),
    st.lists(st.text("ab<>", min_size=1, max_size=4), min_size=1, max_size=3),
    st.data(),
)
def test_stop_strings_agree_with_a_search_after_every_character(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    expected = text
    for end in range(1, len(text) + 1):
        hits = [end - len(s) for s in stops if text[:end].endswith(s)]
        if hits:
            expected = text[: min(hits)]
            break
    places = tuple(sorted(data.draw(st.sets(st.integers(1, max(1, len(text) - 1)), max_size=6)) - {len(text)}))
    pieces, final = streamed(cuts(text.encode(), places), tuple(stops))
    assert final == expected
    assert "".join(pieces) == expected


def test_the_window_does_not_grow_with_the_answer() -> None:
    stream = TextStream(Pieces([b"x"]))
    for _ in range(10 * WINDOW):
        stream.push(0)
    assert len(stream._ids) <= WINDOW
    assert KEPT < WINDOW


def test_a_tokenizer_that_drops_the_first_space_keeps_the_one_between_prompt_and_answer() -> None:
    class Metaspace(Pieces):
        def decode(self, ids, *, skip_special=True):  # type: ignore[no-untyped-def]
            return super().decode(ids).removeprefix(" ")

    tokenizer = Metaspace([" The", " cat", " sat"])
    engine = Engine(line([1, 2, 1], 3, prompt=1), tokenizer=tokenizer)
    params = SamplingParams(max_tokens=3, temperature=0)
    events = list(engine.stream([0], params))
    assert shown(events) == events[-1].result.text == " cat sat cat"


@pytest.mark.parametrize("length", [0, 1, 2, 4, 8])
def test_streamed_text_does_not_depend_on_how_many_tokens_a_round_commits(length: int) -> None:
    data = cuts(TEXT.encode(), tuple(range(1, len(TEXT.encode()))))
    answer = list(range(len(data)))
    for stops in ((), ("<end>",), ("€𝄞", "zzz")):
        params = SamplingParams(max_tokens=len(answer), temperature=0, stop=stops)
        plain = Engine(line(answer, len(answer)), tokenizer=Pieces(data)).generate(PROMPT, params)
        engine = Engine(
            line(answer, len(answer)), drafter=says(answer), tokenizer=Pieces(data), schedule=FixedSchedule(length)
        )
        events = list(engine.stream(PROMPT, params))
        assert shown(events) == events[-1].result.text == plain.text
        assert events[-1].result.token_ids == plain.token_ids
        assert events[-1].result.offsets == plain.offsets
