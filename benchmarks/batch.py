"""Several requests in one pass: what eight together gain over one, and what it costs when they accept unequally.

Run: python benchmarks/batch.py [--weights int8] [--activations int8] [--requests 8] [--rounds 48] [--repeats 7].

Plain: tokens per second of `--requests` requests decoded together, over those of one alone; no speculation, T = 0.

Unequal acceptance: the same requests, draft length 4, with a drafter that knows every answer beforehand and is wrong
where it is told to be. "equal": every request has two of four drafted tokens accepted in each round. "unequal": half of
them have all four accepted, half none; the tokens per round of the batch are the same. An engine that pads its
requests to the longest, or lets the fast ones wait for the slow ones, pays for that; the ratio of tokens per second
says how much. Both are measured over the same number of rounds with all requests live, in turn, medians of repeats.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from collections.abc import Sequence as Seq
from time import perf_counter

from draftproof.bench.workloads import builtin
from draftproof.draft.base import Drafter
from draftproof.draft.none import NoDrafter
from draftproof.draft.scripted import ScriptedDrafter
from draftproof.engine import Engine
from draftproof.load import LoadOptions, load_target
from draftproof.sampling.params import SamplingParams
from draftproof.schedule.fixed import FixedSchedule
from draftproof.target.base import Target

LENGTH = 4
LEAST_GAIN, MOST_LOST = 3.0, 0.10
Prompts = Seq[Seq[int]]


def plain(target: Target, prompts: Prompts, tokens: int) -> list[list[int]]:
    """The greedy answers, `tokens` long each."""
    engine = Engine(target, drafter=NoDrafter(), schedule=FixedSchedule(0))
    params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
    return [result.token_ids for result in engine.generate_all([list(p) for p in prompts], params)]


def speed(target: Target, drafter: Drafter, length: int, prompts: Prompts, rounds: int) -> tuple[float, float]:
    """(tokens per second, tokens per round) over `rounds` rounds after the prompts' own, all requests live."""
    engine = Engine(target, drafter=drafter, schedule=FixedSchedule(length))
    params = SamplingParams(max_tokens=(rounds + 2) * (length + 1), temperature=0.0, ignore_eos=True)
    requests = [engine.add(list(prompt), params) for prompt in prompts]
    engine.round()
    started, tokens = perf_counter(), 0
    for _ in range(rounds):
        tokens += len(engine.round())
    seconds = perf_counter() - started
    assert len(engine.live) == len(requests), "every request outlives the measured rounds"
    for request in requests:
        engine.cancel(request)
    return tokens / seconds, tokens / rounds


def knowing(prompts: Prompts, answers: Seq[Seq[int]], right: Callable[[int], int]) -> ScriptedDrafter:
    """A drafter that proposes the answer, but for request i only `right(i)` tokens of each block."""
    known = {tuple(prompt): (i, answer) for i, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))}
    lengths = sorted({len(prompt) for prompt in prompts})

    def step(history: tuple[int, ...], drafted: tuple[int, ...]) -> int | None:
        prompt = next(history[:n] for n in lengths if history[:n] in known)
        i, answer = known[prompt]
        at = len(history) - len(prompt) + len(drafted)
        if at >= len(answer):
            return None
        return answer[at] if len(drafted) < right(i) else (answer[at] + 1) % 1000

    return ScriptedDrafter(step, "knowing")


def main() -> None:
    """Measure, print, and exit with 1 if a bound is broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--weights", default="int8")
    parser.add_argument("--activations", default="int8", choices=["float32", "int8"])
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    target, tokenizer = load_target(
        options.model, LoadOptions(backend="openvino", weights=options.weights, activations=options.activations)
    )
    texts = [prompt for workload in builtin() for prompt in workload.prompts]
    prompts = [tokenizer.prompt(text) for text in texts][: options.requests]
    answers = plain(target, prompts, (options.rounds + 2) * (LENGTH + 1))
    half = LENGTH // 2
    modes: dict[str, Callable[[], tuple[float, float]]] = {
        "one": lambda: speed(target, NoDrafter(), 0, prompts[:1], options.rounds),
        "many": lambda: speed(target, NoDrafter(), 0, prompts, options.rounds),
        "equal": lambda: speed(target, knowing(prompts, answers, lambda i: half), LENGTH, prompts, options.rounds),
        "unequal": lambda: speed(
            target, knowing(prompts, answers, lambda i: LENGTH * (i % 2)), LENGTH, prompts, options.rounds
        ),
    }
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in modes}
    for repeat in range(options.repeats + 1):
        for name, run in modes.items():
            found = run()
            if repeat:  # the first is for warming up
                measured[name].append(found)
    gains = [b[0] / a[0] for a, b in zip(measured["one"], measured["many"], strict=True)]
    losses = [1 - b[0] / a[0] for a, b in zip(measured["equal"], measured["unequal"], strict=True)]
    for name, found in measured.items():
        rate, width = (statistics.median(values) for values in zip(*found, strict=True))
        print(f"{name:8} {rate:7.1f} tokens/s, {width:5.2f} tokens a round")
    gain, loss = statistics.median(gains), statistics.median(losses)
    print(f"{len(prompts)} requests together, plain: {gain:.2f} x one (from {min(gains):.2f} to {max(gains):.2f})")
    print(f"unequal acceptance costs {loss:.1%} (from {min(losses):.1%} to {max(losses):.1%})")
    sys.exit(0 if gain >= LEAST_GAIN and loss <= MOST_LOST else 1)


if __name__ == "__main__":
    main()
