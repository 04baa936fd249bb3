"""From nothing but a target to a drafter that drafts for it, through the command line; interrupted and resumed."""

from __future__ import annotations

import json
from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from dspark_kit import VOCAB, tiny_model
from tokenizers import Tokenizer, models, pre_tokenizers
from typer.testing import CliRunner

from draftproof.cli import calibrate as calibrate_command
from draftproof.cli import train as train_command
from draftproof.draft import datastore as datastores
from draftproof.draft.dspark import checkpoint as checkpoints
from draftproof.draft.dspark.factory import feature_layers, make_dspark
from draftproof.draft.dspark.tap import FeatureTap
from draftproof.draft.laws import count_laws
from draftproof.draft.shipped import folder_of
from draftproof.engine import Engine
from draftproof.errors import InvalidValue, ModelFileError, ModelNotFound, Unsupported
from draftproof.load import load_engine
from draftproof.registry import DraftContext
from draftproof.result import FinishEvent, Result
from draftproof.sampling.params import SamplingParams
from draftproof.schedule.fixed import FixedSchedule
from draftproof.target.transformers import TransformersTarget
from draftproof.train import corpus
from draftproof.train.corpus import CorpusPlan, own_prompts, read_corpus, read_prompts, write_corpus
from draftproof.train.pipeline import layers_to_read

PLAN = CorpusPlan(max_tokens=12, prompt_tokens=9, shortest_prompt=2, together=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny target as a model on disk, with a tokenizer of words and a chat template."""
    path = tmp_path_factory.mktemp("model")
    model = tiny_model()
    model.config.eos_token_id = 2
    model.generation_config.eos_token_id = 2
    model.save_pretrained(path)
    words = {f"w{i}": i for i in range(VOCAB)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(path / "tokenizer.json"))
    template = "w1 {% for m in messages %}{{ m['content'] }} w3 {% endfor %}"
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, "eos_token": "w2"}))
    return path


@pytest.fixture(scope="module")
def engine(folder: Path) -> Engine:
    return load_engine(str(folder), draft="lookup", schedule="fixed", draft_length=2)


_SMALL = (
    "--prompts-count 12 --max-tokens 16 --steps 6 --sequences 4 --anchors 4 --held-out 3 --block 3 --rank 4 "
    "--draft-vocab 20 --precision float32 --device cpu"
)


def _train(folder: Path, out: Path, *more: str) -> str:
    result = CliRunner().invoke(
        train_command.app,
        ["dspark", "-m", str(folder), "-o", str(out), *_SMALL.split(), *more],
        catch_exceptions=False,
    )
    assert result.exit_code == 0, result.output
    return result.output


def _drafting(folder: Path, drafter: Path, prompt: Seq[int] = (1, 5, 3), length: int = 3) -> Result:
    target = TransformersTarget.load(folder, hidden_layers=feature_layers(str(drafter), str(folder)))
    target.name = str(folder)
    tap = FeatureTap(target)
    made = make_dspark(DraftContext(str(drafter), tap, None, lambda name: pytest.fail("no model is needed")))
    run = Engine(tap, drafter=made, schedule=FixedSchedule(length))
    return run.generate(list(prompt), SamplingParams(max_tokens=20, temperature=0, ignore_eos=True))


@pytest.fixture(scope="module")
def trained(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out")
    output = _train(folder, out, "--baseline")
    assert "x the drafts of the `none` head" in output
    return out


def test_drafters_of_one_context_share_their_weights_and_keep_their_requests_apart(folder: Path, trained: Path) -> None:
    pytest.importorskip("openvino")
    drafter = str(trained / "markov")
    target = TransformersTarget.load(folder, hidden_layers=feature_layers(drafter, str(folder)))
    target.name = str(folder)
    tap = FeatureTap(target)
    context = DraftContext(drafter, tap, None, lambda name: pytest.fail("no model is needed"))
    first, second = make_dspark(context), make_dspark(context)
    assert first._forward._alone is second._forward._alone
    assert first._forward._together() is not second._forward._together()  # runtimes prepare kernels for one shape
    assert make_dspark(replace(context, loaded={}))._forward._alone is not first._forward._alone
    params = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)
    engines = [Engine(tap, drafter=each, schedule=FixedSchedule(n)) for each, n in ((first, 3), (second, 2))]
    for engine, prompt in zip(engines, ([1, 5, 3], [2, 7]), strict=True):
        assert engine.add(prompt, params) == 0  # one id, two requests
    results: list[list[Result]] = [[], []]
    for _ in range(30):  # in turn
        for engine, found in zip(engines, results, strict=True):
            found.extend(event.result for event in engine.round() if isinstance(event, FinishEvent))
    alone = [_drafting(folder, trained / "markov", prompt, n) for prompt, n in (([1, 5, 3], 3), ([2, 7], 2))]
    assert [r.token_ids for (r,) in results] == [r.token_ids for r in alone]
    assert [r.speculation.drafted for (r,) in results] == [r.speculation.drafted for r in alone]


def test_the_command_line_trains_a_drafter_the_engine_can_use(trained: Path, folder: Path) -> None:
    checkpoint = checkpoints.load(trained / "markov")
    assert checkpoint.config.head == "markov"
    assert checkpoint.record["steps"] == 6
    assert checkpoint.record["none_head"]["step"] == 6
    assert len(checkpoint.record["ece"]["after"]) == 3
    result = _drafting(folder, trained / "markov")
    assert result.speculation.drafted > 0
    plain = Engine(TransformersTarget.load(folder)).generate(
        [1, 5, 3], SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)
    )
    assert result.token_ids == plain.token_ids


def test_started_again_it_changes_nothing(trained: Path, folder: Path) -> None:
    before = (trained / "markov" / checkpoints.TENSORS).read_bytes()
    _train(folder, trained, "--baseline")
    assert (trained / "markov" / checkpoints.TENSORS).read_bytes() == before


def test_the_calibrate_command_rewrites_temperatures_and_the_heads_bias_and_nothing_else(
    trained: Path, folder: Path, tmp_path: Path
) -> None:
    import typer

    app = typer.Typer()
    app.command()(calibrate_command.calibrate)
    before = checkpoints.load(trained / "markov")
    arguments = [str(trained / "markov"), "--features", str(trained / "features"), "-m", str(folder)]
    arguments += ["--held-out", "3", "--json"]
    dry = CliRunner().invoke(app, [*arguments, "--dry-run"], catch_exceptions=False)
    assert checkpoints.load(trained / "markov").temperatures == before.temperatures
    real = CliRunner().invoke(app, arguments, catch_exceptions=False)
    after = checkpoints.load(trained / "markov")
    assert json.loads(real.output)["temperatures"] == list(after.temperatures) == json.loads(dry.output)["temperatures"]
    for name, values in before.tensors.items():
        if name != "confidence.bias":
            np.testing.assert_array_equal(values, after.tensors[name])
    again = CliRunner().invoke(app, arguments, catch_exceptions=False)
    twice = checkpoints.load(trained / "markov")
    assert json.loads(again.output)["temperatures"] == list(after.temperatures) == list(twice.temperatures)
    np.testing.assert_array_equal(twice.tensors["confidence.bias"], after.tensors["confidence.bias"])


def test_more_prompts_and_steps_go_on_with_a_training_and_its_held_out_texts(folder: Path, tmp_path: Path) -> None:
    prompts, out = tmp_path / "prompts.txt", tmp_path / "out"
    lines = [f"w{i} w{i + 1} w5\n" for i in range(14)]
    prompts.write_text("".join(lines[:7]))
    _train(folder, out, "--prompts-count", "0", "--prompts", str(prompts))
    first = checkpoints.load(out / "markov")
    held = json.loads((out / "features" / "held_out.json").read_text())
    prompts.write_text("".join(lines))
    _train(folder, out, "--prompts-count", "0", "--prompts", str(prompts), "--steps", "8")
    second = checkpoints.load(out / "markov")
    assert json.loads((out / "features" / "held_out.json").read_text()) == held
    assert second.record["sequences"] > first.record["sequences"]
    assert second.record["steps"] == 8
    np.testing.assert_array_equal(second.tensors["vocab"], first.tensors["vocab"])


def test_fresh_texts_calibrate_a_drafter_and_trained_ones_are_refused_as_fresh(
    trained: Path, folder: Path, tmp_path: Path
) -> None:
    drafter = tmp_path / "drafter"
    drafter.mkdir()
    for file in (trained / "markov").iterdir():
        (drafter / file.name).write_bytes(file.read_bytes())
    arguments = ["texts", "-m", str(folder), "-o", str(tmp_path), "--prompts-count", "9", "--max-tokens", "16"]
    result = CliRunner().invoke(
        train_command.app, [*arguments, "--seed", "7", "--device", "cpu"], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    texts = list(read_corpus(tmp_path / "texts.jsonl"))
    assert {text.temperature for text in texts} == {1.0}
    calibrate_command.calibrate(drafter, tmp_path / "features", str(folder), fresh=True)
    after = checkpoints.load(drafter)
    enough = [text for text in texts if len(text.tokens) - text.prompt_length >= after.config.block]
    assert after.record["calibrated_on"] == {"texts": len(enough), "fresh": True}
    assert after.temperatures != checkpoints.load(trained / "markov").temperatures
    with pytest.raises(InvalidValue, match="fresh"):
        calibrate_command.calibrate(drafter, trained / "features", str(folder), fresh=True)


def test_calibrating_on_other_texts_than_those_held_out_is_refused(trained: Path, folder: Path) -> None:
    with pytest.raises(InvalidValue, match="as in the training: 3"):
        calibrate_command.calibrate(trained / "markov", trained / "features", str(folder), held_out=4)


def test_a_drafter_of_another_model_is_refused(trained: Path, folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for file in folder.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "note": "not the same"}))
    with pytest.raises(ModelFileError, match="another target"):
        _drafting(other, trained / "markov")


def test_names_without_a_checkpoint_are_told_what_there_is(folder: Path) -> None:
    with pytest.raises(ModelNotFound, match="nothing for the drafter 'dspark' comes with the package for 'unknown'"):
        folder_of("dspark", "", "unknown")
    target = TransformersTarget.load(folder)
    with pytest.raises(Unsupported, match="without hidden states"):
        make_dspark(DraftContext("", target, None, lambda name: pytest.fail("no model is needed")))


def test_an_interrupted_corpus_goes_on_to_the_same_texts(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [f"w{i} w{i + 1} w5" for i in range(9)]
    whole, parts = tmp_path / "whole.jsonl", tmp_path / "parts.jsonl"
    write_corpus(engine, prompts, whole, PLAN)

    count = iter(range(100))

    def interrupt(text: object) -> None:
        if next(count) == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_corpus(engine, prompts, parts, PLAN, on_text=interrupt)
    with parts.open("a") as file:
        file.write('{"prompt": "w8 w9 w5", "t": 1.0, "n"')
    assert 0 < len(list(read_corpus(parts))) < 18
    write_corpus(engine, prompts, parts, PLAN)
    assert set(read_corpus(parts)) == set(read_corpus(whole))
    assert len(list(read_corpus(parts))) == 18  # nine prompts at two temperatures, none twice
    write_corpus(engine, prompts, parts, PLAN)
    assert len(list(read_corpus(parts))) == 18


def test_the_targets_own_prompts_follow_its_user_header_and_are_kept(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    prompts = own_prompts(engine, 5, path, PLAN)
    assert len(set(prompts)) == 5
    assert own_prompts(engine, 5, path, PLAN) == prompts
    assert own_prompts(engine, 8, path, PLAN)[:5] == prompts
    assert own_prompts(engine, 8, tmp_path / "again.jsonl", PLAN) == own_prompts(engine, 8, path, PLAN)
    with pytest.raises(InvalidValue, match="chat template"):
        own_prompts(Engine(engine.target), 5, path, PLAN)


def test_openings_are_continued_in_turn_and_stay_in_the_prompt(engine: Engine, tmp_path: Path) -> None:
    openings = ("w9 w8", "w7")
    prompts = own_prompts(engine, 9, tmp_path / "prompts.jsonl", PLAN, openings)
    assert len(prompts) == 9
    begun = [sum(p.startswith(opening) for p in prompts) for opening in openings]
    assert min(begun) > 0
    assert sum(begun) == 9
    # What follows an opening was drawn after it: the engine's own answer to the header and the opening.
    result = engine.generate([1, 9, 8], SamplingParams(max_tokens=9, seed=corpus._seed(PLAN, 0, 0, 0)))
    text = ("w9 w8" + result.text).strip()
    assert (text in prompts) == (result.finish_reason == "stop" and len(result.token_ids) >= 2)
    with pytest.raises(InvalidValue, match="openings"):
        own_prompts(engine, 9, tmp_path / "other.jsonl", PLAN, ())


def test_prompts_of_a_file_and_of_the_target_are_both_answered(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "asked.txt").write_text("w4 w5\nw6 w7\n")
    arguments = ["dspark", "-m", str(folder), "-o", str(tmp_path / "out"), *_SMALL.split(), "--opening", "w9 "]
    arguments += ["--prompts", str(tmp_path / "asked.txt"), "--prompt-tokens", "9", "--prompt-temperature", "0.9"]
    assert CliRunner().invoke(train_command.app, arguments, catch_exceptions=False).exit_code == 0
    texts = (tmp_path / "out" / "texts.jsonl").read_text().splitlines()
    asked = list(dict.fromkeys(json.loads(line)["prompt"] for line in texts))
    assert asked[:2] == ["w4 w5", "w6 w7"]
    assert len(asked) == 14
    assert all(prompt.startswith("w9") for prompt in asked[2:])


def test_openings_without_a_count_of_prompts_are_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "asked.txt").write_text("w4 w5\n")
    more = ["--prompts", str(tmp_path / "asked.txt"), "--opening", "w9 "]
    with pytest.raises(InvalidValue, match="prompts-count"):
        CliRunner().invoke(
            train_command.app, ["dspark", "-m", str(folder), "-o", str(tmp_path), *more], catch_exceptions=False
        )
    with pytest.raises(InvalidValue, match="prompt_temperature"):
        CorpusPlan(prompt_temperature=0)


def test_prompts_come_from_text_and_json_lines(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\ntwo\none\n")
    (tmp_path / "b.jsonl").write_text('{"prompt": "one"}\n{"turns": ["two", "three"]}\n')
    assert read_prompts(tmp_path / "a.txt") == read_prompts(tmp_path / "b.jsonl") == ["one", "two"]
    (tmp_path / "e.jsonl").write_text('{"prompt": "one\u2028two"}\r\n{"prompt": "three\x85"}\n', encoding="utf-8")
    assert read_prompts(tmp_path / "e.jsonl") == ["one\u2028two", "three\x85"]
    for bad in ('["a"]', "5", "null", '""', '" "'):
        (tmp_path / "bad.jsonl").write_text(f'{{"prompt": {bad}}}\n')
        with pytest.raises(ModelFileError, match="is no prompt"):
            read_prompts(tmp_path / "bad.jsonl")
    (tmp_path / "c.jsonl").write_text('{"turns": []}\n')
    (tmp_path / "d.txt").write_text("\n")
    with pytest.raises(ModelFileError, match="cannot read prompts"):
        read_prompts(tmp_path / "c.jsonl")
    with pytest.raises(InvalidValue, match="no prompts"):
        read_prompts(tmp_path / "d.txt")
    with pytest.raises(ModelFileError, match="cannot read prompts"):
        read_prompts(tmp_path / "missing.txt")


def test_a_file_that_is_no_corpus_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"something": 1}\n')
    with pytest.raises(ModelFileError, match="no file of training texts"):
        list(read_corpus(tmp_path / "x.jsonl"))


def test_a_temperature_twice_would_answer_every_prompt_twice() -> None:
    with pytest.raises(InvalidValue, match="each once"):
        CorpusPlan(temperatures=(1.0, 0.5, 1.0))


def test_a_training_goes_on_with_what_it_held_out_or_not_at_all(folder: Path, tmp_path: Path) -> None:
    _train(folder, tmp_path)
    with pytest.raises(InvalidValue, match="another training"):
        _train(folder, tmp_path, "--held-out", "5", "--steps", "8")
    with pytest.raises(InvalidValue, match="as in the training: 3"):  # the store knows 5 now, this drafter does not
        calibrate_command.calibrate(tmp_path / "markov", tmp_path / "features", str(folder), held_out=5)


def test_layers_are_spread_and_the_last_is_among_them() -> None:
    assert layers_to_read(30) == (3, 9, 15, 21, 30)
    assert layers_to_read(2) == (0, 1, 2)
    assert layers_to_read(1)[-1] == 1


def test_the_command_line_counts_a_datastore_the_engine_can_use(folder: Path, tmp_path: Path) -> None:
    arguments = ["retrieval", "-m", str(folder), "-o", str(tmp_path), "--prompts-count", "12", "--max-tokens", "16"]
    arguments += ["--backend", "transformers", "--least", "1"]
    result = CliRunner().invoke(train_command.app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    store = datastores.load(tmp_path / "retrieval")
    texts = list(read_corpus(tmp_path / "texts.jsonl"))
    assert store.record["texts"] == len(texts) == 24
    assert store.record["temperatures"] == [1.0, 0.0]
    assert store.record["answer_tokens"] == sum(len(text.tokens) - text.prompt_length for text in texts)
    again = datastores.count(
        ((text.tokens, text.prompt_length) for text in texts), store.vocab_size, store.tokenizer, least=1
    )
    assert [c.tolist() for c in again.contexts] == [c.tolist() for c in store.contexts]
    laws = count_laws(((t.tokens, t.prompt_length) for t in texts if t.temperature > 0), store.vocab_size, least=1)
    assert store.laws is not None
    assert [(c, laws.after(c)) for c in ([], [5], [1, 5])] == [(c, store.laws.after(c)) for c in ([], [5], [1, 5])]
    assert len(store.laws) == len(laws)
    assert store.record["drawn_tokens"] == sum(len(t.tokens) - t.prompt_length for t in texts if t.temperature > 0)
    params = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)
    drafted = load_engine(str(folder), draft=f"retrieval:{tmp_path / 'retrieval'}", schedule="fixed", draft_length=3)
    result_drafted = drafted.generate([1, 5, 3], params)
    assert result_drafted.speculation.drafted > 0
    assert result_drafted.token_ids == load_engine(str(folder), draft="none").generate([1, 5, 3], params).token_ids


@pytest.mark.parametrize("command", ["dspark", "texts", "retrieval"])
def test_no_threads_are_refused_before_anything_is_loaded(command: str, tmp_path: Path) -> None:
    arguments = [command, "-m", "no-such-model", "-o", str(tmp_path), "--threads", "0"]
    result = CliRunner().invoke(train_command.app, arguments, catch_exceptions=False)
    assert result.exit_code == 2
    assert "--threads" in result.output
