"""JSON schema, regex and Lark through llguidance (faults class H): masks, ends, roll-back, messages."""

from __future__ import annotations

import builtins
import copy
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_kit import SmallTokenizer

from draftproof.errors import InvalidValue, MissingExtra, Unsupported
from draftproof.sampling.controls import Controls, DeadEnd
from draftproof.sampling.params import SamplingParams
from draftproof.target.base import LogitRows
from draftproof.text import IdTokenizer

TOKENIZER = SmallTokenizer()
ROW = LogitRows(np.zeros((1, TOKENIZER.size), dtype=np.float32))
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
KINDS: dict[str, tuple[dict[str, Any], str]] = {
    "json_schema": ({"json_schema": SCHEMA}, '{"ok":true}'),
    "regex": ({"regex": "(tr|no)+ [0-9]{2}"}, "notrno 42"),
    "lark": ({"grammar": 'start: "a" start "b" | "x"'}, "aaxbb"),
}


def asked(**params: Any) -> Controls:
    eos = frozenset([TOKENIZER.eos])
    return Controls(SamplingParams(**params), TOKENIZER.size, eos_ids=eos, tokenizer=TOKENIZER)


def allowed(controls: Controls, drafted: list[int]) -> set[int]:
    p = controls.distribution(ROW, 0, drafted)
    return {p.token_at(i) for i, prob in enumerate(p.probs.tolist()) if prob > 0}


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_of_a_block_has_the_mask_of_its_own_prefix(kind: str) -> None:
    params, text = KINDS[kind]
    ids = TOKENIZER.encode(text)
    block = asked(**params)
    step = asked(**params)
    for i in range(len(ids) + 1):
        assert allowed(block, ids[:i]) == allowed(step, [])
        if i < len(ids):
            assert ids[i] in allowed(block, ids[:i])
            step.commit(ids[i])
    assert allowed(block, ids) == {TOKENIZER.eos}  # nothing can follow: EOS is forced
    assert TOKENIZER.eos not in allowed(block, ids[:-1])


def test_a_mask_is_the_set_of_tokens_whose_text_can_go_on() -> None:
    controls = asked(regex="(true|no)")
    words = {TOKENIZER.decode([i]) for i in allowed(controls, [])}
    assert words == {"t", "tr", "tru", "true", "n", "no"}
    assert "r" in {TOKENIZER.decode([i]) for i in allowed(controls, TOKENIZER.encode("t"))}


def test_eos_is_possible_but_not_forced_where_the_grammar_may_go_on() -> None:
    controls = asked(regex="a+")
    a = TOKENIZER.encode("a")
    assert allowed(controls, []) == {*a}
    assert allowed(controls, a) == {*a, TOKENIZER.eos}
    assert allowed(controls, [*a, *a]) == {*a, TOKENIZER.eos}


def test_drafts_beyond_the_end_neither_assert_nor_move_the_matcher() -> None:
    controls = asked(**KINDS["json_schema"][0])
    ids, x = TOKENIZER.encode('{"ok":true}'), TOKENIZER.encode("x")
    for tail in ([*x], [TOKENIZER.eos], [TOKENIZER.eos, *x], [TOKENIZER.eos, TOKENIZER.eos, *x]):
        controls.distribution(ROW, 0, [*ids, *tail])
        assert controls.allowed_prefix([*ids, *tail]) == len(ids) + (tail[0] == TOKENIZER.eos)
    assert allowed(controls, []) == allowed(asked(**KINDS["json_schema"][0]), [])
    for token in (*ids, TOKENIZER.eos):
        controls.commit(token)


def test_a_text_that_leaves_the_grammar_in_mid_block_is_cut_there() -> None:
    controls = asked(**KINDS["json_schema"][0])
    good, bad = TOKENIZER.encode('{"ok"'), TOKENIZER.encode("`")
    assert controls.allowed_prefix([*good, *bad, *good]) == len(good)
    assert controls.allowed_prefix(bad) == 0


def test_what_follows_a_marker_in_the_same_block_is_held_to_the_grammar_after_it() -> None:
    controls = asked(grammar='start: /[a-z ]*/ "</think>" "{" "}"')
    marker = TOKENIZER.encode("so</think>")
    assert controls.allowed_prefix([*marker, *TOKENIZER.encode("`")]) == len(marker)
    assert allowed(controls, marker) == set(TOKENIZER.encode("{"))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_after_any_rounds_the_matcher_equals_a_fresh_one_fed_the_committed_tokens(data: st.DataObject) -> None:
    params = {"regex": "(tr|tru|no| no)*x?"}
    controls = asked(**params)
    committed: list[int] = []
    for _ in range(data.draw(st.integers(1, 4))):
        drafted: list[int] = []
        for _ in range(data.draw(st.integers(0, 4))):
            drafted.append(data.draw(st.sampled_from(sorted(allowed(controls, drafted) | {0, TOKENIZER.eos}))))
        controls.allowed_prefix(drafted)
        token = data.draw(st.sampled_from(sorted(allowed(controls, []) - {TOKENIZER.eos}) or [TOKENIZER.eos]))
        controls.commit(token)
        committed.append(token)
        fresh = asked(**params)
        for past in committed:
            fresh.commit(past)
        if token == TOKENIZER.eos:
            return
        assert allowed(controls, []) == allowed(fresh, [])


def test_a_dead_end_inside_a_grammar_is_one_and_the_matcher_goes_on_elsewhere() -> None:
    # After "n" only an "o" could follow that the intersection rules out: the library notices when it looks.
    controls = asked(grammar='start: "n" B | "true"\nB: /o/ & /x/')
    n, t = TOKENIZER.encode("n"), TOKENIZER.encode("t")
    with pytest.raises(DeadEnd):
        controls.distribution(ROW, 0, n)
    assert "r" in {TOKENIZER.decode([i]) for i in allowed(controls, t)}
    with pytest.raises(DeadEnd):
        copy.deepcopy(controls).distribution(ROW, 0, n)


def test_a_copy_and_its_original_do_not_see_each_others_tokens() -> None:
    controls = asked(regex="ab|cd")
    a, c = TOKENIZER.encode("a"), TOKENIZER.encode("c")
    controls.distribution(ROW, 0, a)
    twin = copy.deepcopy(controls)
    controls.commit(a[0])
    twin.commit(c[0])
    assert TOKENIZER.decode(list(allowed(controls, []))) == "b"
    assert TOKENIZER.decode(list(allowed(twin, []))) == "d"


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"regex": "(a"}, "unclosed group"),
        ({"regex": r"[^\s\S]"}, "nothing can satisfy it"),
        ({"grammar": "start: foo"}, r"1\(8\).*unknown name"),
        ({"grammar": 'start: "a" ('}, r"1\(13\)"),
        ({"json_schema": '{"type": '}, "line 1 column"),
        ({"json_schema": {"type": "objec"}}, "Invalid type: objec"),
        ({"json_schema": {"$ref": "#/x"}}, "Pointer '/x'"),
        ({"json_schema": {"type": "string", "minLength": 5, "maxLength": 2}}, "Unsatisfiable"),
    ],
)
def test_what_is_no_grammar_is_refused_with_the_librarys_message_and_place(
    params: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidValue, match=f"(?s){next(iter(params))}.*{message}"):
        asked(**params)


def test_a_grammar_needs_a_tokenizer_that_can_be_written_down_and_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(regex="a")
    with pytest.raises(InvalidValue, match="regex without a tokenizer"):
        Controls(params, 3, eos_ids=frozenset([2]))
    with pytest.raises(Unsupported, match=r"no tokenizer\.json"):
        Controls(params, 3, eos_ids=frozenset([2]), tokenizer=IdTokenizer(3))
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "llguidance":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtra, match=r"draftproof\[grammar\]"):
        asked(regex="a")


def test_one_token_at_a_time_of_a_uniform_model_always_gives_valid_json() -> None:
    rng = np.random.default_rng(5)
    for _ in range(20):
        controls = asked(json_schema=SCHEMA)
        ids: list[int] = []
        while not ids or ids[-1] != TOKENIZER.eos:
            ids.append(int(rng.choice(sorted(allowed(controls, [])))))
            controls.commit(ids[-1])
            if len(ids) > 200:  # white space may go on for ever
                break
        else:
            assert isinstance(json.loads(TOKENIZER.decode(ids))["ok"], bool)
