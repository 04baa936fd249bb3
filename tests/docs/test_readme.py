"""What the README says runs, as it stands there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"(<!-- test: model -->\n)?```python\n(.*?)```", README, flags=re.S)


@pytest.mark.parametrize("code", [code for model, code in BLOCKS if not model])
def test_python_of_the_readme_runs(code):
    exec(compile(code, "README.md", "exec"), {})


@pytest.mark.model
@pytest.mark.parametrize("code", [code for model, code in BLOCKS if model])
def test_python_of_the_readme_runs_on_the_default_model(code, capsys):
    exec(compile(code, "README.md", "exec"), {})
    assert len(capsys.readouterr().out) > 100


def test_the_chinese_readme_is_in_step_with_the_english_one():
    """The same command and code blocks, transcripts, figures, and commands in the table."""
    chinese = (ROOT / "README.zh-CN.md").read_text(encoding="utf-8")
    for pattern in (r"```[a-z]*\n.*?```", r"\| `[^|]*` \|$", r"<!-- [a-z]+:begin -->.*?<!-- [a-z]+:end -->"):
        flags = re.S if "begin" in pattern or pattern.startswith("```") else re.M
        assert re.findall(pattern, chinese, flags) == re.findall(pattern, README, flags)


def test_the_derivation_has_the_same_formulas_in_both_languages():
    pages = [(ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("derivation.md", "derivation.zh-CN.md")]
    displayed = [re.findall(r"\$\$.*?\$\$", page, flags=re.S) for page in pages]
    assert len(displayed[0]) == len(displayed[1]) > 8


def test_the_readme_has_its_blocks():
    assert len(BLOCKS) >= 4


def test_links_of_the_docs_lead_somewhere():
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_files_name_no_machine_path_and_no_registry_host():
    """The project speaks of itself alone."""
    # Written so that this file does not hold them itself.
    parts = ["/wo" + "rk/", "pypi" + r"\.org", r"files\.python" + "hosted", r"registry\.npm" + "js"]
    pattern = re.compile("|".join(parts))
    places = [p for name in ("src", "tests", "docs", "evidence", "benchmarks", ".ci") for p in (ROOT / name).rglob("*")]
    files = [p for p in [*places, *ROOT.glob("*.*"), ROOT / "Makefile"] if p.suffix in KINDS or p.name == "Makefile"]
    assert len(files) > 50
    for file in files:
        if "node_modules" not in file.parts:
            assert not pattern.search(file.read_text(encoding="utf-8")), file


KINDS = {".py", ".md", ".toml", ".json", ".jsonl", ".js", ".html", ".css", ".txt"}
