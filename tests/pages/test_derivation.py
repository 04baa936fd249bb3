"""The derivation in English and Chinese: in step, complete, and numbered as the code refers to it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENGLISH = (ROOT / "docs" / "derivation.md").read_text(encoding="utf-8")
CHINESE = (ROOT / "docs" / "derivation.zh-CN.md").read_text(encoding="utf-8")
SECTIONS = ["1.", "2.", "2.1", "2.2", "2.3", "2.4", "3.", "4.", "5.", "6.", "7."]


def sections(text):
    return [heading.split()[1] for heading in re.findall(r"^##+ .*", text, re.M)]


def displayed(text):
    """Displayed formulas without the words in them."""
    return [re.sub(r"\\text\{[^}]*\}", "", formula) for formula in re.findall(r"\$\$(.+?)\$\$", text)]


def by_section(text, pattern):
    parts = re.split(r"^##+ .*", text, flags=re.M)
    return [sorted(re.findall(pattern, part)) for part in parts]


@pytest.mark.parametrize("text", [ENGLISH, CHINESE], ids=["en", "zh"])
def test_sections_are_numbered_as_the_code_cites_them(text):
    assert sections(text) == SECTIONS


def test_both_languages_display_the_same_formulas_in_the_same_order():
    assert displayed(ENGLISH) == displayed(CHINESE)
    assert len(displayed(ENGLISH)) == 13


def test_both_languages_have_the_same_tables_lists_commands_and_cross_references():
    for pattern in (r"(?m)^\|", r"(?m)^- ", r"`[^`]+`", r"§[\d.]*\d", r"arXiv:\S+\d"):
        assert by_section(ENGLISH, pattern) == by_section(CHINESE, pattern), pattern


def test_braces_and_dollars_are_balanced():
    for text in (ENGLISH, CHINESE):
        assert text.count("$") % 2 == 0
        for formula in re.findall(r"\$+([^$]+)\$+", text):
            bare = formula.replace(r"\{", "").replace(r"\}", "")
            assert bare.count("{") == bare.count("}"), formula
            assert formula.count(r"\left") == formula.count(r"\right"), formula


def test_every_section_the_package_cites_exists():
    cited = set()
    for source in (ROOT / "src").rglob("*.py"):
        for group in re.findall(
            r"derivation,? sections? ([\d., -]+(?:and [\d.]+)?)", source.read_text(encoding="utf-8")
        ):
            cited |= set(re.findall(r"\d(?:\.\d)?", group))
    assert cited >= {"3", "4", "5", "2.4"}
    assert cited <= {section.rstrip(".") for section in SECTIONS}
