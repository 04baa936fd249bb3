"""A tokenizer and chat template read from a model's folder, without torch or transformers.

Guarantees: ids are those of the folder's tokenizer.json through the `tokenizers` library; a chat is
rendered by the model's own Jinja template in a sandbox with the usual Hugging Face names, and its
special tokens become their ids. What it does not do: build a tokenizer from anything but
tokenizer.json, or guess a template the model does not have.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence as Seq
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer as Backend

from draftproof.errors import InvalidValue, ModelFileError, Unsupported
from draftproof.text import Message


class FileTokenizer:
    """The `draftproof.text.Tokenizer` of a folder in Hugging Face layout.

    Raises ModelFileError if tokenizer.json is missing or unreadable.
    """

    def __init__(self, folder: Path | str) -> None:
        folder = Path(folder)
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise ModelFileError(
                f"{folder} has no tokenizer.json", "save the model's fast tokenizer there (save_pretrained)"
            )
        try:
            self._backend: Backend = Backend.from_file(str(file))
        except Exception as error:  # the library raises bare Exception
            raise ModelFileError(f"cannot read {file}: {error}", "fetch the model again") from error
        # Some files carry padding or truncation for training batches; an answer must have neither.
        self._backend.no_padding()
        self._backend.no_truncation()
        config = _read_json(folder / "tokenizer_config.json")
        self._tokens = _special_tokens(_read_json(folder / "special_tokens_map.json") | config)
        self._add_bos: bool | None = config.get("add_bos_token")
        self._template = _template(folder, config)
        self._fingerprint: str | None = None

    @property
    def vocab_size(self) -> int:
        """One more than the highest id that means something; a model's head may have more rows."""
        return max(self._backend.get_vocab(with_added_tokens=True).values()) + 1

    @property
    def has_chat(self) -> bool:
        """Whether the model has a chat template."""
        return self._template is not None

    def encode(self, text: str) -> list[int]:
        """Ids of plain text; special tokens written in it are recognised, none is added."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids

    def prompt(self, text: str) -> list[int]:
        """Ids of a plain prompt the way the model expects one: with BOS where its files ask for it."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=True).ids
        bos = self._backend.token_to_id(self._tokens.get("bos_token", ""))
        if self._add_bos and bos is not None and ids[:1] != [bos]:
            return [bos, *ids]
        if self._add_bos is False and bos is not None and ids[:1] == [bos]:
            return self.encode(text)
        return ids

    def decode(self, ids: Seq[int], *, skip_special: bool = True) -> str:
        """Text of ids. Incomplete UTF-8 at the end shows as U+FFFD."""
        text: str = self._backend.decode(list(ids), skip_special_tokens=skip_special)
        return text

    def chat(self, messages: Seq[Message]) -> list[int]:
        """Ids of a conversation through the chat template, ready for the assistant's answer.

        Raises Unsupported if the model has no template, InvalidValue if the template refuses the
        messages (a role it does not know, roles out of order).
        """
        return self.encode(self.render(messages))

    def render(self, messages: Seq[Message]) -> str:
        """The text of the chat template for these messages, with the assistant's turn opened."""
        if self._template is None:
            raise Unsupported("the model has no chat template", "give a plain prompt (--no-chat)")
        try:
            # Templates ask whether tools and documents are there; the usual answer is None, not "undefined".
            return self._template.render(
                messages=list(messages), tools=None, documents=None, add_generation_prompt=True, **self._tokens
            )
        except jinja2.TemplateError as error:
            raise InvalidValue(f"the chat template refuses the messages: {error}", "check roles and order") from error

    def to_str(self) -> str:
        """The tokenizer as the JSON text of a tokenizer.json, for libraries that read that (grammars)."""
        text: str = self._backend.to_str()
        return text

    def fingerprint(self) -> str:
        """16 hex digits over every (id, token) of the vocabulary, added tokens included."""
        if self._fingerprint is None:
            digest = hashlib.sha256()
            vocabulary = self._backend.get_vocab(with_added_tokens=True)
            for token, i in sorted(vocabulary.items(), key=lambda item: item[1]):
                digest.update(f"{i}\0{token}\0".encode("utf-8", "surrogatepass"))
            self._fingerprint = digest.hexdigest()[:16]
        return self._fingerprint


def eos_ids(folder: Path | str) -> frozenset[int]:
    """The ids that end an answer: generation_config.json's, else config.json's; empty if neither says."""
    for name in ("generation_config.json", "config.json"):
        config = _read_json(Path(folder) / name)
        value = config.get("eos_token_id", config.get("text_config", {}).get("eos_token_id"))
        if value is not None:
            return frozenset([value] if isinstance(value, int) else value)
    return frozenset()


def _read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file, {} if there is no such file. Raises ModelFileError if it is damaged."""
    if not file.is_file():
        return {}
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelFileError(f"cannot read {file}: {error}", "fetch the model again") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{file} is not a JSON object", "fetch the model again")
    return value


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """bos_token, eos_token, ... as strings; older files wrap them in an object."""
    found = {}
    for key, value in config.items():
        content = value.get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and isinstance(content, str):
            found[key] = content
    return found


class _Generation(Extension):
    """Templates mark the assistant's words with {% generation %}; for rendering it has no effect."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares an instance variable

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _template(folder: Path, config: dict[str, Any]) -> jinja2.Template | None:
    file = folder / "chat_template.jinja"
    source: Any = config.get("chat_template") or _read_json(folder / "chat_template.json").get("chat_template")
    if isinstance(source, list):  # several named templates
        source = {entry["name"]: entry["template"] for entry in source}.get("default")
    if file.is_file():
        source = file.read_text(encoding="utf-8")
    if not source:
        return None
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _raise, "strftime_now": _now}
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as error:
        raise ModelFileError(f"{folder} has a chat template that cannot be read: {error}", "fetch it again") from error


def _to_json(value: Any, **options: Any) -> str:
    """Like Jinja's own filter, without escaping for HTML."""
    return json.dumps(value, **({"ensure_ascii": False} | options))


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(pattern: str) -> str:
    return datetime.now().strftime(pattern)  # templates mean the user's local date
