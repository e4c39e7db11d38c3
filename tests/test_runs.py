"""Runs read back what they wrote, name what is damaged, and outlive kills."""

import base64
import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny_study
import torch
from hypothesis import given, settings, strategies as st

import mesascope
from mesascope.data import files as data_files, image_sets
from mesascope.errors import ArgumentError, MissingPackageError, RunDirectoryError
from mesascope.evidence import Arrays, Claim, Estimates, below, judge, printed, stage
from mesascope.files import write_aside
from mesascope.nets import (
    AttentionConfig,
    CausalTransformer,
    CausalTransformerConfig,
    InContextRegressorConfig,
    TransformerConfig,
    save_state,
)
from mesascope.records import to_record
from mesascope.reports import write_report
from mesascope.runs import Run, find_runs, open_run, results
from mesascope.runs.checkpoints import TrainingCheckpoints
from mesascope.runs.files import arrays_bytes, read_arrays
from mesascope.streams import stream
from mesascope.studies import new_run, run_study
from mesascope.tasks import LinearRegression
from mesascope.training import Training, train

CONFIG = {"study": "one-step", "preset": "quick", "settings": {"tasks": 5}, "seed": 0, "device": "cpu"}
CLAIM = Claim(
    "c",
    "a sentence with <b>",
    stage("x")["v"],
    below(1.0),
    printed("Fig. 1"),
    quantifier="exact",
    exact_because="an example",
)
VALUES = Arrays({"v": np.linspace(0.1, 0.5, 5)}, v="seed")


@pytest.fixture
def run(tmp_path):
    return Run.create(tmp_path / "run", "study", CONFIG)


def test_a_run_reads_back_what_it_wrote(run):
    run.append_metrics([{"training": "a", "step": 0, "seed": 0, "mse": 1.0}])
    run.results.save("x", VALUES)
    run.save_claims(judge([CLAIM], run.results, "quick"))
    again = open_run(run.path)
    assert again.config == run.config
    assert again.metrics("a") == [{"training": "a", "step": 0, "seed": 0, "mse": 1.0}]
    assert again.metrics("b") == []
    np.testing.assert_array_equal(again.results["x"]["v"], VALUES["v"])
    assert again.claims[0]["verdict"] == "holds"
    assert list(again.results) == ["x"]
    assert "1 stage, 1 claim" in repr(again)
    assert ("x" in again.results, "y" in again.results, repr(again.results)) == (True, False, "x: Arrays of v (seed)")


def test_estimates_come_back_with_their_errors(run):
    rng = np.random.default_rng(0)
    run.results.save("y", Estimates.of({("mse", "a"): list(rng.gamma(2.0, size=(2, 40)))}))
    found = open_run(run.path).results["y"]["mse", "a"]
    assert found[0].std_dev > 0
    assert "quantity" in repr(open_run(run.path).results["y"].table())


def test_curves_are_arrays_by_seed_and_step(run):
    rows = [{"training": "a", "step": s, "seed": i, "mse": s + 0.1 * i} for s in (0, 10) for i in (0, 1)]
    run.append_metrics([*rows, {"training": "a", "step": 20, "seed": 0, "mse": None}])
    curves = run.curves("a")
    assert curves["mse"].shape == (2, 3)
    assert np.isnan(curves["mse"][:, 2]).all(), "what was not logged is not a number"
    assert curves.table()[1] == {"step": 10, "seed": 0, "mse": 10.0}
    with pytest.raises(ArgumentError, match="did you mean 'a'"):
        run.curves("aa")


def test_pandas_takes_the_tables(run):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(VALUES.table())
    assert frame["v"].tolist() == VALUES["v"].tolist()


def test_the_same_arrays_give_the_same_bytes():
    arrays = {"v": np.linspace(0, 1, 5), "w": np.eye(2)}
    assert arrays_bytes(arrays) == arrays_bytes(arrays)
    assert read_arrays(arrays_bytes(arrays))["w"].tolist() == np.eye(2).tolist()


def test_a_stage_of_another_run_or_a_damaged_one_is_refused(run, tmp_path):
    run.results.save("x", VALUES)
    other = Run.create(tmp_path / "other", "study", {**CONFIG, "seed": 1})
    shutil.copytree(run.path / "results", other.path / "results")
    with pytest.raises(RunDirectoryError, match=r"of another run, or the settings in config.json were edited"):
        open_run(other.path).results["x"]
    assert judge([CLAIM], open_run(other.path).results, "quick")[0]["verdict"] == "undecided"
    file = run.path / "results" / "x.npz"
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(RunDirectoryError, match=r"x.npz must be what this run measured, but is damaged"):
        open_run(run.path).results["x"]
    file.unlink()
    with pytest.raises(RunDirectoryError, match="must exist, but is missing"):
        open_run(run.path).results["x"]


def test_a_stage_is_current_only_for_its_settings_and_code(run, monkeypatch):
    run.results.save("x", VALUES)
    assert open_run(run.path).results.is_current("x")
    assert not run.results.is_current("y")
    assert not Run(run.path, {**run.config, "settings": {"tasks": 6}}).results.is_current("x")
    monkeypatch.setattr("mesascope.runs.results.code_hash", lambda: "another")
    assert not open_run(run.path).results.is_current("x")


def test_every_file_of_the_package_that_can_decide_a_number_is_in_the_hash_of_the_code(tmp_path, monkeypatch):
    """All but what shows results: a new folder is in the hash until it is listed as presentation."""
    source = Path(mesascope.__file__).parent
    parts = {path.name for path in source.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert set(results.PRESENTATION) < parts
    monkeypatch.setattr(mesascope, "__file__", str(tmp_path / "__init__.py"))
    files = {
        part: tmp_path / part if part.endswith(".py") else tmp_path / part / "inner.py" for part in parts | {"new"}
    }
    for file in files.values():
        file.parent.mkdir(exist_ok=True)
        file.write_text("before")
    hashed = results.code_hash.__wrapped__
    before = hashed()
    for part, file in files.items():
        file.write_text("after")
        assert (hashed() == before) == (part in results.PRESENTATION), part
        file.write_text("before")
    (tmp_path / "new/inner.py").rename(tmp_path / "new/moved.py")
    assert hashed() != before
    monkeypatch.setattr(results, "installed", lambda package: "another")
    (tmp_path / "new/moved.py").rename(tmp_path / "new/inner.py")
    assert hashed() != before


def test_a_torn_last_line_is_passed_over_and_mended(run):
    run.append_metrics([{"training": "a", "step": s, "seed": 0} for s in (0, 5, 10)])
    with open(run.path / "metrics.jsonl", "a") as file:
        file.write('{"training": "a", "st')
    assert [row["step"] for row in run.metrics()] == [0, 5, 10]
    run.rewind_metrics("a", 5)
    assert (run.path / "metrics.jsonl").read_text().count("\n") == 2
    run.append_metrics([{"training": "a", "step": 7, "seed": 0}])
    assert [row["step"] for row in run.metrics()] == [0, 5, 7]


def test_damage_is_named_with_its_file(run):
    row = '{"training": "a", "step": 0, "seed": 0}\n'
    (run.path / "metrics.jsonl").write_text(f"{row}nonsense\n{row}")
    with pytest.raises(
        RunDirectoryError, match=r"metrics.jsonl must hold one JSON object a line, but line 2 is damaged"
    ):
        run.metrics()
    (run.path / "config.json").write_text("{")
    with pytest.raises(RunDirectoryError, match=r"config.json must hold JSON, but is damaged"):
        open_run(run.path)
    (run.path / "config.json").write_text("{}")
    with pytest.raises(RunDirectoryError, match=r"must hold JSON of a run, but does not .*missing required field"):
        open_run(run.path)


def test_settings_edited_after_the_run_began_are_noticed(run):
    for name, value in {"seed": 1, "preset": "paper", "device": "cuda", "settings": {"tasks": 6}}.items():
        (run.path / "config.json").write_text(json.dumps(run.config | {name: value}))
        with pytest.raises(RunDirectoryError, match=r"settings that the run was begun with, but was edited"):
            open_run(run.path)
    (run.path / "config.json").write_text(json.dumps(run.config | {"command": "another"}))
    assert open_run(run.path).config["command"] == "another"


def test_a_run_without_a_hash_has_its_stages_to_tell(run):
    run.results.save("x", VALUES)
    config = {**run.config, "settings": {"tasks": 6}}
    del config["hash"]
    (run.path / "config.json").write_text(json.dumps(config))
    with pytest.raises(RunDirectoryError, match=r"the settings in config.json were edited"):
        open_run(run.path).check()


def test_metrics_take_finite_numbers_alone(run):
    run.append_metrics([{"training": "a", "step": 0, "seed": 0, "mse": np.float64(1.0), "other": None}])
    before = (run.path / "metrics.jsonl").read_bytes()
    for row in ({"mse": float("nan")}, {"mse": float("inf")}, {"mse": "1"}, {"step": -1}, {"seed": 0.5}, {"mse": []}):
        with pytest.raises(ArgumentError, match="pass None for what is not finite"):
            run.append_metrics([{"training": "a", "step": 0, "seed": 0, "mse": 1.0}, {"training": "a", **row}])
    assert (run.path / "metrics.jsonl").read_bytes() == before


def test_paths_may_be_strings(run, tmp_path):
    name = str(tmp_path / "other")
    assert Run.create(name, "study", CONFIG).path == Run.open(name).path == open_run(name).path
    assert len(find_runs(str(tmp_path))[0]) == len(find_runs(tmp_path)[0]) == len(find_runs([str(tmp_path)])[0]) == 2


CREATE = """
import sys
from mesascope.errors import RunDirectoryError
from mesascope.runs import Run
try:
    Run.create(sys.argv[1], "benchmark", {"settings": sys.argv[2], "seed": 0})
    print("mine", flush=True)
except RunDirectoryError as error:
    print(error)
"""


def test_of_several_that_begin_a_run_in_one_folder_one_does(tmp_path):
    path = str(tmp_path / "run")
    many = [subprocess.Popen([sys.executable, "-c", CREATE, path, str(i)], stdout=subprocess.PIPE) for i in range(4)]
    said = [process.communicate(timeout=60)[0].decode().strip() for process in many]
    (winner,) = (index for index, text in enumerate(said) if text == "mine")
    assert open_run(path).config["settings"] == str(winner)


def test_another_schema_a_used_folder_and_an_unknown_kind_are_refused(run, tmp_path):
    with pytest.raises(RunDirectoryError, match="a new run must have an empty folder"):
        Run.create(run.path, "study", CONFIG)
    for schema, remedy in ((1, "run it again"), (99, "install a newer mesascope")):
        (run.path / "config.json").write_text(json.dumps({**CONFIG, "schema": schema}))
        with pytest.raises(RunDirectoryError, match=rf"must be of schema 2, but is of schema {schema}: {remedy}"):
            open_run(run.path)
    with pytest.raises(RunDirectoryError, match="a run directory must exist"):
        open_run(run.path / "nowhere")
    with pytest.raises(ArgumentError, match="did you mean 'study'"):
        Run.create(tmp_path / "new", "studdy", CONFIG)


def test_runs_are_found_oldest_first_and_a_damaged_one_costs_only_itself(tmp_path):
    for index, day in enumerate((2, 1, 3)):
        Run.create(tmp_path / f"run{index}", "study", {**CONFIG, "created": f"2026-01-0{day}"})
    (tmp_path / "run2" / "config.json").write_text("{")
    (tmp_path / "unrelated").mkdir()
    runs, damaged = find_runs([tmp_path])
    assert [found.path.name for found in runs] == ["run1", "run0"]
    assert len(damaged) == 1
    assert "run2" in damaged[0]
    with pytest.raises(RunDirectoryError, match="a folder of runs must exist"):
        find_runs([tmp_path / "nowhere"])


def test_the_home_folder_may_be_written_as_a_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    Run.create("~/run", "training", CONFIG)
    assert [run.path for run in find_runs("~")[0]] == [tmp_path / "run"]


HOLD = """
import sys, time
from mesascope.runs import open_run
with open_run(sys.argv[1]).lock():
    print("held", flush=True)
    time.sleep(60)
"""


def test_two_processes_cannot_write_one_run(run):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(run.path)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(RunDirectoryError, match="one process at a time"), open_run(run.path).lock():
            pass
    finally:
        process.kill()
        process.communicate()
    with open_run(run.path).lock():
        assert run.path.exists(), "a killed process lets go"


HOLD_WITHOUT_LOCKS = (
    """
import errno, fcntl
def flock(*arguments):
    raise OSError(errno.ENOLCK, "No locks available")
fcntl.flock = flock
"""
    + HOLD
)


@pytest.mark.parametrize("number", ["ENOLCK", "EOPNOTSUPP", "ENOTSUP"])
def test_a_file_system_without_locks_has_a_file_in_their_place(run, number, monkeypatch, capsys):
    def flock(descriptor, operation):
        raise OSError(getattr(errno, number), os.strerror(getattr(errno, number)))

    monkeypatch.setattr("fcntl.flock", flock)
    with run.lock():
        assert f"{run.path} has no file locks" in capsys.readouterr().err
        with pytest.raises(RunDirectoryError, match=r"one process at a time.*delete .*\.lock\.soft") as refused:
            run.lock().__enter__()
        assert "permissions" not in str(refused.value)
    assert not (run.path / ".lock.soft").exists()
    run.discard_if_new()
    assert not run.path.exists()


@pytest.mark.skipif(os.name != "posix", reason="flock")
def test_a_killed_process_lets_go_where_there_are_no_locks(run, monkeypatch):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD_WITHOUT_LOCKS, str(run.path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert process.stdout.readline() == "held\n"
    process.kill()
    process.communicate()
    assert (run.path / ".lock.soft").exists()

    def flock(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)
    with run.lock():
        assert (run.path / ".lock.soft").read_text().startswith(f"{os.getpid()}\n")


@pytest.mark.parametrize(("number", "remedy"), [("EACCES", "its permissions"), ("ENOSPC", "free some space")])
def test_a_lock_that_cannot_be_written_has_its_own_remedy(run, number, remedy, monkeypatch):
    def failing(lock):
        raise OSError(getattr(errno, number), os.strerror(getattr(errno, number)))

    monkeypatch.setattr("filelock.FileLock._acquire", failing)
    with pytest.raises(RunDirectoryError, match=rf"\.lock must be a file that can be written, .*: .*{remedy}"):
        run.lock().__enter__()


@pytest.mark.parametrize(
    "error", [ArgumentError("width must be even, but is 3: pass another."), MissingPackageError("x")]
)
def test_a_new_run_that_is_refused_is_discarded_after_its_lock_is_released(error, tmp_path, monkeypatch):
    """Windows deletes no file that is open."""
    unlink = Path.unlink

    def held(path, missing_ok=False):
        if path.name == ".lock":
            with open_run(path.parent).lock():
                pass
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", held)

    def measure(lab, settings):
        raise error

    study = dataclasses.replace(tiny_study.STUDY, measure=measure)
    with pytest.raises(type(error)):
        run_study(study, tiny_study.Settings(), new_run(study, "quick", out=tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def fetched(folder):
    whole = folder / "whole"
    whole.write_bytes(b"data")
    source = data_files.Source("data", whole.as_uri(), hashlib.md5(b"data", usedforsecurity=False).hexdigest())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MESASCOPE_CACHE", str(folder / "cache"))
        patch.delenv("MESASCOPE_DATA", raising=False)
        return data_files.found("numbers", [source])[0]


def saved_network(folder):
    InContextRegressorConfig(TransformerConfig(4)).build(stream(0, "init")).save_pretrained(folder / "net")


def saved_state(folder):
    transformer = CausalTransformer(CausalTransformerConfig(AttentionConfig(width=4)))
    save_state(transformer.init_state(1)[0], folder / "state.safetensors")


# Functions that write files of their own.
WRITERS = {
    "a file of a run": lambda folder: write_aside(folder / "file", b"content"),
    "a checkpoint": lambda folder: TrainingCheckpoints(folder / "a", {"a": 1}).save(5, {"weights/a": torch.ones(3)}),
    "a stage": lambda folder: Run.create(folder / "run", "benchmark", CONFIG).results.save("x", VALUES),
    "a network": saved_network,
    "a state": saved_state,
    "data": fetched,
    "pictures": lambda folder: image_sets._keep(folder / "pictures", torch.zeros(2, 3, 4, 4, dtype=torch.uint8)),
}


@pytest.mark.skipif(os.name != "posix", reason="modes")
@pytest.mark.parametrize("writer", WRITERS)
def test_files_have_the_mode_that_the_umask_allows(writer, tmp_path):
    before = os.umask(0o027)
    try:
        WRITERS[writer](tmp_path)
    finally:
        os.umask(before)
    modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.rglob("*") if file.is_file()}
    assert modes
    assert {name: mode for name, mode in modes.items() if name != ".lock" and mode != 0o640} == {}
    assert not [name for name in modes if name.endswith(".aside") or name.startswith(".data")], "nothing left aside"


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["--out", "two words"], []),
        (["--out=two words", "--seed", "3"], ["--seed", "3"]),
        (["--reuse", "runs/my run", "--out", "a b/c d"], ["--reuse", "runs/my run"]),
        (["--out", "it's", "--tasks", "5"], ["--tasks", "5"]),
    ],
)
def test_the_command_that_makes_a_run_anew_can_be_pasted(run, words, kept):
    own = ["mesascope", "run", "my studies/one.py:STUDY"]
    run.config["command"] = shlex.join([*own, *words])
    assert shlex.split(run.afresh.removeprefix("start a new run by ")) == [*own, *kept]
    run.config["command"] = "mesascope run 'unclosed"
    assert run.afresh == "start a new run"


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_aside(path, b"old")

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_aside(path, b"new and longer")
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_a_trained_network_is_built_again_from_its_record(run):
    network = InContextRegressorConfig(TransformerConfig(4, n_layers=2, init_scale=0.5))
    family, plan = LinearRegression(n_context=5, d_in=3), Training(steps=6, batch=16, average=2.0, checkpoint_every=3)
    record = to_record({"network": network, "family": family, "training": plan, "seeds": [3, 4]})
    checkpoints = TrainingCheckpoints(run.path / "checkpoints" / "nets", record)
    trained = train(network.build, family, plan, [3, 4], checkpoints=checkpoints)
    episode = family.sample(5, stream(0, "test"))
    for index, seed in enumerate((3, 4)):
        again = open_run(run.path).network("nets", seed)
        assert torch.equal(again(episode.context, episode.xq), trained.member(index)(episode.context, episode.xq))
        assert not any(weight.requires_grad for weight in again.parameters())
    with pytest.raises(ArgumentError, match="seed must be one of 3, 4, but is 5: choose one of these"):
        run.network("nets", 5)
    with pytest.raises(ArgumentError, match="did you mean 'nets'"):
        run.network("net", 3)
    assert run.family("nets") == family
    shutil.rmtree(run.path / "checkpoints")
    with pytest.raises(RunDirectoryError, match=r"must hold the run's trained networks, .*: start a new run\."):
        run.network("nets", 3)
    run.config["command"] = "mesascope run one-step"
    with pytest.raises(RunDirectoryError, match=r"start a new run by mesascope run one-step\."):
        run.family("nets")


def test_checkpoints_to_keep_stay_beside_the_newest_also_where_training_was_interrupted(run):
    network, family = InContextRegressorConfig(TransformerConfig(4, init_scale=0.5)), LinearRegression(5, 3)
    plan = Training(steps=6, batch=16, evaluate_every=2, keep=(0, 2))
    record = to_record({"network": network, "family": family, "training": plan, "seeds": [0]})
    weights = {}

    def look(step, ensemble):
        again = step in weights
        weights[step] = ensemble.member(0).state_dict()
        if step == 4 and not again:
            raise KeyboardInterrupt

    for _ in range(2):
        checkpoints = TrainingCheckpoints(run.path / "checkpoints" / "net", record)  # the plan names steps to keep
        with contextlib.suppress(KeyboardInterrupt):
            train(network.build, family, plan, [0], checkpoints=checkpoints, evaluate=look)
    assert run.steps("net") == [0, 2, 6]
    for step in (0, 2, 6):
        kept = run.network("net", 0, step).state_dict()
        assert all(torch.equal(kept[name], weight) for name, weight in weights[step].items())
    with pytest.raises(ArgumentError, match=r"step must be one of 0, 2, 6, but is 4: choose one, or keep more"):
        run.network("net", 0, 4)


def test_checkpoints_of_another_training_and_damaged_ones_are_refused(tmp_path):
    tensors = {"weights/a": torch.ones(3)}
    TrainingCheckpoints(tmp_path, {"a": 1}).save(5, tensors)
    TrainingCheckpoints(tmp_path, {"a": 1}).save(10, tensors)
    assert os.listdir(tmp_path) == ["10"]
    with pytest.raises(RunDirectoryError, match="made with another configuration"):
        TrainingCheckpoints(tmp_path, {"a": 2}).load()
    file = tmp_path / "10" / "weights.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(RunDirectoryError, match="must have the checksum in its manifest"):
        TrainingCheckpoints(tmp_path, {"a": 1}).load()


def test_checkpoints_of_an_earlier_version_lack_fields_that_came_since(tmp_path):
    """And are of the same training where the defaults of these are asked for."""
    now = {
        "network": to_record(InContextRegressorConfig(TransformerConfig(width=11))),
        "family": to_record(LinearRegression()),
        "training": to_record(Training()),
        "seeds": [0, 1],
    }
    then = json.loads(json.dumps(now))
    del then["family"]["x_scale"]
    del then["network"]["transformer"]["token_clip"]
    del then["training"]["keep"]
    TrainingCheckpoints(tmp_path / "then", then).save(5, {"weights/a": torch.ones(3)})
    assert TrainingCheckpoints(tmp_path / "then", now).load()[0] == 5
    assert TrainingCheckpoints(tmp_path / "now", now).like(tmp_path, 5) is not None
    other = now | {"family": to_record(LinearRegression(x_scale=0.3))}
    assert TrainingCheckpoints(tmp_path / "now", other).like(tmp_path, 5) is None
    with pytest.raises(RunDirectoryError, match="made with another configuration"):
        TrainingCheckpoints(tmp_path / "then", other).load()


def test_reports_show_claims_figures_and_escape_text(run):
    run.save_figure(
        "plot", "What <it> shows.", {"svg": b'<?xml version="1.0"?><svg viewBox="0 0 1 1"></svg>', "png": b""}
    )
    run.results.save("x", Arrays({"v": np.linspace(2.1, 2.2, 5)}, v="seed"))
    assert "has not finished" in write_report(run).read_text()
    run.save_claims(judge([CLAIM], run.results, "quick"))
    html = write_report(run).read_text()
    assert "1 fails" in html
    assert "a sentence with &lt;b&gt;" in html
    image = html.partition('src="data:image/svg+xml;base64,')[2].partition('"')[0]
    assert base64.b64decode(image) == b'<svg viewBox="0 0 1 1"></svg>'
    assert 'download="x.npz"' in html
    assert "What &lt;it&gt; shows." in html
    assert "http" not in html.replace("http://www.w3.org", "")


def test_a_page_names_files_of_arrays_that_are_too_large_for_it(run):
    run.results.save("few", Arrays({"v": np.zeros(3)}, v="seed"))
    run.results.save("many", Arrays({"v": np.random.default_rng(0).normal(size=150_000)}, v="seed"))
    html = write_report(run).read_text()
    assert 'download="few.npz"' in html
    assert 'download="many.npz"' not in html
    assert "many (1.2 MB, in the run's folder results)" in html


@settings(max_examples=25, deadline=None)
@given(
    st.dictionaries(
        st.from_regex(r"[a-z][a-z _-]{0,8}", fullmatch=True),
        st.lists(st.floats(allow_nan=False), min_size=1, max_size=4), min_size=1, max_size=4,
    )
)  # fmt: skip
def test_whatever_arrays_are_kept_come_back(tmp_path_factory, arrays):
    run = Run.create(tmp_path_factory.mktemp("runs") / "run", "benchmark", CONFIG)
    stage = Arrays(arrays, **dict.fromkeys(arrays, "row"))
    run.results.save("stage", stage)
    again = open_run(run.path).results["stage"]
    assert {name: array.tolist() for name, array in again.items()} == arrays
