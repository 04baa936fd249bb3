"""The trace page: its counts are the result's, its text is data, its keys work; in a real browser."""

import json
import re
import unicodedata
from html.parser import HTMLParser

import pytest
from pages_kit import NASTY, nasty_run, settle

from draftproof.trace import Recorder, trace_page
from draftproof.trace.records import Choice, DraftedToken, Header, Part, RequestRecord, Round, TokenRecord, Trace
from draftproof.verify.base import Origin

pytestmark = pytest.mark.browser


def assert_counts(page, trace, result):
    """What the page counted from the rounds equals the JSON of the result."""
    j = result.to_json()
    shown = page.evaluate(
        "() => Object.fromEntries([...document.querySelectorAll('#figures [data-count]')]"
        ".map((c) => [c.dataset.count, c.textContent]))"
    )
    s = j["speculation"]
    assert int(shown["emitted"]) == s["emitted"] == j["usage"]["completion_tokens"]
    assert int(shown["rounds"]) == s["rounds"]
    assert int(shown["drafted"]) == s["drafted"]
    assert int(shown["accepted"]) == s["accepted"]
    assert int(shown["surprises"]) == s["surprises"]
    pairs = [f"{a}/{d}" for a, d in zip(s["accepted_at"], s["drafted_at"], strict=True)]
    assert shown["by-position"].split() == pairs
    assert shown["finish"] == j["finish_reason"]
    assert page.locator("#words .word").count() == s["emitted"]
    for origin in ("accepted", "residual", "bonus", "plain"):
        assert page.locator(f"#words .origin-{origin}").count() == j["origins"].count(origin)
    for name in ("target", "draft"):
        assert float(shown[name].split()[0]) == pytest.approx(j["timing"][name], abs=1e-3)


def test_the_counts_of_a_real_run_are_those_of_its_json(tmp_path, open_page):
    trace, result = nasty_run(300)
    path = tmp_path / "trace.html"
    path.write_text(trace_page(trace), encoding="utf-8")
    page = open_page(path)
    assert_counts(page, trace, result)


@pytest.mark.model
def test_the_default_models_run_is_shown_with_its_counts(tmp_path, open_page):
    from draftproof.load import load_engine
    from draftproof.sampling.params import SamplingParams

    engine = load_engine("smollm2", draft="lookup", schedule="fixed")
    recorder = Recorder(engine)
    engine.observers.append(recorder)
    prompt = "Repeat: the cat sat on the mat, the cat sat on the mat."
    result = engine.generate(prompt, SamplingParams(max_tokens=40, temperature=0, seed=1))
    assert result.speculation.accepted > 0
    trace = recorder.trace(result.choices)
    path = tmp_path / "trace.html"
    path.write_text(trace_page(trace), encoding="utf-8")
    page = open_page(path)
    assert_counts(page, trace, result)
    assert "".join(t.text for r in trace.rounds for p in r.parts for t in p.tokens) == result.text


class Elements(HTMLParser):
    """What an HTML parser makes of the file: its elements, and the text inside the scripts."""

    def __init__(self):
        super().__init__()
        self.tags, self.inside, self.scripts = [], False, []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag == "script":
            self.inside = True
            self.scripts.append("")

    def handle_endtag(self, tag):
        if tag == "script":
            self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.scripts[-1] += data


def test_token_text_cannot_leave_its_data_element():
    html = trace_page(nasty_run(60)[0])
    elements = Elements()
    elements.feed(html)
    assert elements.tags.count("script") == 2
    assert "img" not in elements.tags
    data = json.loads(elements.scripts[0])
    assert data["trace"]["requests"][0]["prompt"] == "".join(NASTY)
    raw = elements.scripts[0]
    assert not re.search(r"[<>&\u2028\u2029\u202e]", raw)
    assert raw.isascii()


def test_hostile_text_is_shown_and_never_obeyed(nasty):
    assert nasty.evaluate("() => window.broken") is None
    assert nasty.evaluate("() => document.scripts.length") == 2
    assert nasty.locator("img").count() == 0
    nasty.locator("details summary").click()
    prompt = nasty.locator("#prompt")
    shown = prompt.evaluate("(node) => node.textContent")
    for piece in (
        "<script>window.broken = 1</script>",
        "</style><img src=x onerror='window.broken = 3'>",
        "\"'`&lt;&amp;",
        "{{script}}",
        "<!--",
    ):
        assert piece in shown
    assert "😀" in shown
    assert "\U0001f469\u200d\U0001f467" in shown  # an emoji stays one emoji
    assert "\u202e" not in shown
    assert "\u2066" not in shown
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x80-\x9f\u200b\u2028\u2029\ufeff]", shown)
    marks = prompt.locator(".mark-char").all_inner_texts()
    assert {"RLO", "LRI", "ZWSP", "LS", "PS", "NUL", "ESC", "⇥", "↵", "U+0085", "BOM"} <= set(marks)


def test_every_character_without_a_face_is_marked_and_ordinary_text_is_not(nasty):
    faceless = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) in ("Cc", "Cf", "Zl", "Zp")]
    faceless += [
        "\u115f",
        "\u3164",
        "\u034f",
        "\ufffd",
    ]  # invisible letters and marks, and what stands for broken bytes
    marked = nasty.evaluate(
        "(all) => all.filter((c) => draftproof.visible.nodes(c, false).some((n) => n.nodeType))", faceless
    )
    assert marked == faceless
    inside = nasty.evaluate("(all) => all.map((c) => draftproof.visible.plain('a' + c + 'b'))", faceless)
    joiners = {"\u200c", "\u200d"}
    for character, shown in zip(faceless, inside, strict=True):
        assert (character in shown) == (character in joiners or character == "\ufffd")
    ordinary = [
        "the",
        " quick",
        "中文",
        "שלום",
        "😀",
        "\U0001f469\u200d\U0001f467",
        "\u2764\ufe0f",
        "é",
        "e\u0301",
        "<b>&amp;",
    ]
    assert nasty.evaluate("(all) => all.map((text) => draftproof.visible.plain(text))", ordinary) == ordinary


def test_names_controls_and_every_other_text_of_a_trace_are_data_too(tmp_path, open_page):
    evil = "</script><img src=x onerror='window.broken = 9'>\u202e"
    token = TokenRecord(
        1,
        evil,
        evil,
        Origin.RESIDUAL,
        0.5,
        DraftedToken(2, evil, 0.1, 0.2, 0.5, 0.5, 0.7),
        "residual",
        (Choice(1, evil, 1.0),),
    )
    trace = Trace(
        Header(evil, evil, evil, evil, evil),
        (RequestRecord(0, 0, 1, 1, evil, {evil: evil}), RequestRecord(1, 0, 1, 1, evil, {})),
        (Round(0, 1, 0.1, 0.1, 0.1, (Part(0, 1, evil, (evil,), 1, 0, 0, (token,)),)),),
        ({"finish_reason": evil},),
    )
    path = tmp_path / "evil.html"
    path.write_text(trace_page(trace), encoding="utf-8")
    page = open_page(path)
    page.locator("#words .word").click()
    page.select_option("#request", "1")
    page.select_option("#request", "0")
    assert page.evaluate("() => window.broken") is None
    assert page.locator("img").count() == 0
    text = page.locator("main").evaluate("(node) => node.textContent")
    assert text.count("</script><img") >= 8
    assert "\u202e" not in text


def test_hover_and_arrow_keys_show_every_field_of_a_token(nasty):
    trace, _ = nasty_run(60)
    flat = [(p, k, t) for r in trace.rounds for p in r.parts for k, t in enumerate(p.tokens)]
    rejected = next(i for i, (_, _, t) in enumerate(flat) if t.origin is Origin.RESIDUAL and t.drafted.u is not None)
    nasty.locator("#words").focus()
    nasty.keyboard.press("Home")
    for _ in range(rejected):
        nasty.keyboard.press("ArrowRight")
    token = flat[rejected][2]
    details = nasty.locator("#details").inner_text()
    d = token.drafted
    for value in (d.p, d.q, d.alpha, d.u, token.p):
        assert (f"{value:.4f}" if value >= 1e-4 else f"{value:.2e}"[:4]) in details
    assert "rejected" in details
    assert "residual" in details
    assert "temperature = 1" in details
    assert nasty.locator("#details .law tbody tr").count() == len(token.top)
    assert nasty.locator("#words").get_attribute("aria-activedescendant") == f"token-{rejected}"
    assert nasty.locator("#words [aria-selected=true]").count() == 1
    nasty.locator("#token-0").hover()
    settle(nasty)
    assert nasty.locator("#words").get_attribute("aria-activedescendant") == "token-0"


def test_the_strip_is_a_slider_over_the_rounds(nasty):
    trace, _ = nasty_run(60)
    strip = nasty.locator("#strip svg")
    strip.focus()
    strip.press("End")
    assert strip.get_attribute("aria-valuenow") == str(len(trace.rounds)) == strip.get_attribute("aria-valuemax")
    strip.press("Home")
    strip.press("ArrowRight")
    part = trace.rounds[1].parts[0]
    said = nasty.locator("#round-say").inner_text()
    assert said.startswith(f"Round 2 of {len(trace.rounds)}: {len(part.drafted)} drafted by")
    assert f"{part.admitted} admitted, {part.accepted} accepted" in said
    assert nasty.locator("#words .same-round").count() == len(part.tokens)


def test_origins_differ_by_more_than_colour(nasty):
    lines = nasty.evaluate(
        "() => ['accepted', 'residual', 'bonus', 'plain']"
        ".map((o) => getComputedStyle(document.querySelector(`#origins .origin-${o}`)))"
        ".map((s) => `${s.textDecorationLine} ${s.textDecorationStyle}`)"
    )
    assert len(set(lines)) == 4


def test_against_target_passes_plain_decoding_is_exact(tmp_path, open_page):
    trace, result = nasty_run(300)
    path = tmp_path / "trace.html"
    path.write_text(trace_page(trace), encoding="utf-8")
    page = open_page(path)
    page.select_option("#axis", "passes")
    # in passes, plain decoding takes one per token: the gain is tokens per round
    assert float(page.locator("#curve").get_attribute("data-gain")) == pytest.approx(
        result.speculation.tokens_per_round, abs=1e-9
    )


def test_a_trace_without_tokens_or_requests_is_still_a_page(tmp_path, open_page):
    header = Header("t", "d", "token", "fixed", "0")
    for name, requests in (("none", ()), ("empty", (RequestRecord(0, 0, 1, 1, "x", {}),))):
        path = tmp_path / f"{name}.html"
        path.write_text(trace_page(Trace(header, requests, ())), encoding="utf-8")
        page = open_page(path)
        page.get_by_role("radio", name="中文").check()
        assert page.locator("#words .word").count() == 0


def test_two_thousand_tokens_are_all_there(tmp_path, open_page):
    trace, result = nasty_run(2000)
    path = tmp_path / "long.html"
    path.write_text(trace_page(trace), encoding="utf-8")
    page = open_page(path)
    assert_counts(page, trace, result)
    page.locator("#words").focus()
    page.keyboard.press("End")
    settle(page)
    assert page.locator("#words").get_attribute("aria-activedescendant") == "token-1999"
    assert page.evaluate(
        "() => { const box = document.getElementById('words').getBoundingClientRect();"
        " const item = document.getElementById('token-1999').getBoundingClientRect();"
        " return item.bottom <= box.bottom + 1 }"
    )
