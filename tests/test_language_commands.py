"""``mesascope language prepare | train | evaluate | sample | inspect``, one after the other, as a user has them."""

import json
import re
import shutil
from types import SimpleNamespace

import pytest
import torch

from mesascope.cli import main
from mesascope.cli.inspection import ATTENTION, LOSS
from mesascope.errors import ArgumentError
from mesascope.language import load_language_model, losses_by_octave, open_corpus, prepare
from mesascope.language.documents import standard_library
from mesascope.measurement import Measurement
from mesascope.streams import stream

TRAIN = (
    "--layers", "softmax, mesa", "--width", "16", "--n-heads", "2", "--mlp", "None", "--context", "24", "--forget",
    "--training.steps", "40", "--training.batch", "8", "--training.learning-rate", "0.02",
    "--training.warmup-steps", "5", "--training.evaluate-every", "20",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory, unchecked_module):
    """A corpus and a model that was trained on it, both made by commands."""
    folder = tmp_path_factory.mktemp("commands")
    lines = [json.dumps({"song": f"{n} green bottles hanging on the wall. " * 4}) for n in range(60)] + ["{"]
    (folder / "songs.jsonl").write_text("\n".join(lines))
    prepared = ["prepare", str(folder / "songs.jsonl"), "--out", str(folder / "corpus"), "--field", "song"]
    assert main(["language", *prepared, "--validation", "0.2"]) == 0
    assert main(["language", "train", "--corpus", str(folder / "corpus"), "--out", str(folder / "run"), *TRAIN]) == 0
    return folder


def told(capsys, *line):
    capsys.readouterr()
    code = main(["language", *map(str, line)])
    return code, capsys.readouterr()


def test_a_corpus_is_told_in_numbers_and_its_broken_lines_too(folder, tmp_path, capsys):
    line = ("prepare", folder / "songs.jsonl", "--field", "song", "--validation", "0.2", "--out")
    code, said = told(capsys, *line, tmp_path / "out")
    assert code == 0
    assert "vocabulary: 257 tokens; 1 line left out" in said.out
    assert "songs.jsonl:61: not JSON" in said.err
    corpus = open_corpus(folder / "corpus")
    assert f"train: {corpus.tokens('train'):,} tokens of" in said.out
    code, said = told(capsys, *line, tmp_path / "refused", "--broken", "refuse")
    assert code == 2
    assert "line 61 is broken, not JSON" in said.err


def test_an_estimate_of_a_training_leaves_nothing(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mesascope.language.estimating._SECONDS", 0.05)
    flags = ("--corpus", folder / "corpus", *TRAIN, "--training.steps", "9000", "--device", "cpu")
    code, said = told(capsys, "train", "--estimate", *flags)
    names, values, note = said.out.splitlines()
    assert code == 0
    assert names.split() == ["training", "steps", "hours", "tokens/s", "memory", "(GB)"]
    name, steps, hours, tokens, memory = values.split()
    assert (name, steps, note) == ("model", "9000", "left out: evaluations and checkpoints")
    assert 9000 * 8 * 24 / float(tokens) / 3600 == pytest.approx(float(hours), rel=0.01)
    assert 0.1 < float(memory) < 20
    assert not list(tmp_path.iterdir())


def test_delimiters_are_typed_as_python_spells_them(tmp_path, capsys):
    (tmp_path / "text.txt").write_bytes(b"".join(b"one %d\r\n\r\n" % number for number in range(40)))
    for typed, count in ((r"\n\n", 40), (r"\x0a\u000a", 40), ("e ", 41), (r"\q", 1)):
        line = (
            "prepare",
            tmp_path / "text.txt",
            "--validation",
            "0.3",
            "--delimiter",
            typed,
            "--out",
            tmp_path / str(count),
        )
        shutil.rmtree(tmp_path / str(count), ignore_errors=True)
        code, said = told(capsys, *line)
        assert code == 0
        splits = open_corpus(tmp_path / str(count)).index.splits.values()
        assert sum(split.documents for split in splits) == (count if count > 1 else 2)
        assert (r"delimiter '\\q' is not in" in said.err) == (count == 1)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--width", "65"), "--width must be a multiple of 4 as --n-heads is 4, but is 65: pass 64, say, or another"),
        (("--n-heads", "3"), "width must be a multiple of 3 as --n-heads is 3, but is 128"),
        (("--width", "6", "--n-heads", "2", "--positions", "rotary"), "--width must be a multiple of 4 as --n-heads"),
        (("--training.momentum", "0.9"), "set --training.betas, or --training.optimizer to"),
        (("--dpfp", "300"), "--dpfp must be less than 64 for heads of width 32, but is 300"),
    ],
)  # fmt: skip
def test_sentences_about_settings_name_flags(flags, message, capsys):
    code, said = told(capsys, "train", "--corpus", "nowhere", *flags)
    assert code == 2
    assert message in said.err
    assert "key_size" not in said.err


def test_a_model_is_evaluated_on_a_part_of_a_corpus(folder, capsys):
    code, said = told(capsys, "evaluate", folder / "run", "--corpus", folder / "corpus", "--windows", "20")
    assert code == 0
    found = re.search(r"loss (\S+) ± \S+ nats per token, perplexity (\S+), 20 windows", said.out)
    assert 0 < float(found[1]) < 3.5
    assert re.search(
        r"in-context score \S+ ± \S+ \(loss late in a window minus loss early in it, .*: below 0 if", said.out
    )
    assert "from token     8" in said.out
    code, said = told(capsys, "evaluate", folder / "run", "--corpus", folder / "nowhere")
    assert (code, said.out) == (2, "")
    assert "corpus must be a folder with index.json" in said.err


def test_a_model_goes_on_with_a_prompt_the_same_way_for_the_same_seed(folder, capsys):
    line = ("sample", folder / "run", "--prompt", "9 gr", "--tokens", "12", "--seed")
    (code, first), (_, again), (_, other) = (told(capsys, *line, seed) for seed in (1, 1, 2))
    assert code == 0
    assert first.out.startswith("9 gr")
    assert "--device auto takes c" in first.err
    assert first.out == again.out != other.out
    code, said = told(capsys, "sample", folder / "run", "--tokens", "100")
    assert code == 2
    why = "as the model has learned 24 positions, and the prompt takes 1"
    assert f"--tokens must be at most 24, {why}, but is 100: pass 24 or fewer." in said.err
    code, said = told(capsys, "sample", folder / "run")
    assert code == 0
    assert f"tokens: 24, {why}" in said.err


def test_a_model_is_inspected_head_by_head_and_drawn(folder, tmp_path, capsys):
    line = ("inspect", folder / "run", "--corpus", folder / "corpus", "--windows", "4", "--out", tmp_path / "drawn")
    code, said = told(capsys, *line)
    assert code == 0
    for column in ("copying", "induction", "forget", "ridge", "condition 24"):
        assert column in said.out
    assert {path.suffix for path in (tmp_path / "drawn").iterdir()} >= {".png"}


def test_the_figure_of_losses_shows_the_numbers_and_errors_that_evaluate_prints():
    losses = torch.rand(5, 20, generator=stream(0, "losses"), dtype=torch.float64)
    printed = {first: Measurement.of(own) for first, own in losses_by_octave(losses).items()}
    panel = LOSS.panels[0]
    (line,) = panel.read(SimpleNamespace(losses=losses))
    assert (list(line.x), line.y) == (list(printed), [one.value for one in printed.values()])
    assert line.error == [one.stderr for one in printed.values()]
    assert "one standard error" in panel.title
    assert "token" in panel.x
    assert "" not in (ATTENTION.panels.x, ATTENTION.panels.y)


def test_a_folder_with_the_tokenizer_of_another_model_is_refused(folder, tmp_path):
    shutil.copytree(folder / "run" / "model", tmp_path / "model")
    other = prepare([folder / "songs.jsonl"], tmp_path / "other", "bpe:300", field="song", validation=0.2)
    shutil.copyfile(other.folder / "tokenizer.json", tmp_path / "model" / "tokenizer.json")
    with pytest.raises(ArgumentError, match=r"tokenizer\.json must have the 257 tokens of the model, but is 300: put"):
        load_language_model(tmp_path / "model")


def test_a_run_whose_training_has_not_ended_is_told_from_a_folder_that_is_none(folder, tmp_path):
    shutil.copytree(folder / "run", tmp_path / "run", ignore=shutil.ignore_patterns("model"))
    with pytest.raises(ArgumentError, match=r"folder must be a run whose training has ended, but is '.*run': continue"):
        load_language_model(tmp_path / "run")
    with pytest.raises(ArgumentError, match="folder must exist"):
        load_language_model(tmp_path / "other")
    shutil.copytree(folder / "run" / "model", tmp_path / "model", ignore=shutil.ignore_patterns("tokenizer.json"))
    with pytest.raises(ArgumentError, match=r"folder must hold a language model and tokenizer\.json"):
        load_language_model(tmp_path / "model")


def test_the_standard_library_is_text_that_needs_no_download():
    own = standard_library("asyncio")
    assert any(path.name == "events.py" for path in own)
    assert {*own} < {*standard_library()}
    with pytest.raises(ArgumentError, match="part must name a folder of the standard library, but is 'nothing'"):
        standard_library("nothing")
