"""The public surface: an explicit list, light to import."""

import inspect
import subprocess
import sys

import draftproof
import draftproof.proof
import draftproof.verify
from draftproof.engine import LoadArguments
from draftproof.load import load_engine

PUBLIC = {
    "Chance", "Dist", "DraftRequest", "Drafted", "Drafter", "DraftproofError", "Engine", "Event", "FinishEvent",
    "Origin", "Proposal", "Result", "RowSource", "SamplingParams", "Schedule", "Target", "TokenEvent", "Verdict",
    "Verifier", "__version__", "errors", "rule",
}  # fmt: skip


def test_the_public_names_are_exactly_these():
    assert set(draftproof.__all__) == PUBLIC
    assert set(draftproof.proof.__all__) == {"EnumeratedChance", "engine_law", "exact_distribution", "target_law"}


def test_every_public_name_exists_and_is_documented():
    for module in (draftproof, draftproof.proof, draftproof.verify):
        for name in module.__all__:
            thing = getattr(module, name)
            assert name == "__version__" or name == "Event" or thing.__doc__, name


def test_the_errors_are_one_tree_with_remedies():
    kinds = [e for e in vars(draftproof.errors).values() if isinstance(e, type) and issubclass(e, Exception)]
    assert len(kinds) > 8
    assert all(issubclass(kind, draftproof.DraftproofError) for kind in kinds)
    error = draftproof.errors.InvalidValue("x=3", "x is 1 or 2")
    assert str(error) == "x=3 - x is 1 or 2"
    assert error.remedy == "x is 1 or 2"


HEAVY = "torch transformers openvino openvino_genai llguidance matplotlib httpx"


def test_import_and_prove_work_without_any_optional_dependency():
    """A fresh interpreter in which every heavy module is missing."""
    program = (
        "import sys\n"
        f"for name in {HEAVY!r}.split(): sys.modules[name] = None\n"
        "import draftproof, draftproof.load\n"
        "sys.argv = ['draftproof', 'prove', '--only', 'token x lookup x fixed: vocabulary 2', '--jobs', '1']\n"
        "from draftproof.cli.main import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "proved" in done.stdout


def test_engine_load_names_the_very_keywords_of_load_engine() -> None:
    keywords = [name for name, p in inspect.signature(load_engine).parameters.items() if p.kind is p.KEYWORD_ONLY]
    assert list(LoadArguments.__annotations__) == keywords
