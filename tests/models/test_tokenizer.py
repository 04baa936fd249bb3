"""The file tokenizer gives the ids and the chat text that transformers' own tokenizer gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, processors

from draftproof.errors import InvalidValue, ModelFileError, Unsupported
from draftproof.models.store import resolve
from draftproof.models.tokenizer import FileTokenizer, eos_ids
from draftproof.text import Message

TEXTS = [
    "",
    " ",
    "Hello 123 world",
    "  two  spaces\n\n\ttabs and 12345.678",
    "naïve café, Größe, žluťoučký kůň",
    "日本語のテキスト、中文和한국어",
    "👩‍👩‍👧 emoji 😀🏳️‍🌈 and ✨",
    "العربية עברית हिन्दी",
    "def f(x):\n    return x ** 2  # comment\n",
    "<|im_start|>user\nspecial<|im_end|> <bos><eos><start_of_turn>",
    "a\u0301 combining, \u200bzero width, \ufeffBOM, \x00 control",
]
CHAT: list[Message] = [
    {"role": "user", "content": 'What is 2 + 2?\n<b>"quoted"</b>'},
    {"role": "assistant", "content": "4 😀"},
    {"role": "user", "content": "  Why?  "},
]


def save(folder: Path, *, bos: bool = False, **config: Any) -> Path:
    """A byte-level tokenizer with two special tokens, written as a model's folder has it."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>"])
    if bos:
        backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
    backend.enable_truncation(4)
    backend.enable_padding(length=9)
    folder.mkdir(exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"} | config))
    return folder


@pytest.mark.model
@pytest.mark.parametrize("name", ["smollm2", "gemma3-270m"])
def test_ids_and_text_equal_those_of_transformers(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    folder = resolve(name).path
    ours, theirs = FileTokenizer(folder), transformers.AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        assert ours.prompt(text) == theirs(text).input_ids
        ids = theirs(text, add_special_tokens=False).input_ids
        assert ours.encode(text) == ids
        assert ours.decode(ids, skip_special=True) == theirs.decode(ids, skip_special_tokens=True)
        assert ours.decode(ids, skip_special=False) == theirs.decode(ids, skip_special_tokens=False)
    assert ours.has_chat is bool(theirs.chat_template)
    if ours.has_chat:
        assert ours.render(CHAT) == theirs.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
        assert ours.chat(CHAT) == theirs.apply_chat_template(CHAT, add_generation_prompt=True)["input_ids"]
    assert ours.vocab_size == len(theirs)


@pytest.mark.model
def test_eos_of_the_real_models() -> None:
    assert eos_ids(resolve("smollm2").path) == {2}
    assert eos_ids(resolve("gemma3-270m").path) == {1}


TEMPLATES = {
    "trim_blocks": "{% for m in messages %}\n  {%- if true %}\n{{ m['role'] }}\n  {% endif %}\n{% endfor %}end",
    "tojson": "{{ messages | tojson }}|{{ {'b': 1, 'a': 'é<>'} | tojson(indent=2) }}",
    "loop controls": "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.content }}{% endfor %}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "tokens": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ add_generation_prompt }}{{ tools is none }}",
    "strftime_now": "{{ strftime_now('%Y') }}",
}


@pytest.mark.parametrize("kind", TEMPLATES)
def test_templates_render_as_in_transformers(kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = save(tmp_path / "m", tokenizer_class="PreTrainedTokenizerFast")
    (folder / "chat_template.jinja").write_text(TEMPLATES[kind])
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    expected = theirs.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    assert FileTokenizer(folder).render(CHAT) == expected


@pytest.mark.parametrize("where", ["config", "named", "json", "jinja"])
def test_a_template_is_found_wherever_models_keep_it(where: str, tmp_path: Path) -> None:
    text = "{{ messages[0].content }}"
    config: dict[str, Any] = {}
    if where == "config":
        config["chat_template"] = text
    if where == "named":
        config["chat_template"] = [{"name": "tool", "template": "no"}, {"name": "default", "template": text}]
    folder = save(tmp_path / "m", **config)
    if where == "json":
        (folder / "chat_template.json").write_text(json.dumps({"chat_template": text}))
    if where == "jinja":
        (folder / "chat_template.jinja").write_text(text)
    tokenizer = FileTokenizer(folder)
    assert tokenizer.has_chat
    assert tokenizer.render(CHAT) == CHAT[0]["content"]


def test_a_template_can_refuse_and_cannot_reach_python(tmp_path: Path) -> None:
    refusing = save(tmp_path / "a", chat_template="{{ raise_exception('roles must alternate') }}")
    with pytest.raises(InvalidValue, match="roles must alternate"):
        FileTokenizer(refusing).chat(CHAT)
    escaping = save(tmp_path / "b", chat_template="{{ ''.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(InvalidValue, match="unsafe"):
        FileTokenizer(escaping).chat(CHAT)
    with pytest.raises(ModelFileError, match="template"):
        FileTokenizer(save(tmp_path / "c", chat_template="{% if %}"))
    with pytest.raises(Unsupported, match="no chat template"):
        FileTokenizer(save(tmp_path / "d")).chat(CHAT)


@pytest.mark.parametrize(
    ("processor", "flag", "expected"),
    [(True, None, True), (False, None, False), (False, True, True), (True, True, True), (True, False, False)],
)
def test_a_plain_prompt_gets_bos_exactly_when_the_model_asks(
    processor: bool, flag: bool | None, expected: bool, tmp_path: Path
) -> None:
    config = {} if flag is None else {"add_bos_token": flag}
    tokenizer = FileTokenizer(save(tmp_path / "m", bos=processor, **config))
    assert (tokenizer.prompt("long enough")[0] == 256) is expected
    assert tokenizer.prompt("long enough")[-11:] == tokenizer.encode("long enough")
    assert len(tokenizer.encode("long enough")) == 11  # neither truncated nor padded as the file says
    assert tokenizer.encode("a<s>")[-1] == 256


def test_the_fingerprint_is_of_the_vocabulary_alone(tmp_path: Path) -> None:
    plain, bos = FileTokenizer(save(tmp_path / "a")), FileTokenizer(save(tmp_path / "b", bos=True))
    assert plain.fingerprint() == bos.fingerprint()
    swapped = json.loads((tmp_path / "b" / "tokenizer.json").read_text())
    vocab = swapped["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    (tmp_path / "b" / "tokenizer.json").write_text(json.dumps(swapped))
    assert FileTokenizer(tmp_path / "b").fingerprint() != plain.fingerprint()
    assert plain.vocab_size == 258


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ({"eos_token_id": [1, 7]}, {"eos_token_id": 3}, {1, 7}),
        ({}, {"eos_token_id": 0}, {0}),
        (None, {"text_config": {"eos_token_id": 5}}, {5}),
        (None, {}, set()),
    ],
)
def test_eos_comes_from_the_generation_config_first(
    generation: dict[str, Any] | None, config: dict[str, Any], expected: set[int], tmp_path: Path
) -> None:
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert eos_ids(tmp_path) == expected


def test_missing_or_damaged_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"no tokenizer\.json"):
        FileTokenizer(tmp_path)
    folder = save(tmp_path / "m")
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(ModelFileError, match=r"tokenizer_config\.json"):
        FileTokenizer(folder)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelFileError, match=r"tokenizer\.json"):
        FileTokenizer(folder)
