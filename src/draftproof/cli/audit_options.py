"""The options of `draftproof audit`, with their help texts.

Guarantees: one place for names; legal ranges that typer cannot say are checked by the plans.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Tokens = Annotated[int, typer.Option(help="Tokens of each sequential test.", min=1)]
Answer = Annotated[int, typer.Option(help="Tokens of an answer.", min=1)]
Level = Annotated[float, typer.Option(help="Error rate of all sequential tests together.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Html = Annotated[Path | None, typer.Option(help="Also write the report as one HTML file.")]
PromptFile = Annotated[Path | None, typer.Option("--prompts", help="Prompts, one a line; default: four of our own.")]
Drafts = Annotated[list[str], typer.Option("--draft", "-d", help="Drafters to audit; may be repeated.")]
Verifiers = Annotated[list[str], typer.Option("--verifier", help="Verifiers to audit; may be repeated.")]
Temperatures = Annotated[list[float], typer.Option("--temperature", "-t", help="May be repeated.")]
Lookup = Annotated[int, typer.Option(help="Tokens of the engine's own prompt lookup; 0 leaves it out.", min=0)]
PeerThreads = Annotated[int, typer.Option("--threads", help="CPU threads of the audited engine.", min=1)]
PeerPython = Annotated[
    str | None, typer.Option("--python", help="The Python that has the audited engine, if it is another one.")
]
Assistant = Annotated[str | None, typer.Option(help="An assistant model with the same vocabulary.")]
BaseUrl = Annotated[str, typer.Option(help="Address of the server, up to and including /v1.")]
ServerModel = Annotated[str, typer.Option("--model", help="The model's name at the server.")]
ReferenceModel = Annotated[str | None, typer.Option("--reference", help="The same model here, to score with.")]
ControlUrl = Annotated[str | None, typer.Option(help="The same server without speculation.")]
ControlHeader = Annotated[list[str], typer.Option(help="NAME: VALUE that turns speculation off; may be repeated.")]
Header = Annotated[list[str], typer.Option(help="NAME: VALUE sent with every request; may be repeated.")]
KeyEnv = Annotated[str, typer.Option(help="Environment variable that holds the key.")]
ApiKind = Annotated[str, typer.Option("--api", help="completions or chat.")]
Stream = Annotated[bool, typer.Option("--stream", help="Read answers as events.")]
Answers = Annotated[int, typer.Option(help="Answers sampled from each server.", min=1)]
Noise = Annotated[float, typer.Option(help="Allowed difference of log p between server and reference.")]
NoMatrix = Annotated[bool, typer.Option("--no-matrix", help="Leave the control matrix out.")]
Timeout = Annotated[float, typer.Option(help="Seconds for one request.")]
Concurrency = Annotated[int, typer.Option(help="Requests at a time.", min=1)]
MaxRequests = Annotated[int, typer.Option(help="The most requests to each server.", min=1)]
Seeds = Annotated[int, typer.Option(help="Coupled answers compared per prompt.", min=1)]
