"""One other program, alone in its process: loads a model, answers prompts, times them.

What it is for: `peers` runs this file with any Python interpreter, so that a peer may live in an environment of its
own; it imports nothing of this package. It speaks JSON lines: first what to load, then one request a line.

Guarantees: the clock starts when a request has been read and is read again when the first tokens are there and when
the answer has ended, as for our own engine. Whatever a library prints goes to standard error. What it does not do:
tune the peer; everything not asked for is the peer's own default.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

if __name__ == "__main__" and sys.path and os.path.abspath(sys.path[0]) == os.path.dirname(os.path.abspath(__file__)):
    # Python looks for modules beside the script first, and files of ours are called as modules of its own library.
    del sys.path[0]

Arrived = Callable[[int], None]
"""To be called with how many tokens have just arrived."""


class Transformers:
    """transformers' `generate`."""

    module = "transformers"

    def __init__(self, job: dict[str, Any]) -> None:
        import transformers  # isort: skip - first, so that its absence is what is reported
        import torch

        transformers.logging.set_verbosity_error()
        torch.set_num_threads(job["threads"])
        self._torch = torch
        self._streamer: Any = transformers.generation.streamers.BaseStreamer
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(job["file"], dtype=job["dtype"]).eval()
        self.version = transformers.__version__

    def answer(self, request: dict[str, Any], arrived: Arrived) -> list[int]:
        torch = self._torch
        prompt = torch.tensor([request["ids"]])

        class Streamer(self._streamer):  # type: ignore[misc,name-defined]
            def __init__(self) -> None:
                self.asked = False

            def put(self, value: Any) -> None:
                if self.asked:
                    arrived(value.numel())
                self.asked = True  # the first call repeats the prompt

            def end(self) -> None:
                pass

        options: dict[str, Any] = {"do_sample": False}
        if request["temperature"] > 0:
            options = {"do_sample": True, "temperature": request["temperature"], "top_k": 0, "top_p": 1.0}
            torch.manual_seed(request["seed"])
        if request["lookup"]:
            options["prompt_lookup_num_tokens"] = request["lookup"]
        if request["ignore_eos"]:
            options["min_new_tokens"] = request["max_tokens"]
        with torch.no_grad():
            tokens = self._model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=request["max_tokens"],
                eos_token_id=request["eos"] or None,
                pad_token_id=(request["eos"] or [0])[0],
                streamer=Streamer(),
                **options,
            )
        return [int(token) for token in tokens[0, prompt.shape[1] :]]


class OpenVINOGenAI:
    """openvino-genai's `LLMPipeline`."""

    module = "openvino_genai"

    def __init__(self, job: dict[str, Any]) -> None:
        import openvino_genai  # isort: skip - first, so that its absence is what is reported
        import numpy as np
        import openvino

        self._genai, self._numpy, self._tensor = openvino_genai, np, openvino.Tensor
        options = {"prompt_lookup": True} if job["lookup"] else {}
        self._pipe: Any = openvino_genai.LLMPipeline(
            job["file"], "CPU", INFERENCE_NUM_THREADS=job["threads"], **options
        )
        self.version = openvino_genai.__version__

    def answer(self, request: dict[str, Any], arrived: Arrived) -> list[int]:
        genai = self._genai

        class Streamer(genai.StreamerBase):  # type: ignore[misc,name-defined]
            def write(self, tokens: Any) -> Any:
                arrived(len(tokens) if isinstance(tokens, list) else 1)
                return genai.StreamingStatus.RUNNING

            def end(self) -> None:
                pass

        config = genai.GenerationConfig()
        config.max_new_tokens = request["max_tokens"]
        config.do_sample = request["temperature"] > 0
        if config.do_sample:
            config.temperature = request["temperature"]
            config.rng_seed = request["seed"] % 2**31
        if request["eos"]:
            config.eos_token_id = request["eos"][0]
            config.stop_token_ids = set(request["eos"])
        if request["ignore_eos"]:
            config.ignore_eos, config.stop_token_ids = True, set()
        if request["lookup"]:
            config.num_assistant_tokens, config.max_ngram_size = request["lookup"], 3
        ids = self._numpy.array([request["ids"]], self._numpy.int64)
        inputs = genai.TokenizedInputs(self._tensor(ids), self._tensor(self._numpy.ones_like(ids)))
        return list(self._pipe.generate(inputs, config, Streamer()).tokens[0])


class LlamaCpp:
    """llama-cpp-python's `Llama.generate`."""

    module = "llama_cpp"

    def __init__(self, job: dict[str, Any]) -> None:
        import llama_cpp
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        self._draft: Any = LlamaPromptLookupDecoding(num_pred_tokens=job["lookup"]) if job["lookup"] else None
        self._model: Any = llama_cpp.Llama(
            job["file"],
            n_ctx=job["context"],
            n_threads=job["threads"],
            n_threads_batch=job["threads"],
            draft_model=self._draft,
            verbose=False,
        )
        self.version = llama_cpp.__version__

    def answer(self, request: dict[str, Any], arrived: Arrived) -> list[int]:
        if self._draft is not None:
            self._draft.num_pred_tokens = request["lookup"]
        self._model.reset()  # it would keep a prompt it has seen, and others would not
        self._model.set_seed(request["seed"] % 2**32)
        tokens: list[int] = []
        ends = () if request["ignore_eos"] else request["eos"]
        for token in self._generate(request):
            tokens.append(int(token))
            arrived(1)
            if len(tokens) == request["max_tokens"] or token in ends:
                break
        return tokens

    def _generate(self, request: dict[str, Any]) -> Iterator[int]:
        generated: Iterator[int] = self._model.generate(
            request["ids"], temp=request["temperature"], top_k=0, top_p=1.0, min_p=0.0, repeat_penalty=1.0
        )
        return generated


PEERS: dict[str, Any] = {
    "transformers": Transformers,
    "openvino-genai": OpenVINOGenAI,
    "llama-cpp-python": LlamaCpp,
}


def main() -> None:
    """Serve one parent until it closes our standard input."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(message: dict[str, Any]) -> None:
        out.write(json.dumps(message) + "\n")
        out.flush()

    job = json.loads(sys.stdin.readline())
    kind = PEERS[sys.argv[1]]
    try:
        peer = kind(job)
    except ImportError as error:
        # Only the peer itself being absent is "missing"; a peer that is there and broken is an error.
        missing = isinstance(error, ModuleNotFoundError) and error.name == kind.module
        say({"missing" if missing else "error": f"{type(error).__name__}: {error}"})
        return
    except Exception as error:
        say({"error": f"{type(error).__name__}: {error}"})
        return
    say({"version": peer.version})
    for line in sys.stdin:
        try:
            say(_timed(peer, json.loads(line)))
        except Exception as error:
            say({"error": f"{type(error).__name__}: {error}"})


def _timed(peer: Any, request: dict[str, Any]) -> dict[str, Any]:
    first: list[tuple[float, int]] = []

    def arrived(count: int) -> None:
        if not first and count:
            first.append((perf_counter(), count))

    started = perf_counter()
    tokens = peer.answer(request, arrived)
    ended = perf_counter()
    at, count = first[0] if first else (ended, len(tokens))
    return {"tokens": tokens, "first_tokens": count, "first_seconds": at - started, "seconds": ended - started}


if __name__ == "__main__":
    main()
