"""Laws of a datastore: counted against a slow twin, drawn from as they are said to be, and refused where broken."""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import Sequence as Seq
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.dist import Dist
from draftproof.draft.base import DraftRequest, Proposal
from draftproof.draft.datastore import Datastore, count, load, save
from draftproof.draft.laws import ORDERS, Laws, count_laws
from draftproof.draft.retrieval import FOUND, OWN, RetrievalDrafter
from draftproof.engine import Engine
from draftproof.errors import InvalidValue, ModelFileError
from draftproof.proof.toys import toy_target
from draftproof.registry import DraftContext, make_drafter
from draftproof.sampling.constraint import TokenAutomaton
from draftproof.sampling.params import SamplingParams
from draftproof.schedule.fixed import FixedSchedule
from draftproof.verify import BlockVerifier, CoupledVerifier, MatchVerifier, TokenVerifier, Verifier

VOCAB = 5

corpora = st.lists(
    st.tuples(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40), st.integers(0, 3)), min_size=1, max_size=4
).filter(lambda texts: any(len(ids) > n for ids, n in texts))


def largest(law: dict[int, Fraction], most: int) -> dict[int, Fraction]:
    kept = sorted(law, key=lambda token: (-law[token], token))[:most]
    return {token: law[token] / sum(law[each] for each in kept) for token in kept}


def slow_law(corpus: list[tuple[list[int], int]], context: tuple[int, ...], least: int, most: int) -> Any:
    """Witten and Bell's mixture, from its definition and in Fractions; None for a context that has none."""
    seen: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    for ids, prompt in corpus:
        for at in range(prompt, len(ids)):
            for order in range(min(at, ORDERS) + 1):
                seen[tuple(ids[at - order : at])][ids[at]] += 1
    counts, total = seen[context], seen[context].total()
    if not context:
        return largest({token: Fraction(n, total) for token, n in counts.items()}, 2 * most)
    if total < (least if len(context) > 1 else 1):
        return None
    shorter = context[1:]
    while (lower := slow_law(corpus, shorter, least, most)) is None:
        shorter = shorter[1:]
    own = Fraction(total, total + len(counts))
    mixed = {t: own * Fraction(counts[t], total) + (1 - own) * lower.get(t, 0) for t in {*counts, *lower}}
    return largest(mixed, most)


@given(corpora, st.integers(1, 3))
def test_laws_are_witten_and_bells_mixture_cut_to_the_likeliest_tokens(
    corpus: list[tuple[list[int], int]], least: int
) -> None:
    most = VOCAB  # with fewer, rounding may choose between two that are equal
    laws = count_laws(corpus, VOCAB, least=least, most=most)
    for context in {tuple(ids[at - n : at]) for ids, _ in corpus for at in range(len(ids)) for n in range(min(at, 4))}:
        known = context
        while (want := slow_law(corpus, known, least, most)) is None:
            known = known[1:]
        order, ids, shares = laws.after(context)
        assert order == len(known)
        exact = {token: float(255 * share / max(want.values())) for token, share in want.items()}
        assert ids == sorted(ids)
        assert {token for token, share in exact.items() if share > 0.5 + 1e-9} <= {*ids}
        assert {*ids} <= {token for token, share in exact.items() if share > 0.5 - 1e-9}  # a half may go either way
        for token, share in zip(ids, shares, strict=True):
            assert share == pytest.approx(exact[token], abs=0.5 + 1e-9)


def test_only_the_likeliest_are_kept_and_of_equals_those_of_smaller_ids() -> None:
    laws = count_laws([([0, 3, 0, 2, 0, 1, 0, 4, 0, 4], 1)], VOCAB, least=1, most=1)
    assert laws.after([0])[:2] == (1, [4])
    assert laws.after([1])[1] == [0]
    assert laws.after([]) == (0, [0, 4], [255, 128])
    equals = count_laws([([0, 3, 4, 2], 1)], VOCAB, most=1)
    assert equals.after([]) == (0, [2, 3], [255, 255])


SAMPLE = [([0, 1, 2, 3, 4, 0, 1, 2, 4, 0, 1, 3, 3], 1), ([2, 2, 1, 0, 1, 2, 3], 0)]


def store(*, laws: bool = True) -> Datastore:
    made = count(SAMPLE, VOCAB, "t", least=1)
    return replace(made, laws=count_laws(SAMPLE, VOCAB, least=2)) if laws else made


def test_writing_and_reading_gives_the_same_laws_and_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save(store(), tmp_path / name)
    assert (tmp_path / "a" / "datastore.safetensors").read_bytes() == (
        tmp_path / "b" / "datastore.safetensors"
    ).read_bytes()
    read, made = load(tmp_path / "a").laws, store().laws
    assert read is not None
    assert made is not None
    for context in ([], [1], [0, 1], [2, 0, 1], [3, 3, 3], [4, 4]):
        assert read.after(context) == made.after(context)
    assert len(read) == len(made) == len(made.begins) - 1
    wide = count_laws([([70_000, 3, 70_000, 5], 1)], 70_001)  # ids that two bytes do not hold
    assert (
        Laws.of(wide.tensors(), 70_001).after([70_000]) == wide.after([70_000]) == (1, [3, 5, 70_000], [255, 255, 102])
    )
    save(store(laws=False), tmp_path / "none")
    assert load(tmp_path / "none").laws is None


@pytest.mark.parametrize(
    "broken",
    [
        {"contexts": lambda x: (x[0][:0], *x[1:])},
        {"contexts": lambda x: (x[0] + 1, *x[1:])},
        {"contexts": lambda x: (x[0], x[1][::-1], *x[2:])},
        {"contexts": lambda x: (x[0], x[1] + VOCAB, *x[2:])},
        {"contexts": lambda x: x[:-1]},
        {"begins": lambda x: x[:-1]},
        {"begins": lambda x: x + 1},
        {"begins": lambda x: np.r_[x[:-1], x[-1] + 1]},
        {"begins": lambda x: np.r_[x[0], x[2], x[1], x[3:]]},
        {"begins": lambda x: np.r_[x[:2], x[1], x[3:]]},
        {"ids": lambda x: x[::-1].copy()},
        {"ids": lambda x: x - 1},
        {"ids": lambda x: x + 1},
        {"shares": lambda x: x * 0},
        {"shares": lambda x: x[:-1]},
    ],
)
def test_laws_that_are_not_whole_are_refused(broken: dict[str, Any]) -> None:
    laws = store().laws
    assert laws is not None
    ((name, change),) = broken.items()
    with pytest.raises(ModelFileError):
        replace(laws, **{name: change(getattr(laws, name))})


def test_laws_of_another_vocabulary_texts_without_answers_and_counts_below_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="laws of"):
        replace(count(SAMPLE, VOCAB + 1, "t"), laws=store().laws)
    with pytest.raises(InvalidValue, match="without an answer"):
        count_laws([([1, 2], 2)], VOCAB)
    for wrong in ({"least": 0}, {"most": 0}, {"most": 128}):
        with pytest.raises(InvalidValue, match="at least 1"):
            count_laws(SAMPLE, VOCAB, **wrong)
    save(store(), tmp_path)
    from safetensors.numpy import load_file, save_file

    tensors = load_file(tmp_path / "datastore.safetensors")
    del tensors["laws.shares"]
    save_file(tensors, tmp_path / "datastore.safetensors")
    with pytest.raises(ModelFileError, match=r"laws\.shares"):
        load(tmp_path)


class Drawing:
    """A sampler that notes each q and draws the token that a list says."""

    def __init__(self, temperature: float, tokens: list[int], *, draws: bool = True) -> None:
        self.temperature, self.tokens, self.draws = temperature, tokens, draws
        self.seen: list[dict[int, float]] = []

    def distribution(self, rows: Any, row: int, drafted: Any, temperature: Any = None) -> Dist:
        raise AssertionError("there is no draft model")

    def draw(self, q: Dist, index: int) -> int:
        assert index == len(self.seen)
        self.seen.append({q.token_at(i): float(q.prob(q.token_at(i))) for i in range(len(q.weights))})
        return self.tokens[index]


def ask(text: list[int], sampler: Drawing, *, longest: int = 5, **options: Any) -> Proposal:
    drafter = copy.deepcopy(RetrievalDrafter(store(), longest, **options))
    drafter.open(0)
    (proposal,) = drafter.propose([DraftRequest(0, text, 1, len(sampler.tokens), sampler)])
    return proposal


def slow_q(text: list[int], drawn: list[int], longest: int, temperature: float) -> tuple[dict[int, float], int, int]:
    """The law of the longest context that is known, mixed with what the text has after its own longest ending."""
    laws, ending = store().laws, [*text, *drawn]
    assert laws is not None
    order, ids, shares = laws.after(ending[-ORDERS:])
    q = {token: share / sum(shares) for token, share in zip(ids, shares, strict=True)}

    def give(token: int, percent: int) -> None:
        for each in q:
            q[each] *= 1 - percent / 100
        q[token] = q.get(token, 0) + percent / 100

    size = 0
    for size in range(min(longest, len(ending)), -1, -1):
        places = [at for at in range(size, len(text)) if text[at - size : at] == ending[len(ending) - size :]]
        if size and places:
            break
    if size < 2:
        found = [(n, store().follower(ending[-n:])) for n in (3, 2) if n <= len(ending)]
        known = [(n, token) for n, token in found if token is not None]
        if known:
            give(known[0][1], FOUND[known[0][0]])
    if size:
        give(text[places[-1]], OWN[order > 1][min(size, 5)])
    tempered = {token: share ** (1 / temperature) for token, share in q.items()}
    return {token: each / sum(tempered.values()) for token, each in tempered.items()}, size, order


@given(
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=14),
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=5),
    st.integers(1, 6),
    st.sampled_from([0.5, 1.0, 1.7]),
)
def test_a_drawn_tokens_q_is_the_law_of_its_context_mixed_with_the_texts_own(
    text: list[int], tokens: list[int], longest: int, temperature: float
) -> None:
    sampler = Drawing(temperature, tokens)
    proposal = ask(text, sampler, longest=longest)
    assert list(proposal.tokens) == tokens  # as many as were asked for, whatever they are
    assert proposal.q is not None
    for k, (seen, q) in enumerate(zip(sampler.seen, proposal.q, strict=True)):
        want, size, order = slow_q(text, tokens[:k], longest, temperature)
        assert seen == pytest.approx(want, rel=1e-12)
        assert q is not None
        assert {i: x for i, x in enumerate(q.dense().tolist()) if x} == pytest.approx(seen, rel=1e-12)
        if not k:
            base = longest + ORDERS
            expected = size if size > 1 else longest + order if order > 1 else 1 if size else longest + 1
            assert proposal.stratum == base + expected
    if temperature == 1:
        exact = Drawing(1, tokens)
        ask(text, exact, longest=longest, exact=True)
        assert exact.seen == [pytest.approx(seen, rel=1e-12) for seen in sampler.seen]


def test_the_longer_the_texts_own_match_the_more_of_the_law_it_gets() -> None:
    shares = []
    for size in range(1, 7):
        ending = [0, 2, 4, 3, 0, 2][6 - size :]
        text = [*ending, 1, 1, 1, *ending]
        sampler = Drawing(1.0, [0])
        ask(text, sampler)
        want, found, _ = slow_q(text, [], 5, 1.0)
        assert found == min(size, 5)
        assert sampler.seen[0] == pytest.approx(want)
        shares.append(sampler.seen[0][1])
        ending = [3, 2, 2, 4, 0, 1][6 - size :]  # after which the datastore has laws of two and three tokens
        text = [*ending, 3, 3, 3, *ending]
        sampler = Drawing(1.0, [0])
        ask(text, sampler)
        want, found, order = slow_q(text, [], 5, 1.0)
        assert (found, order > 1) == (min(size, 5), size > 1)
        assert sampler.seen[0] == pytest.approx(want)
    assert shares[0] < shares[1] < shares[2] <= shares[3] <= shares[4] == shares[5]
    assert shares[4] >= 0.9


def test_where_drawing_does_not_pay_drafts_are_the_point_masses_that_they_are_without_laws() -> None:
    for text in ([0, 1], [2, 0, 1], [3, 3], [4]):
        sampler = Drawing(1, [0] * 4, draws=False)
        without = RetrievalDrafter(store(laws=False))
        without.open(0)
        (want,) = without.propose([DraftRequest(0, text, 1, 4, sampler)])
        assert ask(text, sampler) == want
        assert want.q is None
        (drawn,) = without.propose([DraftRequest(0, text, 1, 4, Drawing(1, [0] * 4))])
        assert drawn == want  # nor can there be others


@pytest.mark.parametrize(
    ("verifier", "asked", "drawn"),
    [
        (TokenVerifier(), {}, True),
        (BlockVerifier(), {"temperature": 0.5}, True),
        (TokenVerifier(), {"top_k": 2, "banned_ids": [1]}, True),
        (MatchVerifier(), {}, False),
        (CoupledVerifier(), {}, False),
        (TokenVerifier(), {"temperature": 0}, False),
        (TokenVerifier(), {"allowed_ids": [0, 1, 2]}, False),
        (TokenVerifier(), {"grammar": TokenAutomaton({0: {0: 0, 1: 0, 2: 0}}, {0})}, False),
    ],
)
def test_tokens_are_drawn_where_that_is_accepted_more_often(verifier: Verifier, asked: Any, drawn: bool) -> None:
    drafter = RetrievalDrafter(store())
    engine = Engine(toy_target(VOCAB), drafter=drafter, verifier=verifier, schedule=FixedSchedule(2))
    seen: list[Proposal] = []
    propose = drafter.propose

    def noted(requests: Seq[DraftRequest]) -> list[Proposal]:
        answers = propose(requests)
        seen.extend(answers)
        return answers

    drafter.propose = noted  # type: ignore[method-assign]
    params = SamplingParams(max_tokens=8, ignore_eos="grammar" not in asked, **asked)
    for seed in range(5):
        engine.generate([0, 1, 0], replace(params, seed=seed))
    assert any(p.tokens for p in seen)
    assert all((p.q is not None) == drawn for p in seen if p.tokens)


def test_a_target_with_more_ids_than_the_datastore_gets_laws_over_its_own(tmp_path: Path) -> None:
    save(store(), tmp_path)
    target = toy_target(VOCAB + 2)
    drafter = make_drafter(
        f"retrieval:{tmp_path}", DraftContext("", target, None, load_model=lambda name: (target, None))
    )
    engine = Engine(target, drafter=drafter, schedule=FixedSchedule(3))
    result = engine.generate([0, 1, 0, VOCAB + 1], SamplingParams(max_tokens=30, seed=1, ignore_eos=True))
    assert result.speculation.drafted > 0
    (q,) = ask([VOCAB, VOCAB + 1, 1, VOCAB], Drawing(1.0, [VOCAB + 1]), vocab_size=VOCAB + 2).q or ()
    assert q is not None
    assert q.size == VOCAB + 2
    assert q.prob(VOCAB + 1) == pytest.approx(OWN[0][1] / 100)  # the text's own may be an id that the store has not


def test_in_front_of_another_drafter_only_what_it_is_sure_of_is_drawn() -> None:
    asked = {(2, 0, 1, 3, 0, 1): True, (4, 0, 1): True, (4, 3): False, (4, 3, 4): False}
    for text, sure in asked.items():
        sampler = Drawing(1.0, [0, 0])
        proposal = ask(list(text), sampler, sure=True)
        assert bool(proposal.tokens) == bool(sampler.seen) == sure, text
        assert len(ask(list(text), Drawing(1.0, [0, 0])).tokens) == 2
