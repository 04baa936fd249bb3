"""Retrieval: the datastore and the drafter against slow obvious twins, and what is refused."""

import copy
import json
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.draft import datastore as datastores
from draftproof.draft.base import DraftRequest
from draftproof.draft.chain import ChainDrafter
from draftproof.draft.datastore import FACTS, TENSORS, Datastore, count, load, save
from draftproof.draft.laws import ORDERS
from draftproof.draft.retrieval import RetrievalDrafter, make_retrieval
from draftproof.draft.shipped import folder_of, shipped
from draftproof.errors import InvalidValue, ModelFileError, ModelNotFound, VocabularyMismatch
from draftproof.proof.toys import toy_model, toy_target
from draftproof.registry import DraftContext, make_drafter
from draftproof.target.table import TableTarget
from draftproof.text import IdTokenizer

VOCAB = 4

corpora = st.lists(
    st.tuples(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20), st.integers(0, 5)), min_size=1, max_size=5
).filter(lambda texts: any(len(ids) > n for ids, n in texts))
texts = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=30)


def slow_followers(corpus: list[tuple[list[int], int]], least: int) -> dict[tuple[int, ...], int]:
    """By context: the follower seen most often, of equals the smallest; pairs and triples only if often enough."""
    seen: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    for ids, prompt in corpus:
        for at in range(prompt, len(ids)):
            for order in range(1, ORDERS + 1):
                if order <= at:
                    seen[tuple(ids[at - order : at])][ids[at]] += 1
    best = {context: min(c, key=lambda token: (-c[token], token)) for context, c in seen.items()}
    return {c: token for c, token in best.items() if len(c) == 1 or seen[c][token] >= least}


@given(corpora, st.integers(1, 3))
def test_a_datastore_keeps_the_most_frequent_follower_of_every_context(
    corpus: list[tuple[list[int], int]], least: int
) -> None:
    store, twin = count(corpus, VOCAB, "t", least=least), slow_followers(corpus, least)
    assert len(store) == len(twin)
    for context, token in twin.items():
        assert store.follower(context) == token
    contexts = [(a, b, c) for a in range(VOCAB) for b in range(VOCAB) for c in range(VOCAB)]
    for context in [*contexts, *((a, b) for a, b, _ in contexts)]:
        assert store.follower(context) == twin.get(context)


def slow_proposal(tokens: list[int], known: dict[tuple[int, ...], int], longest: int, limit: int) -> list[int]:
    """One token after another, of the best context, by search over all of the text."""
    ending, drafted = list(tokens), list[int]()
    for _ in range(limit):
        found = None
        sizes = [("own", n) for n in range(longest, 1, -1)] + [("store", n) for n in range(ORDERS, 1, -1)]
        for where, size in [*sizes, ("own", 1), ("store", 1)]:
            context = ending[-size:]
            if len(context) < size or found is not None:
                continue
            if where == "store":
                found = known.get(tuple(context))
            else:
                places = [end for end in range(size, len(tokens)) if tokens[end - size : end] == context]
                found = tokens[places[-1]] if places else None
        if found is None:
            break
        ending.append(found)
        drafted.append(found)
    return drafted


def ask(drafter: RetrievalDrafter, tokens: list[int], limit: int = 4, id: int = 0) -> list[int]:
    (proposal,) = drafter.propose([DraftRequest(id, tokens, 1, limit, None)])  # type: ignore[arg-type]
    return list(proposal.tokens)


@given(corpora, texts, st.integers(1, 6), st.integers(1, 6), st.lists(st.integers(1, 30), max_size=4))
def test_every_drafted_token_has_the_longest_context_that_is_known(
    corpus: list[tuple[list[int], int]], tokens: list[int], longest: int, limit: int, cuts: list[int]
) -> None:
    drafter = RetrievalDrafter(count(corpus, VOCAB, "t", least=1), longest)
    drafter.open(0)
    for cut in sorted(c for c in cuts if c < len(tokens)):  # taken in piece by piece, as rounds do
        drafter.commit(0, tokens[:cut])
    assert ask(drafter, tokens, limit) == slow_proposal(tokens, slow_followers(corpus, 1), longest, limit)
    assert ask(copy.deepcopy(drafter), tokens, limit) == ask(drafter, tokens, limit)


def test_strata_tell_the_source_of_the_first_token() -> None:
    drafter = RetrievalDrafter(count([([3, 2, 1, 0], 1)], 4, "t", least=1), longest=2)
    asked = [([1, 2, 3, 1, 2], 2), ([3, 2], 2 + 2), ([0, 0], 1), ([2], 2 + 1), ([0], 0)]
    for id, (tokens, stratum) in enumerate(asked):
        drafter.open(id)
        (proposal,) = drafter.propose([DraftRequest(id, tokens, 1, 3, None)])  # type: ignore[arg-type]
        assert proposal.stratum == stratum, tokens
        assert bool(proposal.tokens) == bool(stratum)


def test_in_front_of_another_drafter_it_proposes_only_what_it_is_sure_of() -> None:
    store = count([([3, 2, 1, 0, 2, 3], 1)], 4, "t", least=1)
    sure, eager = RetrievalDrafter(store, longest=2, sure=True), RetrievalDrafter(store, longest=2)
    asked = {2: [1, 2, 3, 1, 2], 2 + 3: [3, 2, 1], 2 + 2: [3, 2], 1: [0, 0], 2 + 1: [2]}
    for id, (stratum, tokens) in enumerate(asked.items()):
        sure.open(id)
        eager.open(id)
        (proposal,) = eager.propose([DraftRequest(id, tokens, 1, 3, None)])  # type: ignore[arg-type]
        assert proposal.stratum == stratum
        assert ask(sure, tokens, 3, id) == (list(proposal.tokens) if stratum in (2, 2 + 3) else [])


def test_sequences_do_not_see_each_others_tokens() -> None:
    drafter = RetrievalDrafter(count([([0, 0], 1)], VOCAB, "t"))
    for id in (0, 1):
        drafter.open(id)
    drafter.commit(0, [1, 2, 3, 1, 2])
    assert ask(drafter, [3, 1], id=1) == []
    drafter.close(0)
    drafter.close(1)


def test_the_same_texts_give_the_same_bytes_and_reading_gives_them_back(tmp_path: Path) -> None:
    corpus = [([0, 1, 2, 3, 1, 2, 0], 1), ([1, 2, 3], 0)]
    for name in ("a", "b"):
        save(count(corpus, VOCAB, "t", least=1, record={"target": "toy"}), tmp_path / name)
    for file in (TENSORS, FACTS):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    read, made = load(tmp_path / "a"), count(corpus, VOCAB, "t", least=1)
    assert read.record == {"texts": 2, "answer_tokens": 9, "least": 1, "target": "toy"}
    assert (read.vocab_size, read.tokenizer, len(read)) == (VOCAB, "t", len(made))
    for order in range(ORDERS):
        assert (read.contexts[order] == made.contexts[order]).all()
        assert (read.followers[order] == made.followers[order]).all()


def test_a_large_vocabulary_does_not_overflow() -> None:
    vocab = datastores.LARGEST_VOCAB
    store = count([([vocab - 1] * 5, 1)], vocab, "t", least=1)
    assert store.follower([vocab - 1] * 3) == vocab - 1
    assert store.follower([vocab - 2, vocab - 1, vocab - 1]) is None
    assert store.follower([vocab - 1] * 4) is None  # no such context is kept


@pytest.mark.parametrize(
    "make",
    [
        lambda: count([], VOCAB, "t"),
        lambda: count([([1, 2], 2)], VOCAB, "t"),
        lambda: count([([1, VOCAB], 1)], VOCAB, "t"),
        lambda: count([([1, -1], 1)], VOCAB, "t"),
        lambda: count([([1, 1], 1)], VOCAB, "t", least=0),
        lambda: count([([1, 1], 1)], 0, "t"),
        lambda: count([([1, 1], 1)], datastores.LARGEST_VOCAB + 1, "t"),
        lambda: RetrievalDrafter(count([([1, 1], 1)], VOCAB, "t"), 0),
    ],
)
def test_senseless_texts_and_sizes_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(InvalidValue):
        make()


def _broken(store: Datastore, what: str) -> dict[str, Any]:
    contexts, followers = [c.copy() for c in store.contexts], [f.copy() for f in store.followers]
    if what == "not ascending":
        contexts[1] = contexts[1][::-1].copy()
    elif what == "context beyond":
        contexts[0][-1] = VOCAB
    elif what == "context below":
        contexts[0][0] = -1
    elif what == "follower beyond":
        followers[2][0] = VOCAB
    elif what == "follower below":
        followers[0][0] = -1
    elif what == "lengths differ":
        followers[1] = followers[1][:-1]
    elif what == "an order too many":
        contexts, followers = [*contexts, contexts[0]], [*followers, followers[0]]
    return {"contexts": tuple(contexts), "followers": tuple(followers)}


@pytest.mark.parametrize(
    "what",
    [
        "not ascending",
        "context beyond",
        "context below",
        "follower beyond",
        "follower below",
        "lengths differ",
        "an order too many",
    ],
)
def test_a_damaged_datastore_is_refused(what: str) -> None:
    store = count([([0, 1, 2, 3, 1, 3, 0, 2], 1)], VOCAB, "t", least=1)
    replace_all = _broken(store, what)
    with pytest.raises(ModelFileError):
        Datastore(VOCAB, "t", **replace_all)


def _spoil_facts(folder: Path, **changes: Any) -> None:
    facts = json.loads((folder / FACTS).read_text())
    (folder / FACTS).write_text(json.dumps({**facts, **changes}))


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda folder: (folder / FACTS).unlink(), ModelNotFound),
        (lambda folder: (folder / TENSORS).unlink(), ModelNotFound),
        (lambda folder: (folder / FACTS).write_text("{"), ModelFileError),
        (lambda folder: (folder / FACTS).write_text("[]"), ModelFileError),
        (lambda folder: (folder / FACTS).write_text("{}"), ModelFileError),
        (lambda folder: (folder / TENSORS).write_bytes(b"\0" * 9), ModelFileError),
        (lambda folder: _spoil_facts(folder, format=2), ModelFileError),
        (lambda folder: _spoil_facts(folder, vocab_size="many"), ModelFileError),
        (lambda folder: _spoil_facts(folder, vocab_size=2), ModelFileError),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, spoil: Callable[[Path], object], error: type[Exception]) -> None:
    save(count([([0, 1, 2, 3], 1)], VOCAB, "t", least=1), tmp_path)
    load(tmp_path)
    spoil(tmp_path)
    with pytest.raises(error):
        load(tmp_path)


def test_a_datastore_of_another_tokenizer_or_vocabulary_is_refused() -> None:
    store = count([([0, 1, 2, 3], 1)], VOCAB, "t")
    store.check("t", VOCAB)
    store.check(None, VOCAB + 1)  # a model may have more rows than its tokenizer has ids
    for tokenizer, size in (("other", VOCAB), (None, VOCAB - 1)):
        with pytest.raises(VocabularyMismatch):
            store.check(tokenizer, size)


def test_the_drafter_checks_the_tokenizer_of_the_target_it_is_made_for(tmp_path: Path) -> None:
    tokenizer = IdTokenizer(VOCAB)
    for made_with in (tokenizer.fingerprint(), "other"):
        save(count([([0, 1, 2, 3], 1)], VOCAB, made_with), tmp_path)
        context = DraftContext(str(tmp_path), toy_target(VOCAB), tokenizer, lambda name: pytest.fail("no model"))
        if made_with == "other":
            with pytest.raises(VocabularyMismatch):
                make_retrieval(context)
        else:
            assert make_retrieval(context).name == "retrieval"


def test_a_model_without_a_datastore_is_told_how_to_make_one() -> None:
    assert shipped("retrieval") == ("smollm2",)
    assert folder_of("retrieval", "some/where", "unknown") == Path("some/where")
    with pytest.raises(ModelNotFound, match="train retrieval"):
        make_retrieval(DraftContext("", toy_target(VOCAB), None, lambda name: pytest.fail("no model is needed")))


class _Named(TableTarget):
    """A toy target by the name of a model, with as many ids as that has."""

    def __init__(self, name: str, vocab_size: int) -> None:
        super().__init__(toy_model(VOCAB), eos_ids=())
        self.name, self.vocab_size = name, vocab_size


def test_in_a_chain_all_but_the_last_are_sure(tmp_path: Path) -> None:
    save(count([([3, 2, 1, 0, 2, 3], 1)], VOCAB, "t", least=1), tmp_path)
    context = DraftContext("", toy_target(VOCAB), None, lambda name: pytest.fail("no model is needed"))
    spec = f"retrieval:{tmp_path}"
    chain, alone = make_drafter(f"{spec}+{spec}", context), make_drafter(spec, context)
    assert isinstance(chain, ChainDrafter)
    assert isinstance(alone, RetrievalDrafter)
    first, last = (d for d in chain.drafters if isinstance(d, RetrievalDrafter))
    for drafter in (first, last, alone):
        drafter.open(0)
    assert (ask(first, [2]), bool(ask(last, [2])), bool(ask(alone, [2]))) == ([], True, True)


def test_auto_is_retrieval_where_a_datastore_fits_and_lookup_elsewhere() -> None:
    store = load(folder_of("retrieval", "", "smollm2"))

    def made(name: str, tokenizer: IdTokenizer | None = None, vocab_size: int = store.vocab_size) -> str:
        context = DraftContext("", _Named(name, vocab_size), tokenizer, lambda name: pytest.fail("no model is needed"))
        return make_drafter("auto", context).name

    assert made("smollm2") == "retrieval"
    assert made("another") == "lookup"
    # A folder may happen to have the name of a model that something comes with.
    assert made("smollm2", IdTokenizer(VOCAB)) == "lookup"
    assert made("smollm2", None, VOCAB) == "lookup"
    with pytest.raises(InvalidValue, match="auto"):
        make_drafter("auto:FOLDER", DraftContext("", toy_target(VOCAB), None, lambda name: pytest.fail("no model")))


def test_the_shipped_datastore_is_whole_and_says_how_it_was_made() -> None:
    store = load(folder_of("retrieval", "", "smollm2"))
    assert len(store) > 100_000
    assert store.record["answer_tokens"] > 1_000_000
    assert {"target", "texts", "least", "prompts", "temperatures"} <= store.record.keys()
    assert len(store.contexts) == ORDERS
