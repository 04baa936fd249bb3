"""Both pages for everybody: axe finds nothing serious, nothing overflows a phone; and pictures to look at."""

from pathlib import Path

import pytest
from pages_kit import settle

pytestmark = pytest.mark.browser

AXE = Path(__file__).parent / "node_modules" / "axe-core" / "axe.min.js"
PAGES = ["explain_file", "nasty_file"]
SIZES = {"phone": (360, 740), "desktop": (1280, 900)}


@pytest.fixture(scope="session")
def axe():
    if not AXE.is_file():
        pytest.fail("axe-core is missing: run npm install in tests/pages, as make test does")
    return AXE.read_text(encoding="utf-8")


def violations(page, axe):
    page.evaluate(axe)
    found = page.evaluate("() => axe.run(document)")["violations"]
    return {
        v["id"]: [node["html"][:120] for node in v["nodes"]] for v in found if v["impact"] in ("serious", "critical")
    }


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("which", PAGES)
def test_axe_reports_no_serious_violation(which, scheme, size, request, open_page, axe):
    width, height = SIZES[size]
    page = open_page(request.getfixturevalue(which), scheme=scheme, width=width, height=height)
    settle(page)
    assert violations(page, axe) == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_reports_nothing_either_while_everything_is_in_use(scheme, explain_file, open_page, axe):
    page = open_page(explain_file, scheme=scheme)
    for button in (
        "#roll-100",
        "#roll-step",
        "#roll-step",
        "#chain-round",
        "#chain-step",
        "#chain-step",
        "#faults-none",
    ):
        page.click(button)
    page.click("#steps button[data-number='3']")
    page.click("[data-fault='drop_seen_token'] [role=switch]")
    settle(page)
    assert violations(page, axe) == {}


def test_axe_can_fail(explain, axe):
    explain.evaluate(
        "() => document.querySelector('#roll-seed').closest('label').replaceWith(document.querySelector('#roll-seed'))"
    )
    assert "label" in violations(explain, axe)


@pytest.mark.parametrize("width", [320, 360, 768, 1280])
@pytest.mark.parametrize("locale", ["en-GB", "zh-CN"])
@pytest.mark.parametrize("which", PAGES)
def test_no_width_makes_the_page_scroll_sideways(which, width, locale, request, open_page):
    page = open_page(request.getfixturevalue(which), width=width, locale=locale)
    if which == "explain_file":
        page.select_option("#size", "8")
    settle(page)
    assert page.evaluate("() => document.documentElement.scrollWidth - window.innerWidth") <= 0


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("which", PAGES)
def test_pictures_of_both_pages_are_made(which, scheme, size, request, open_page, tmp_path):
    width, height = SIZES[size]
    page = open_page(request.getfixturevalue(which), scheme=scheme, width=width, height=height)
    if which == "explain_file":
        page.click("#roll-10000")
        page.click("#chain-round")
    settle(page)
    picture = tmp_path / f"{which.removesuffix('_file')}-{scheme}-{size}.png"
    page.screenshot(path=picture, full_page=True)
    assert picture.stat().st_size > 20_000  # a blank page of this size is a few kB


@pytest.mark.parametrize("which", PAGES)
def test_printed_pages_hide_their_controls_and_stay_light(which, request, open_page):
    page = open_page(request.getfixturevalue(which), scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert not page.locator(".switches").is_visible()
    red, green, blue = page.evaluate(
        "() => getComputedStyle(document.body).backgroundColor.match(/[\\d.]+/g).slice(0, 3).map(Number)"
    )
    assert min(red, green, blue) > 200
    assert len(page.pdf()) > 20_000


def test_every_control_of_the_explain_page_is_reached_by_tab_and_shows_its_focus(explain):
    reached = set()
    for _ in range(90):
        explain.keyboard.press("Tab")
        name, outline = explain.evaluate(
            "() => { const e = document.activeElement;"
            " const s = getComputedStyle(e.type === 'radio' ? e.nextElementSibling : e);"
            " const label = e.getAttribute('aria-labelledby');"
            " return [e.id || e.dataset.bar || e.dataset.number || e.name || label || e.className || e.tagName,"
            " s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 1] }"
        )
        if name == "BODY":
            break
        assert outline, name
        reached.add(name)
    assert {
        "language",
        "theme",
        "size",
        "preset",
        "digits",
        "swap",
        "p-0",
        "q-3",
        "7",
        "roll-step",
        "roll-seed",
    } <= reached
    assert {
        "chain-length",
        "chain-round",
        "pay-cost",
        "pay-follow",
        "faults-own",
        "fault-drop_seen_token-title",
    } <= reached
