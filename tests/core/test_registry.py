"""Names to parts: our own, and those of other packages by entry point."""

from importlib.metadata import EntryPoint

import pytest

from draftproof import registry
from draftproof.draft.chain import ChainDrafter
from draftproof.draft.lookup import LookupDrafter
from draftproof.draft.none import NoDrafter
from draftproof.errors import InvalidValue, UnknownName, VocabularyMismatch
from draftproof.load import dspark_argument
from draftproof.proof.toys import toy_target
from draftproof.text import IdTokenizer
from draftproof.verify.match import MatchVerifier


class TheirDrafter(NoDrafter):
    name = "theirs"

    def __init__(self, context):
        self.context = context


class TheirVerifier(MatchVerifier):
    name = "theirs"


@pytest.fixture
def installed(monkeypatch):
    """Another package with a drafter and a verifier, as its metadata would announce them."""
    here = {
        registry.DRAFTER_GROUP: [EntryPoint("theirs", f"{__name__}:TheirDrafter", registry.DRAFTER_GROUP)],
        registry.VERIFIER_GROUP: [EntryPoint("theirs", f"{__name__}:TheirVerifier", registry.VERIFIER_GROUP)],
    }
    monkeypatch.setattr(registry, "entry_points", lambda group: here[group])
    monkeypatch.setattr(EntryPoint, "load", lambda self: globals()[self.value.partition(":")[2]])


def context(target=None, load_model=None):
    return registry.DraftContext("", target or toy_target(3), IdTokenizer(3), load_model or (lambda name: 1 / 0))


def test_a_drafter_of_another_package_is_found_and_gets_its_context(installed):
    registry.check_drafter("theirs:x")
    drafter = registry.make_drafter("theirs:x", context())
    assert isinstance(drafter, TheirDrafter)
    assert drafter.context.argument == "x"
    assert drafter.context.target.vocab_size == 3


def test_a_verifier_of_another_package_is_found(installed):
    assert isinstance(registry.make_verifier("theirs"), TheirVerifier)
    assert "theirs" in registry.verifier_names()


def test_without_the_package_the_name_is_unknown_and_the_known_ones_are_listed():
    with pytest.raises(UnknownName, match="known: auto, dspark, lookup, model, none, retrieval, suffix"):
        registry.make_drafter("theirs", context())


def test_several_drafters_keep_their_order():
    drafter = registry.make_drafter("lookup + suffix", context())
    assert isinstance(drafter, ChainDrafter)
    assert drafter.name == "lookup+suffix"


def test_only_in_front_of_another_does_lookup_leave_short_matches_to_that_one() -> None:
    chain = registry.make_drafter("lookup+lookup", context())
    assert isinstance(chain, ChainDrafter)
    assert [d.shortest for d in chain.drafters if isinstance(d, LookupDrafter)] == [2, 1]
    assert registry.make_drafter("lookup", context()).shortest == 1


def test_a_draft_model_with_another_vocabulary_or_tokenizer_is_refused():
    with pytest.raises(VocabularyMismatch, match="4 tokens"):
        registry.make_drafter("model:x", context(load_model=lambda name: (toy_target(4), IdTokenizer(4))))

    class Other(IdTokenizer):
        def fingerprint(self):
            return "other"

    with pytest.raises(VocabularyMismatch, match="different tokenizers"):
        registry.make_drafter("model:x", context(load_model=lambda name: (toy_target(3), Other(3))))


def test_an_argument_that_is_not_wanted_is_refused():
    with pytest.raises(InvalidValue, match="takes no argument"):
        registry.make_drafter("lookup:9", context())


def test_a_drafter_reads_hidden_states_by_its_name_and_not_by_a_word_in_it() -> None:
    found = {draft: dspark_argument(draft) for draft in ("dspark", "lookup + dspark:DIR", "model:my-dspark", "lookup")}
    assert found == {"dspark": "", "lookup + dspark:DIR": "DIR", "model:my-dspark": None, "lookup": None}


def test_schedules_that_choose_draft_no_more_than_fits_a_narrow_pass_and_fixed_ones_what_was_asked() -> None:
    target = toy_target(3)
    for name in ("adaptive", "prefix", "prefix-budget", "fixed"):
        assert registry.longest_draft(name, 8, target) == 8
    target.narrow = 5  # type: ignore[attr-defined]
    for name in ("adaptive", "prefix", "prefix-budget"):
        assert registry.longest_draft(name, 8, target) == 4
        assert registry.longest_draft(name, 3, target) == 3
    assert registry.longest_draft("fixed", 8, target) == 8
