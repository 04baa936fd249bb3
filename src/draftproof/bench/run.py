"""The run: every mode on every prompt, interleaved, with the same seeds.

Guarantees: within a repeat every prompt is answered by all modes in small turns (`turns`), in an order that rotates, so
that a slow moment of the machine hits them alike; one answer of each mode is thrown away first. What it does not
do: decide what is fast enough.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from draftproof.bench.answers import Answer
from draftproof.bench.modes import Mode
from draftproof.bench.stats import Spread
from draftproof.bench.summary import ModeResult, Repeats, paired, summarise
from draftproof.bench.turns import answer_in_turns
from draftproof.bench.workloads import Workload
from draftproof.errors import InvalidValue
from draftproof.models.cache import Progress, silent
from draftproof.sampling.params import SamplingParams
from draftproof.schedule.costs import CostCurve

WARM_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """workloads: what to answer. temperatures: one set of figures for each. max_tokens: of each answer. repeats: of
    everything. seed: the first; prompt i of repeat r uses seed + 1000 r + i. floor: replay model calls. ignore_eos:
    answers of exactly max_tokens tokens.
    """

    workloads: tuple[Workload, ...]
    temperatures: tuple[float, ...] = (0.0, 1.0)
    max_tokens: int = 128
    repeats: int = 3
    seed: int = 1
    floor: bool = True
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if not self.workloads or not self.temperatures:
            raise InvalidValue("a benchmark of nothing", "at least one workload and one temperature")
        if self.repeats < 1:
            raise InvalidValue(f"repeats={self.repeats}", "at least 1")
        if self.max_tokens < 2:
            raise InvalidValue(f"max_tokens={self.max_tokens}", "at least 2: the first token comes with the prompt")
        for temperature in self.temperatures:
            self.params(temperature, 0, 0)  # refuses what no request may have

    def params(self, temperature: float, repeat: int, prompt: int) -> SamplingParams:
        """The parameters of one answer."""
        return SamplingParams(
            temperature=temperature,
            max_tokens=self.max_tokens,
            seed=self.seed + 1000 * repeat + prompt,
            ignore_eos=self.ignore_eos,
        )


@dataclass(frozen=True, slots=True)
class GroupResult:
    """One workload at one temperature. peers: our modes against the fastest mode of any other program, by name."""

    workload: str
    temperature: float
    prompts: int
    modes: tuple[ModeResult, ...]
    best_peer: str | None
    against_best_peer: dict[str, Spread | None]


def run(
    options: RunOptions,
    modes: Seq[Mode],
    encode: Callable[[str], Seq[int]],
    curve: Callable[[], CostCurve] | None = None,
    progress: Progress = silent,
    failed: dict[str, str] | None = None,
) -> list[GroupResult]:
    """Measure everything. encode: a prompt's text to the ids that every mode is given.

    failed: filled with the modes that had to be left out on the way, and why. A mode that fails is missing from the
    workload in which it failed and from those after it. None: the first failure ends the run.
    """
    names = [mode.name for mode in modes]
    if len(set(names)) != len(names):
        raise InvalidValue(f"modes {', '.join(names)}", "each mode once")
    groups = []
    parts = [(w, t) for w in options.workloads for t in options.temperatures]
    for done, (workload, temperature) in enumerate(parts):
        ids = [encode(prompt) for prompt in workload.prompts]

        def report(share: float, at: int = done, what: str = workload.name) -> None:
            progress(f"measuring {what}", (at + share) / len(parts))

        answers = _measure(options, modes, ids, temperature, report, failed)
        modes = [mode for mode in modes if mode.name in answers]
        groups.append(_group(workload, temperature, modes, answers, curve() if curve is not None else None))
    progress("measuring", 1.0)
    return groups


def _measure(
    options: RunOptions,
    modes: Seq[Mode],
    prompts: Seq[Seq[int]],
    temperature: float,
    report: Callable[[float], None],
    failed: dict[str, str] | None,
) -> dict[str, list[list[Answer]]]:
    answers: dict[str, list[list[Answer]]] = {mode.name: [[] for _ in range(options.repeats)] for mode in modes}

    def ask(order: Seq[Mode], prompt: Seq[int], params: SamplingParams, *, floor: bool) -> dict[str, Answer]:
        good: dict[str, Answer] = {}
        among = [mode for mode in order if mode.name in answers]
        for name, found in answer_in_turns(among, prompt, params, floor=floor).items():
            if isinstance(found, Answer):
                good[name] = found
            elif failed is None:
                raise found
            else:
                failed[name] = str(found)
                del answers[name]
        return good

    warm = SamplingParams(temperature=temperature, max_tokens=WARM_TOKENS, seed=options.seed)
    for mode in modes:
        mode.begin()
    ask(modes, prompts[0], warm, floor=False)
    total = options.repeats * len(prompts)
    for step in range(total):
        repeat, i = divmod(step, len(prompts))
        first = step % len(modes)
        order = [*modes[first:], *modes[:first]]
        for name, answer in ask(order, prompts[i], options.params(temperature, repeat, i), floor=options.floor).items():
            answers[name][repeat].append(answer)
        report((step + 1) / total)
    return answers


def _group(
    workload: Workload,
    temperature: float,
    modes: Seq[Mode],
    answers: dict[str, list[list[Answer]]],
    curve: CostCurve | None,
) -> GroupResult:
    results = tuple(
        summarise(
            mode.name,
            mode.baseline,
            answers[mode.name],
            answers.get(mode.baseline, answers[mode.name]),
            greedy=temperature == 0,
            curve=curve,
        )
        for mode in modes
    )
    own = {mode.name for mode in modes if mode.baseline == modes[0].baseline}
    best = best_of([r for r in results if r.name not in own])
    against: dict[str, Spread | None] = {}
    if best is not None:
        fastest: Repeats = answers[best]
        against = {name: paired(answers[name], fastest) for name in answers if name in own}
    return GroupResult(workload.name, temperature, len(workload.prompts), results, best, against)


def best_of(results: Seq[ModeResult]) -> str | None:
    """The name of the mode with the highest median rate."""
    known = [(r.tokens_per_second.median, r.name) for r in results if r.tokens_per_second is not None]
    return max(known)[1] if known else None
