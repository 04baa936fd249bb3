"""The options of `draftproof generate`, grouped as `--help` shows them.

Guarantees: one place for names, groups and help texts; legal ranges are checked by `SamplingParams`, not twice.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

MODEL, DRAFT, SAMPLE, STOP, OUT = "Model", "Speculation", "Sampling", "Length and stops", "Output"


def _option(panel: str, help: str, *names: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(*names, help=help, rich_help_panel=panel, show_default=True)
    return option


Model = Annotated[str, _option(MODEL, "Alias (smollm2, gemma3-270m), folder, GGUF file or Hub id.", "--model", "-m")]
Backend = Annotated[str, _option(MODEL, "Runtime: auto, openvino or transformers.", "--backend")]
Dtype = Annotated[str | None, _option(MODEL, "float32, bfloat16, float16 or auto (transformers).", "--dtype")]
Weights = Annotated[str | None, _option(MODEL, "Weight format (openvino): file, int4, int8 or float16.", "--weights")]
Activations = Annotated[
    str | None, _option(MODEL, "float32, or int8: faster, another rounding of the model (openvino).", "--activations")
]
Narrow = Annotated[
    list[int],
    _option(
        MODEL,
        "Tokens of passes that get a graph of their own, at the memory of the weights each (openvino); may be "
        "repeated. 0: none. Default: 5 and 9 where both weights and activations are int8.",
        "--narrow",
    ),
]
Device = Annotated[str, _option(MODEL, "cpu or cuda (transformers).", "--device")]
Threads = Annotated[int | None, _option(MODEL, "CPU threads; default: the runtime's choice.", "--threads")]
RemoteCode = Annotated[bool, _option(MODEL, "Run Python code that a checkpoint brings.", "--trust-remote-code")]
Pickle = Annotated[
    bool, _option(MODEL, "Read weights in pickle format, which can run code of their author.", "--allow-pickle")
]
NoChat = Annotated[bool, _option(MODEL, "Continue the prompt as plain text, without the chat template.", "--no-chat")]

Draft = Annotated[
    str,
    _option(
        DRAFT,
        "auto, none, lookup, suffix, retrieval[:FOLDER], dspark[:FOLDER], model:ID, or several joined by +.",
        "--draft",
        "-d",
    ),
]
Verifier = Annotated[str, _option(DRAFT, "token, block, match or coupled.", "--verifier")]
Schedule = Annotated[str, _option(DRAFT, "adaptive, fixed, prefix or prefix-budget.", "--schedule")]
DraftLength = Annotated[
    int, _option(DRAFT, "Tokens drafted a round (fixed), or the most (adaptive).", "--draft-length")
]

Temperature = Annotated[
    float, _option(SAMPLE, "0 is argmax; 1 is the model's own distribution.", "--temperature", "-t")
]
TopK = Annotated[int, _option(SAMPLE, "Keep the k most probable tokens; 0 is off.", "--top-k")]
TopP = Annotated[float, _option(SAMPLE, "Keep the most probable tokens up to this mass; 1 is off.", "--top-p")]
MinP = Annotated[float, _option(SAMPLE, "Drop tokens below this share of the most probable; 0 is off.", "--min-p")]
Repetition = Annotated[
    float, _option(SAMPLE, "Penalty on tokens of prompt and answer; 1 is off.", "--repetition-penalty")
]
Presence = Annotated[float, _option(SAMPLE, "Penalty on tokens of the answer, once; 0 is off.", "--presence-penalty")]
Frequency = Annotated[
    float, _option(SAMPLE, "Penalty on tokens of the answer, each time; 0 is off.", "--frequency-penalty")
]
LogitBias = Annotated[list[str], _option(SAMPLE, "ID=ADDEND; may be repeated.", "--logit-bias")]
BannedId = Annotated[list[int], _option(SAMPLE, "An id never to emit; may be repeated.", "--banned-id")]
BannedWord = Annotated[list[str], _option(SAMPLE, "A phrase never to emit; may be repeated.", "--banned-word")]
AllowedId = Annotated[list[int], _option(SAMPLE, "The only ids to emit; may be repeated.", "--allowed-id")]
JsonSchema = Annotated[
    str | None, _option(SAMPLE, "A JSON schema the answer follows, or a file @PATH.", "--json-schema")
]
Regex = Annotated[str | None, _option(SAMPLE, "A regular expression the answer matches.", "--regex")]
Grammar = Annotated[str | None, _option(SAMPLE, "A Lark grammar the answer follows, or a file @PATH.", "--grammar")]
Seed = Annotated[int | None, _option(SAMPLE, "Repeats the answer; default: a fresh one, reported.", "--seed", "-s")]
N = Annotated[int, _option(SAMPLE, "Independent answers to the prompt.", "-n", "--n")]

MaxTokens = Annotated[int, _option(STOP, "Most tokens to emit.", "--max-tokens")]
MinTokens = Annotated[int, _option(STOP, "No stop id before this many tokens.", "--min-tokens")]
StopId = Annotated[list[int], _option(STOP, "An id that ends the answer; may be repeated.", "--stop-id")]
Stop = Annotated[list[str], _option(STOP, "A string that ends the answer; may be repeated.", "--stop")]
IncludeStop = Annotated[bool, _option(STOP, "Leave the stop string in the text.", "--include-stop")]
IgnoreEos = Annotated[bool, _option(STOP, "Do not end at the model's end-of-answer ids.", "--ignore-eos")]

AsJson = Annotated[bool, _option(OUT, "Print one JSON object and nothing else.", "--json")]
Logprobs = Annotated[int | None, _option(OUT, "Log-probabilities: of the token and this many more.", "--logprobs")]
RawLogprobs = Annotated[bool, _option(OUT, "Those before the controls.", "--raw-logprobs")]
PromptLogprobs = Annotated[int | None, _option(OUT, "The same for the prompt's tokens.", "--prompt-logprobs")]
Trace = Annotated[Path | None, _option(OUT, "Write a trace of the run: FILE.html or FILE.jsonl.", "--trace")]


def narrow_passes(asked: list[int]) -> tuple[int, ...] | None:
    """`--narrow` as `LoadOptions` takes it: None if it was not given, () for 0."""
    return tuple(each for each in asked if each) if asked else None
