"""Exact distributions of programs that draw from a `Chance`: every branch is walked, probabilities multiplied.

What it is for: proving that a verifier, or a whole engine, emits exactly the target's law. A user proves their own:

    law = exact_distribution(lambda chance: my_verifier(p, q, chance))

Guarantees: probabilities are Fractions when the program's are, floats otherwise; branches of probability zero are
not visited; asking one address twice for an independent draw raises StreamReuse, so that independence is checked
and not assumed. What it does not do: look inside floats; a float program is exact up to rounding.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from draftproof.chance import Address, Purpose, as_dist, check_prob
from draftproof.dist import Prob
from draftproof.errors import DraftproofError, StreamReuse
from draftproof.proof.cones import Region, everywhere, race_outcomes, volume

T = TypeVar("T")
S = TypeVar("S")
Place = tuple[int, Address]
"""A request and an address within it."""

MAX_RACE = 6  # tokens; the cones of a race grow too fast beyond


@dataclass
class Knowledge:
    """What one path through the program has revealed so far about streams that are asked more than once.

    used: addresses that gave an independent draw. regions: what races have revealed about shared exponentials.
    """

    used: set[Place] = field(default_factory=set)
    regions: dict[Place, Region] = field(default_factory=dict)

    def copy(self) -> Knowledge:
        """An independent copy; regions are immutable."""
        return Knowledge(set(self.used), dict(self.regions))


class EnumeratedChance:
    """One path: follows a script of branch numbers, then takes the first branch and notes the alternatives."""

    def __init__(self, script: tuple[int, ...] = (), knowledge: Knowledge | None = None) -> None:
        self.path = _Path(script, knowledge or Knowledge())
        self._place: Place | None = None

    def at(self, address: Address) -> EnumeratedChance:
        return self._bound((self._place[0] if self._place else 0, address))

    def of(self, request: int, seed: int) -> EnumeratedChance:
        """As a `ChanceSource`: every request has streams of its own, whatever its seed."""
        return self._bound((request, Address()))

    def forget(self, request: int) -> None:
        """As a `ChanceSource`: the request has ended; what was revealed of its exponentials no longer matters."""
        regions = self.path.knowledge.regions
        for place in [place for place in regions if place[0] == request]:
            del regions[place]

    def decided(self, request: int, length: int) -> None:
        """Positions below `length` are committed: what races revealed about them cannot matter any more.

        Forgetting it lets more states be equal. A race on such a position later would be an error, and is one.
        """
        knowledge = self.path.knowledge
        for place in [place for place in knowledge.regions if place[0] == request and place[1].position < length]:
            del knowledge.regions[place]
            knowledge.used.add(place)

    def flip(self, prob: Prob) -> bool:
        check_prob(prob)
        if prob in (0, 1):
            return prob == 1
        self._use_once()
        return bool(self.path.choose([(1, prob), (0, 1 - prob)]))

    def draw(self, probs: Any) -> int:
        dist = as_dist(probs)
        if dist.token is not None:
            return dist.token
        self._use_once()
        return self.path.choose([(dist.token_at(i), w) for i, w in enumerate(dist.probs.tolist()) if w > 0])

    def race(self, probs: Any) -> int:
        dist = as_dist(probs)
        if dist.token is not None:
            return dist.token
        if dist.size > MAX_RACE:
            raise DraftproofError(f"a race of {dist.size} tokens", f"enumerate coupled draws on at most {MAX_RACE}")
        place = self._place or (0, Address(Purpose.COUPLING))
        if place in self.path.knowledge.used:
            raise StreamReuse(f"request {place[0]}: {place[1]} was raced after it was decided", "positions only grow")
        known = self.path.knowledge.regions.get(place) or everywhere(dist.size)
        before = volume(known)
        outcomes = race_outcomes(known, dist)
        token = self.path.choose([(token, joint / before) for token, _, joint in outcomes])
        self.path.knowledge.regions[place] = next(region for t, region, _ in outcomes if t == token)
        return token

    def _bound(self, place: Place) -> EnumeratedChance:
        bound = EnumeratedChance.__new__(EnumeratedChance)
        bound.path = self.path
        bound._place = place
        return bound

    def _use_once(self) -> None:
        if self._place is None:
            return  # unaddressed: a plain program, each call is a fresh draw
        if self._place in self.path.knowledge.used:
            request, address = self._place
            raise StreamReuse(
                f"request {request}: the stream {address} was drawn from twice",
                "independent decisions need addresses of their own",
            )
        self.path.knowledge.used.add(self._place)


class _Path:
    """The choices of one run of the program."""

    __slots__ = ("_script", "knowledge", "options", "probability", "taken")

    def __init__(self, script: tuple[int, ...], knowledge: Knowledge) -> None:
        self._script = script
        self.knowledge = knowledge
        self.taken: list[int] = []
        self.options: list[int] = []
        self.probability: Prob = Fraction(1)

    def choose(self, branches: list[tuple[int, Prob]]) -> int:
        depth = len(self.taken)
        branch = self._script[depth] if depth < len(self._script) else 0
        outcome, prob = branches[branch]
        self.taken.append(branch)
        self.options.append(len(branches))
        self.probability = self.probability * prob
        return outcome


def every_branch(
    program: Callable[[EnumeratedChance], T], knowledge: Knowledge | None = None
) -> Iterator[tuple[T, Prob, Knowledge]]:
    """Run `program` once per branch: (what it returned, the branch's probability, what it revealed)."""
    waiting: list[tuple[int, ...]] = [()]
    while waiting:
        script = waiting.pop()
        chance = EnumeratedChance(script, knowledge.copy() if knowledge else None)
        outcome = program(chance)
        path = chance.path
        yield outcome, path.probability, path.knowledge
        for depth in range(len(script), len(path.taken)):
            waiting.extend((*path.taken[:depth], other) for other in range(1, path.options[depth]))


def exact_distribution(program: Callable[[Any], Hashable]) -> dict[Any, Prob]:
    """The law of `program(chance)`, outcome by outcome.

    The program may be called many times and must depend on nothing but its chance; its outcome must be hashable.
    """
    law: dict[Any, Prob] = defaultdict(Fraction)
    for outcome, probability, _ in every_branch(program):
        law[outcome] += probability
    return dict(law)


class Process(Protocol, Generic[S]):
    """A program in steps, whose equal states may be merged: what makes many rounds enumerable."""

    def start(self) -> S:
        """The first state."""
        ...

    def step(self, state: S, chance: EnumeratedChance) -> S:
        """A new state after one step; `state` itself must stay as it is."""
        ...

    def outcome(self, state: S) -> Hashable | None:
        """The result if the state is final, None otherwise."""
        ...

    def key(self, state: S) -> Hashable:
        """Equal for states with equal futures; must name everything the future depends on."""
        ...


def exact_law(process: Process[S]) -> dict[Any, Prob]:
    """The law of a process's outcome, states merged between steps by their key and by what races revealed.

    Addresses used on any merged path count as used on all: the future is the same for all of them, so an address
    that comes again is a reuse for one of them.
    """
    law: dict[Any, Prob] = defaultdict(Fraction)
    frontier: dict[Hashable, tuple[S, Prob, Knowledge]] = {None: (process.start(), Fraction(1), Knowledge())}
    while frontier:
        following: dict[Hashable, tuple[S, Prob, Knowledge]] = {}
        for state, weight, knowledge in frontier.values():
            branches = every_branch(partial(process.step, state), knowledge)
            for after, probability, learnt in branches:
                mass = weight * probability
                result = process.outcome(after)
                if result is not None:
                    law[result] += mass
                    continue
                key = (process.key(after), frozenset(learnt.regions.items()))
                if key in following:
                    first, so_far, known = following[key]
                    known.used |= learnt.used
                    following[key] = (first, so_far + mass, known)
                else:
                    following[key] = (after, mass, learnt)
        frontier = following
    return dict(law)
