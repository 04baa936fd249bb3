"""Where every random decision of the engine comes from, in production.

What it is for: the engine, the drafters and the verifiers ask a `Chance` and nothing else for randomness. Here
are the protocol and the seeded source; the source that walks every branch is `draftproof.proof.enumeration`,
so that the engine that ships is the engine that is proved.

    chance.flip(prob)   -> bool   True with probability prob
    chance.draw(probs)  -> int    index with probability probs[index]
    chance.race(probs)  -> int    the same law, but through noise shared by everyone at this address:
                                  argmin E_x / probs[x], E_x exponential (algorithms.md, section 9;
                                  Daliri et al., arXiv:2408.07978)

Guarantees: streams are keyed by (seed, sample, purpose, position, epoch) and nothing else, so a draw depends
neither on the batch nor on what ran before; two addresses never share a random number. Noise is float64 with
its full tail. A probability of exactly 0 or 1 uses no randomness. What it does not do: check that an address
is used once; the enumerated source does (StreamReuse).
"""

from __future__ import annotations

import enum
import secrets
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from draftproof.dist import BLOCK, Dist, Prob, block_sums, exact_or_float
from draftproof.errors import InvalidValue


class Purpose(enum.IntEnum):
    """What a random number is for; purposes never share a stream."""

    OTHER = 0
    PROPOSAL = 1  # the drafter's own draw
    ACCEPT = 2  # the uniform compared with alpha
    RESIDUAL = 3  # what replaces a rejected token
    BONUS = 4  # the token after full acceptance, and the plain token when nothing was drafted
    MATCH = 5  # the target's draw of sample-and-match
    COUPLING = 6  # the exponentials that drafter and target share
    SCHEDULE = 7  # private randomness of a schedule


@dataclass(frozen=True, slots=True)
class Address:
    """The key of one stream.

    position: absolute index in the sequence of the token being decided. epoch: length of the sequence when the
    round began, so that a position drafted again in a later round draws afresh; 0 for streams that must not
    depend on rounds (COUPLING, MATCH). sample: which of the n answers to one prompt.
    """

    purpose: Purpose = Purpose.OTHER
    position: int = 0
    epoch: int = 0
    sample: int = 0


class Chance(Protocol):
    """A source of random decisions, bound to one address."""

    def at(self, address: Address) -> Chance:
        """The same source, bound to another address."""
        ...

    def flip(self, prob: Prob) -> bool:
        """True with probability `prob`, a float or Fraction in [0, 1]."""
        ...

    def draw(self, probs: Any) -> int:
        """An index with probability probs[index]; any sequence, array or `Dist` (whose id is returned)."""
        ...

    def race(self, probs: Any) -> int:
        """As `draw`, through the noise shared at this address (the coupled draw)."""
        ...


def check_prob(prob: Prob) -> None:
    """Raise InvalidValue unless 0 <= prob <= 1 (NaN included)."""
    if not 0 <= prob <= 1:
        raise InvalidValue(f"flip with probability {prob}", "a probability is in [0, 1]")


def as_dist(probs: Any) -> Dist:
    """Probabilities as a `Dist`, unchecked when they already are one."""
    return probs if isinstance(probs, Dist) else Dist.checked(probs, "probs")


ROUND_FREE = frozenset({Purpose.COUPLING, Purpose.MATCH})


@dataclass(frozen=True, slots=True)
class Streams:
    """The addresses of one sequence in one round: the only place where they are made.

    Drafters and verifiers get this and never build an address themselves, so that proposal, acceptance and
    residual cannot share a stream by mistake.
    """

    chance: Chance
    epoch: int
    sample: int = 0

    def at(self, purpose: Purpose, position: int) -> Chance:
        """The source for deciding the token at an absolute position, for one purpose."""
        epoch = 0 if purpose in ROUND_FREE else self.epoch
        return self.chance.at(Address(purpose, position, epoch, self.sample))


class ChanceSource(Protocol):
    """Hands out one `Chance` per request."""

    def of(self, request: int, seed: int) -> Chance:
        """The source of a request; the same one whenever it is asked."""
        ...

    def forget(self, request: int) -> None:
        """The request has ended."""
        ...


class SeededSource:
    """Production: each request draws from the streams of its own seed."""

    def __init__(self) -> None:
        self._live: dict[int, SeededChance] = {}

    def of(self, request: int, seed: int) -> Chance:
        if request not in self._live:
            self._live[request] = SeededChance(seed)
        return self._live[request]

    def forget(self, request: int) -> None:
        self._live.pop(request, None)


def fresh_seed() -> int:
    """A seed from the operating system, for requests that name none; it is reported with the result."""
    return secrets.randbits(63)


class SeededChance:
    """The production source: counter-based streams (Philox 4x64), one for each address.

    An address is nearly always asked once, for one uniform; asking again continues its stream.
    """

    __slots__ = ("_address", "_asked", "_exponentials", "_firsts", "_generator", "seed")

    def __init__(self, seed: int, address: Address | None = None) -> None:
        if not 0 <= seed < 2**64:
            raise InvalidValue(f"seed={seed}", "a seed is in 0..2**64-1")
        self.seed = seed
        self._address = address or Address()
        self._asked = False
        self._generator: np.random.Generator | None = None
        # Shared by all addresses of a seed. The noise of recent coupling positions: drafter and target ask for the
        # same one within a round.
        self._exponentials: dict[Address, npt.NDArray[np.float64]] = {}
        self._firsts = _FirstUniforms(seed)

    def at(self, address: Address) -> SeededChance:
        bound = object.__new__(SeededChance)
        bound.seed, bound._address = self.seed, address
        bound._asked, bound._generator = False, None
        bound._exponentials, bound._firsts = self._exponentials, self._firsts
        return bound

    def flip(self, prob: Prob) -> bool:
        check_prob(prob)
        if prob in (0, 1):
            return prob == 1
        return self._uniform() < prob  # u in [0, 1), strict: rule 2 of the design

    def draw(self, probs: Any) -> int:
        dist = as_dist(probs)
        if dist.token is not None:
            return dist.token
        return dist.token_at(pick(_floats(dist.weights), self._uniform(), dist.sums))

    def race(self, probs: Any) -> int:
        dist = as_dist(probs)
        if dist.token is not None:
            return dist.token
        noise = self.exponentials(dist.size)
        if dist.ids is not None:
            noise = noise[dist.ids]
        weights = _floats(dist.probs)
        # E/0 = inf: a token of probability zero never arrives first
        with np.errstate(divide="ignore", over="ignore"):
            return dist.token_at(int(np.argmin(noise / weights)))

    def peek(self) -> float:
        """The first uniform of this address, in [0, 1), leaving the streams in use as they are; for traces."""
        return self._firsts.at(_counter(self._address))

    def _uniform(self) -> float:
        """The next uniform of this address, in [0, 1)."""
        if not self._asked:
            self._asked = True
            return self._firsts.at(_counter(self._address))
        return float(self._stream().random())

    def _stream(self) -> np.random.Generator:
        """The stream of this address after what was taken from it."""
        if self._generator is None:
            self._generator = np.random.Generator(
                np.random.Philox(key=_key(self.seed), counter=_counter(self._address))
            )
            if self._asked:
                self._generator.random()
            self._asked = True
        return self._generator

    def exponentials(self, size: int) -> npt.NDArray[np.float64]:
        """The shared noise of this address, shape (size,): independent Exp(1) variables. Treated as immutable."""
        noise = self._exponentials.get(self._address)
        if noise is None or len(noise) != size:
            while len(self._exponentials) >= 32:  # longer than any sensible block; older ones are made again
                del self._exponentials[next(iter(self._exponentials))]
            fresh = self.at(self._address)  # from the start of the stream, whoever asks first
            noise = fresh._stream().standard_exponential(size)
            self._exponentials[self._address] = noise
        return noise


class _FirstUniforms:
    """The first uniform of any address of a seed: one generator, moved there, which costs a fifth of making one."""

    __slots__ = ("_bits", "_counter", "_generator", "_state")

    def __init__(self, seed: int) -> None:
        self._bits = np.random.Philox(key=_key(seed))
        self._generator = np.random.Generator(self._bits)
        self._state: Any = self._bits.state
        self._state["buffer_pos"] = len(self._state["buffer"])  # nothing is left over from another address
        self._counter = self._state["state"]["counter"]

    def at(self, counter: tuple[int, int, int, int]) -> float:
        self._counter[:] = counter
        self._bits.state = self._state
        return self._generator.random()


def _key(seed: int) -> npt.NDArray[np.uint64]:
    # As a list it would pass through floats, and seeds from 2**63 on would share streams with their neighbours.
    return np.array([seed, 0], dtype=np.uint64)


def _counter(a: Address) -> tuple[int, int, int, int]:
    return 0, a.position, a.epoch, (a.sample << 8) | int(a.purpose)


def pick(weights: npt.NDArray[np.float64], u: float, sums: Sequence[float] | None = None) -> int:
    """The index at which the running sum of `weights` first exceeds u times their total; u in [0, 1).

    Never returns an index of weight zero. Two levels: sums of blocks (`dist.block_sums`, if they are known), then a
    running sum inside one block, which is what makes a draw from 50 000 tokens cost microseconds. Its obvious twin is
    `pick_slowly`. The few numbers that are left are Python's own: a numpy function that has not run since the model's
    pass is not in the caches any more, and costs more than they do.
    """
    if len(weights) <= BLOCK:
        running = list(accumulate(weights.tolist()))
        index = bisect_right(running, u * running[-1])
        return index if index < len(running) else _nearest(weights, index)
    running = list(accumulate(block_sums(weights) if sums is None else sums))
    goal = u * running[-1]
    block = bisect_right(running, goal)
    if block == len(running):
        return pick_slowly(weights, u)  # rounding carried the goal to the end, or there is no weight
    start = block * BLOCK
    inside = weights[start : start + BLOCK].tolist()
    index = bisect_right(list(accumulate(inside)), goal - (running[block - 1] if block else 0.0))
    if index < len(inside) and inside[index] > 0:
        return start + index
    return start + _nearest(weights[start : start + BLOCK], index)


def pick_slowly(weights: npt.NDArray[np.float64], u: float) -> int:
    """`pick` by one running sum over everything."""
    running = np.cumsum(weights)
    return _first_above(running, weights, u * running[-1])


def _first_above(running: npt.NDArray[np.float64], weights: npt.NDArray[np.float64], goal: float) -> int:
    index = int(np.searchsorted(running, goal, side="right"))
    return index if index < len(running) and weights[index] > 0 else _nearest(weights, index)


def _nearest(weights: npt.NDArray[np.float64], index: int) -> int:
    """The entry that has weight, nearest to where rounding carried a goal: to or past an end."""
    positive = np.flatnonzero(weights > 0)
    if len(positive) == 0:
        raise InvalidValue("a draw from weights that are all zero", "probabilities sum to one")
    return int(positive[min(int(np.searchsorted(positive, index)), len(positive) - 1)])


def _floats(probs: Sequence[Any] | npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    values = exact_or_float(probs)
    return values.astype(np.float64, copy=False)  # a seeded draw from Fractions: rounded once, here


class RecordedChance:
    """A source that writes down every decision of another: what was asked, at which address, what came out.

    What it is for: traces and debugging; `records` holds (address, kind, outcome), in order.
    """

    __slots__ = ("_address", "_inner", "records")

    def __init__(self, inner: Chance, records: list[tuple[Address, str, int]] | None = None) -> None:
        self._inner = inner
        self._address = Address()
        self.records: list[tuple[Address, str, int]] = [] if records is None else records

    def at(self, address: Address) -> RecordedChance:
        bound = RecordedChance(self._inner.at(address), self.records)
        bound._address = address
        return bound

    def flip(self, prob: Prob) -> bool:
        return bool(self._note("flip", self._inner.flip(prob)))

    def draw(self, probs: Any) -> int:
        return self._note("draw", self._inner.draw(probs))

    def race(self, probs: Any) -> int:
        return self._note("race", self._inner.race(probs))

    def _note(self, kind: str, outcome: int) -> int:
        self.records.append((self._address, kind, int(outcome)))
        return outcome
