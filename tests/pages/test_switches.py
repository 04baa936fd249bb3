"""Language and theme on both pages: switched, remembered, complete."""

import json
import re
from importlib import resources

import pytest

from draftproof.explain.page import LANGUAGES

PAGES = {"draftproof.explain": "explain.html", "draftproof.trace": "trace.html"}


def asset(package, name):
    return resources.files(package).joinpath("assets", name).read_text(encoding="utf-8")


def sources(package):
    return {f.name: f.read_text(encoding="utf-8") for f in resources.files(package).joinpath("assets").iterdir()}


@pytest.mark.parametrize("package", PAGES)
def test_both_languages_have_the_same_keys_and_the_same_places_for_values(package):
    english, chinese = (json.loads(asset(package, f"texts.{lang}.json")) for lang in LANGUAGES)
    assert list(english) == list(chinese)
    for key in english:
        places = [sorted(re.findall(r"\{(\w+)\}", texts[key])) for texts in (english, chinese)]
        assert places[0] == places[1], key


@pytest.mark.parametrize("package", PAGES)
def test_chinese_texts_are_chinese_and_nothing_is_left_untranslated(package):
    english, chinese = (json.loads(asset(package, f"texts.{lang}.json")) for lang in LANGUAGES)
    same = {key for key in english if english[key] == chinese[key]}
    # names of the field and bare symbols, which are the same in both
    assert same <= {"key_p", "column_p", "column_target", "column_draft", "token", "name_target", "chain_pass"} | {
        key for key in same if english[key] in {"target", "draft", "p", "u, α"}
    }


@pytest.mark.parametrize("package", PAGES)
def test_every_text_a_page_asks_for_exists(package):
    texts = json.loads(asset(package, "texts.en.json"))
    files = sources(package)
    asked = set(re.findall(r'data-t(?:-label)?="(\w+)"', asset(package, PAGES[package])))
    for name, text in files.items():
        if name.endswith(".js"):
            asked |= set(re.findall(r'\bt\("(\w+)"', text))
    assert asked <= set(texts)


@pytest.mark.browser
@pytest.mark.parametrize("which", ["explain_file", "nasty_file"])
def test_language_and_theme_are_switched_and_remembered(which, request, open_page, browser):
    path = request.getfixturevalue(which)
    context = browser.new_context(locale="en-GB", color_scheme="light")
    page = open_page(path, context=context)
    ground = "() => getComputedStyle(document.body).backgroundColor"
    light, english = page.evaluate(ground), page.locator("h1").inner_text()
    assert page.evaluate("document.documentElement.lang") == "en"
    page.get_by_role("radio", name="中文").check()
    page.get_by_role("radio", name="深色").check()
    assert page.evaluate("document.documentElement.lang") == "zh-Hans"
    dark, chinese = page.evaluate(ground), page.locator("h1").inner_text()
    assert dark != light
    assert chinese != english
    page.reload()
    assert page.locator("h1").inner_text() == chinese
    assert page.evaluate(ground) == dark
    assert (
        page.title()
        == json.loads(asset("draftproof." + which.split("_")[0].replace("nasty", "trace"), "texts.zh.json"))["title"]
    )


@pytest.mark.browser
@pytest.mark.parametrize("which", ["explain_file", "nasty_file"])
def test_the_browsers_language_and_scheme_are_the_first_choice(which, request, open_page):
    path = request.getfixturevalue(which)
    light = open_page(path, scheme="light")
    dark = open_page(path, scheme="dark", locale="zh-CN")
    ground = "() => getComputedStyle(document.body).backgroundColor"
    assert dark.evaluate("document.documentElement.lang") == "zh-Hans"
    assert light.evaluate("document.documentElement.lang") == "en"
    assert dark.evaluate(ground) != light.evaluate(ground)


@pytest.mark.browser
@pytest.mark.parametrize("which", ["explain_file", "nasty_file"])
def test_no_text_is_missing_in_chinese_after_every_button_was_pressed(which, request, open_page):
    page = open_page(request.getfixturevalue(which), locale="zh-CN")
    for button in page.get_by_role("button").all():
        button.click()
    for box in page.get_by_role("checkbox").all():
        box.click()
    # a missing text is an error of the page, which the fixture reports
    assert "undefined" not in page.locator("main").inner_text()
