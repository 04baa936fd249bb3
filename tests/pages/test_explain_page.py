"""The explain page: dragging, keys, dice, chain, faults, switches; in a real browser, against `draftproof.rule`."""

import json
import math

import numpy as np
import pytest
from pages_kit import cells, settle

from draftproof import rule
from draftproof.explain.page import explain_page, planted_faults

pytestmark = pytest.mark.browser


def set_bars(page, p, q):
    page.evaluate("([p, q]) => draftproof.state.set(p, q)", [list(p), list(q)])


def column(values, name, size):
    return np.array([values[f"{name}-{i}"] for i in range(size)])


def assert_consistent(page, size):
    """Everything the page shows equals the package's rule on the p and q it shows."""
    shown = cells(page)
    p, q = column(shown, "p", size), column(shown, "q", size)
    assert p.sum() == pytest.approx(1, abs=1e-12)
    assert q.sum() == pytest.approx(1, abs=1e-12)
    want = {
        "alpha": rule.accept_prob(p, q),
        "min": q * rule.accept_prob(p, q),
        "max": np.maximum(0, p - q),
        "residual": rule.residual(p, q),
        "pi": rule.output_distribution(p, q),
    }
    for name, values in want.items():
        assert column(shown, name, size) == pytest.approx(values, abs=1e-9), name
    assert column(shown, "pi", size) == pytest.approx(p, abs=1e-9)
    z = float(rule.reject_prob(p, q))
    assert shown["max-sum"] == pytest.approx(z, abs=1e-9)
    assert shown["min-sum"] == pytest.approx(1 - z, abs=1e-9)
    merged = page.evaluate(
        "() => Object.fromEntries([...document.querySelectorAll('#merged [data-part]')]"
        ".map((part) => [part.dataset.part, { value: Number(part.dataset.value), box: part.getBBox() && "
        "{ y: part.getBBox().y, height: part.getBBox().height } }]))"
    )
    for i in range(size):
        low, high, line = merged[f"accepted-{i}"], merged[f"residual-{i}"], merged[f"p-{i}"]
        assert low["value"] + high["value"] == pytest.approx(line["value"], abs=1e-9)
        assert line["value"] == pytest.approx(p[i], abs=1e-12)
        # and so drawn: the top of the stack is where the line of p is
        assert low["box"]["y"] - high["box"]["height"] == pytest.approx(line["box"]["y"], abs=0.01)
        if high["box"]["height"] > 0:
            assert high["box"]["y"] == pytest.approx(line["box"]["y"], abs=0.01)
    return p, q


def drag(page, which, i, share):
    """Drag one bar with the mouse to a share of the axis; the value it should have afterwards."""
    box = page.evaluate(
        "([name]) => { const r = document.querySelector(`[data-bar='${name}'] .reach`).getBoundingClientRect();"
        " const g = document.querySelector(`[data-bar='${name}'] .grip`).getBoundingClientRect();"
        " return { x: r.x + r.width / 2, top: r.y, full: r.height, grip: g.y + g.height / 2 } }",
        [f"{which}-{i}"],
    )
    goal = box["top"] + box["full"] * (1 - share)
    page.mouse.move(box["x"], box["grip"])
    page.mouse.down()
    page.mouse.move(box["x"], (box["grip"] + goal) / 2)
    page.mouse.move(box["x"], goal)
    settle(page)
    page.mouse.up()
    return 1 - (goal - box["top"]) / box["full"]


def test_dragging_200_random_pairs_keeps_every_number_equal_to_the_rule(explain):
    explain.locator("#bars").scroll_into_view_if_needed()
    rng = np.random.default_rng(7)
    for _ in range(200):
        size = int(rng.integers(3, 9))
        p, q = rng.dirichlet(np.ones(size)), rng.dirichlet(np.ones(size))
        set_bars(explain, p, q)
        which, i = str(rng.choice(["p", "q"])), int(rng.integers(size))
        want = drag(explain, which, i, float(rng.random()))
        shown = dict(zip("pq", assert_consistent(explain, size), strict=True))
        assert shown[which][i] == pytest.approx(want, abs=0.01)  # two pixels of the axis
        other = "q" if which == "p" else "p"
        assert shown[other] == pytest.approx({"p": p, "q": q}[other], abs=1e-12)


def test_equal_disjoint_and_point_distributions_stay_consistent(explain):
    for p, q in [([0.5, 0.3, 0.2],) * 2, ([1, 0, 0], [0, 0.5, 0.5]), ([0.2, 0.3, 0.5], [0, 1, 0])]:
        set_bars(explain, p, q)
        assert_consistent(explain, 3)


def test_a_bar_is_a_slider_for_the_keyboard(explain):
    set_bars(explain, [0.5, 0.25, 0.25], [0.2, 0.3, 0.5])
    slider = explain.get_by_role("slider", name="p of token A")
    slider.focus()
    steps = [("ArrowUp", 0.51), ("ArrowLeft", 0.5), ("PageDown", 0.4), ("Home", 0), ("End", 1), ("ArrowDown", 0.99)]
    for key, value in steps:
        slider.press(key)
        settle(explain)
        assert float(slider.get_attribute("aria-valuenow")) == pytest.approx(value, abs=1e-9)
        p, _ = assert_consistent(explain, 3)
        # from 1 back down, the neighbours come back in the proportions they had
        assert p[1] == pytest.approx(p[2], abs=1e-12)
    assert slider.get_attribute("aria-valuemin") == "0"
    assert slider.get_attribute("aria-valuemax") == "1"


def test_a_finger_beside_the_grip_scrolls_and_changes_nothing(explain_file, browser, open_page):
    context = browser.new_context(viewport={"width": 360, "height": 740}, has_touch=True, locale="en-GB")
    page = open_page(explain_file, context=context)
    page.locator("#bars").scroll_into_view_if_needed()
    before = cells(page)
    box = page.locator("[data-bar='p-3'] .reach").bounding_box()
    page.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + 10)
    settle(page)
    assert cells(page) == before
    grip = page.locator("[data-bar='p-0'] .grip").bounding_box()
    page.touchscreen.tap(grip["x"] + grip["width"] / 2, grip["y"] + 12)
    settle(page)
    assert cells(page) != before


def test_tokens_decimals_presets_and_swap_keep_everything_consistent(explain):
    for size in (3, 8, 5):
        explain.select_option("#size", str(size))
        assert_consistent(explain, size)
        assert explain.locator("#bars [role=slider]").count() == 2 * size
    for preset in explain.evaluate("() => Object.keys(draftproof.state.presets)"):
        explain.select_option("#preset", preset)
        p, q = assert_consistent(explain, 5)
    explain.click("#swap")
    assert [*map(tuple, assert_consistent(explain, 5))] == [tuple(q), tuple(p)]
    explain.select_option("#digits", "9")
    shown = explain.locator("[data-cell='p-0']")
    assert shown.inner_text() == f"{float(shown.get_attribute('data-value')):.9f}"


def test_each_step_of_the_derivation_lights_its_part_and_only_that(explain):
    opacity = "(s) => [...document.querySelectorAll(s)].map((e) => Number(getComputedStyle(e).opacity))"
    for number in range(1, 8):
        explain.locator(f"#steps button[data-number='{number}']").click()
        assert explain.locator("#steps button[aria-pressed=true]").get_attribute("data-number") == str(number)
        lit = explain.evaluate(opacity, f"#picture [data-steps~='{number}']")
        dark = explain.evaluate(opacity, f"#picture [data-steps]:not([data-steps~='{number}'])")
        assert lit
        assert set(lit) == {1}
        assert dark
        assert max(dark) < 0.5
    explain.locator("#steps button[data-number='7']").click()
    assert set(explain.evaluate(opacity, "#picture [data-steps]")) == {1}


def test_many_rolls_settle_on_p_and_equal_seeds_roll_alike(explain):
    set_bars(explain, [0.5, 0.3, 0.2], [0.2, 0.2, 0.6])

    def ten_thousand():
        explain.click("#roll-reset")
        explain.click("#roll-10000")
        count = explain.locator("#roll-count")
        return int(count.get_attribute("data-total")), float(count.get_attribute("data-tv"))

    total, distance = ten_thousand()
    assert total == 10000
    # Seeded, so it cannot flake; were it not: P(TV of 3 cells from 10 000 draws > .025) < 2e-6 by a union of
    # Hoeffding bounds over the 3 pairs of complementary events.
    assert distance < 0.025
    assert ten_thousand() == (total, distance)
    explain.fill("#roll-seed", "2")
    assert ten_thousand() != (total, distance)


def test_a_roll_is_told_in_three_steps_and_counted_once(explain):
    for _ in range(20):
        explain.click("#roll-reset")
        for shown in (1, 2, 3):
            explain.click("#roll-step")
            assert explain.locator("#roll-stages .on").count() == shown
        said = explain.locator("#roll-say").inner_text()
        assert said.startswith("Output")
        assert explain.locator("#roll-count").get_attribute("data-total") == "1"


def test_a_change_of_the_bars_forgets_the_rolls_of_the_old_law(explain):
    explain.click("#roll-100")
    set_bars(explain, [0.5, 0.3, 0.2], [0.2, 0.2, 0.6])
    assert explain.locator("#roll-count").get_attribute("data-total") == "0"


def test_the_chains_mean_settles_on_the_formula(explain):
    set_bars(explain, [0.5, 0.3, 0.2], [0.3, 0.3, 0.4])  # acceptance rate 0.8
    explain.evaluate(
        "() => { const l = document.getElementById('chain-length'); l.value = 3; l.dispatchEvent(new Event('input')) }"
    )
    for _ in range(4):
        explain.click("#chain-many")
    count = explain.locator("#chain-count")
    assert float(count.get_attribute("data-expected")) == pytest.approx((1 - 0.8**4) / 0.2, abs=1e-9)
    # 4 000 rounds of 1..4 tokens, seeded; Hoeffding: P(|mean - expected| > .15) < 2 exp(-2 * 4000 * .15^2 / 9) < 1e-8
    assert float(count.get_attribute("data-mean")) == pytest.approx((1 - 0.8**4) / 0.2, abs=0.15)


def test_a_full_block_ends_in_a_bonus_token_and_a_rejection_in_a_residual(explain):
    set_bars(explain, [0.5, 0.3, 0.2], [0.5, 0.3, 0.2])
    explain.click("#chain-round")
    assert explain.locator("#chain-table .origin-accepted").count() == 4
    assert explain.locator("#chain-table .origin-bonus").count() == 1
    set_bars(explain, [1, 0, 0], [0, 0, 1])
    explain.click("#chain-round")
    assert explain.locator("#chain-table .origin-residual").count() == 1
    assert explain.locator("#chain-table .rejected").count() == 1
    assert explain.locator("#chain-table s").count() == 4


def test_pay_follows_the_bars_and_names_the_best_length(explain):
    set_bars(explain, [0.5, 0.3, 0.2], [0.3, 0.3, 0.4])
    say = explain.locator("#pay-say")
    assert float(say.get_attribute("data-tokens")) == pytest.approx((1 - 0.8**5) / 0.2, abs=1e-9)
    assert float(say.get_attribute("data-gain")) == pytest.approx((1 - 0.8**5) / 0.2 / 1.4, abs=1e-9)
    gains = [(1 - 0.8 ** (g + 1)) / 0.2 / (1 + 0.1 * g) for g in range(17)]
    assert int(say.get_attribute("data-best")) == int(np.argmax(gains))


@pytest.mark.parametrize("case", planted_faults(), ids=lambda case: case["name"])
def test_every_fault_switch_shows_the_files_figure_and_repaired_shows_p(explain, case):
    card = explain.locator(f"[data-fault='{case['name']}']")
    switch = card.get_by_role("switch")
    assert switch.get_attribute("aria-checked") == "true"
    law = json.loads(card.get_attribute("data-law"))
    figure = case["wrong_first_token"] or softmaxed(case["p"], case["q"])
    assert law == pytest.approx(figure, abs=1e-9)
    distance = sum(abs(a - b) for a, b in zip(figure, case["right_first_token"], strict=True)) / 2
    assert card.locator(".bad").inner_text() == f"TV {distance:.4f}"
    # the drawn bars too: right beside wrong, in pairs, their values as labels
    shown = [float(text) for text in card.locator(".chart .value").all_text_contents()]
    assert shown[0::2] == pytest.approx(case["right_first_token"], abs=5.1e-4)
    assert shown[1::2] == pytest.approx(figure, abs=5.1e-4)
    switch.press("Space")
    assert switch.get_attribute("aria-checked") == "false"
    assert json.loads(card.get_attribute("data-law")) == pytest.approx(case["p"], abs=1e-12)


def softmaxed(p, q):
    """The law the file leaves open: rejected mass Z times the softmax of (p - q)+."""
    rest = [max(0, a - b) for a, b in zip(p, q, strict=True)]
    powers = [math.exp(value) for value in rest]
    return [min(a, b) + sum(rest) * w / sum(powers) for a, b, w in zip(p, q, powers, strict=True)]


def test_the_retrospective_scheduler_shows_why_it_looks_back(explain):
    table = explain.locator("[data-fault='retrospective_schedule'] table")
    rows = [row.split("\t") for row in table.locator("tbody").inner_text().split("\n")]
    numbers = [[float(cell.split()[0]) for cell in row[1:]] for row in rows]
    # (1 + sum of survivals) times passes per second: 1 * 1.0, 1.8 * .5, 2.52 * .45 after A and 1.8 * .45 after B
    assert numbers[0] == pytest.approx([1, 0.9, 1.134], abs=1e-9)
    assert numbers[1] == pytest.approx([1, 0.9, 0.81], abs=1e-9)


def test_the_faults_can_use_the_bars_of_the_reader(explain):
    p, q = [0.4, 0.35, 0.25], [0.1, 0.5, 0.4]
    set_bars(explain, p, q)
    explain.check("#faults-own")
    law = json.loads(explain.locator("[data-fault='replacement_from_p']").get_attribute("data-law"))
    z = float(rule.reject_prob(np.array(p), np.array(q)))
    assert law == pytest.approx([min(a, b) + z * a for a, b in zip(p, q, strict=True)], abs=1e-9)


def test_the_page_is_one_file_under_500_kb():
    assert len(explain_page().encode()) < 500_000


def test_after_a_drag_everything_out_of_sight_has_caught_up(explain):
    set_bars(explain, [0.5, 0.3, 0.2], [0.5, 0.3, 0.2])
    explain.check("#faults-own")
    explain.click("#roll-100")
    explain.locator("#bars").scroll_into_view_if_needed()
    drag(explain, "q", 0, 0.9)
    settle(explain)
    p, q = assert_consistent(explain, 3)
    rate = 1 - float(rule.reject_prob(p, q))
    pay, chain = explain.locator("#pay-say"), explain.locator("#chain-count")
    for said, attribute in ((pay, "data-tokens"), (chain, "data-expected")):
        assert float(said.get_attribute(attribute)) == pytest.approx((1 - rate**5) / (1 - rate), abs=1e-9)
    assert explain.locator("#roll-count").get_attribute("data-total") == "0"
    law = json.loads(explain.locator("[data-fault='match_then_redraw']").get_attribute("data-law"))
    assert law == pytest.approx(q * p + (1 - q @ p) * p, abs=1e-9)
