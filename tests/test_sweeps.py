"""Sweeps: points as runs, whatever dies; and trainings of one study side by side."""

import contextlib
import csv
import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import tiny_study
import torture_sweep

import mesascope
from mesascope.cli import main
from mesascope.cli.sweep import _setting
from mesascope.errors import ArgumentError, ArgumentTypeError, MesascopeError, RunDirectoryError
from mesascope.loading import from_file
from mesascope.runs import open_run
from mesascope.runs.checkpoints import TrainingCheckpoints
from mesascope.runs.locks import locked
from mesascope.studies import new_run, run_study
from mesascope.sweeps import Sweep, connected
from mesascope.sweeps.gathering import to_csv
from mesascope.sweeps.points import as_task, run_point
from mesascope.sweeps.split import train_part

pytest.importorskip("distributed")

FUNCTION = '''
import os
import time


def measured(settings, seed):
    """Two numbers."""
    if settings["size"] == 3:
        raise ValueError("three is too many")
    if settings.get("dies") and not os.path.exists(settings["dies"]):
        open(settings["dies"], "w").close()
        os._exit(1)
    if settings.get("always"):
        os._exit(1)
    time.sleep(settings.get("wait", 0))
    return {"error": (seed + 1) / settings["size"], "seed squared": seed**2}


def wrong(settings, seed):
    return {"error": float("nan")}


def leaves(settings, seed):
    raise SystemExit("no license")
'''
STUDY = f"{tiny_study.__file__}:STUDY"


@pytest.fixture
def functions(tmp_path, monkeypatch):
    """A folder with a module of functions, in which a test runs."""
    (tmp_path / "own_functions.py").write_text(FUNCTION)
    monkeypatch.chdir(tmp_path)
    return "own_functions.py:measured"


@pytest.fixture(scope="module")
def client():
    with connected(2) as own:
        yield own


def in_this_process(sweep):
    """The points of a sweep one after the other, without workers."""
    for point in sweep.points:
        run_point(as_task(point, sweep.out.resolve()).record)
    return sweep


def sweeping(*arguments, **options):
    """A sweep in a process group of its own, as a shell starts it."""
    return subprocess.Popen(
        [sys.executable, "-m", "mesascope", "sweep", *map(str, arguments)], text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | {"OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), **options,  # ignored in background jobs
    )  # fmt: skip


def test_a_sweep_does_not_write_into_a_run(functions, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    with pytest.raises(ArgumentError, match="out must not be the folder of a run, but is 'run'"):
        Sweep(functions, seeds="0:2", out="run").run()


def test_files_of_equal_name_share_no_points(functions, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "own_functions.py").write_text(FUNCTION)
    own, other = (Sweep(f"{folder}{functions}", seeds="0:2", out="both") for folder in ("", "other/"))
    assert own.points[0].key != other.points[0].key


def test_a_function_is_called_at_all_settings_and_seeds(functions, client):
    sweep = Sweep(functions, {"size": [1, 2], "kind": ["a", "b"]}, seeds="0:2,2:8", out="both").run(client)
    rows = sweep.table()
    assert [(row["size"], row["kind"], row["name"]) for row in rows] == [
        (size, kind, name) for size in (1, 2) for kind in "ab" for name in ("error", "seed squared")
    ]
    assert [rows[0][key] for key in ("value", "low", "high", "replicates")] == [4.5, 1, 8, 8]
    alone = in_this_process(Sweep(functions, {"size": [1, 2], "kind": ["a", "b"]}, seeds="0:2,2:8", out="alone"))
    assert to_csv(alone.table()) == to_csv(rows)
    runs = [open_run(f"both/{point.key}") for point in sweep.points]
    assert all(run.is_complete for run in runs)
    assert runs[0].config["question"] == "Two numbers."
    with pytest.raises(RunDirectoryError, match="must be a run of a study, but is one of a function"):
        runs[0].settings  # noqa: B018
    assert not any((run.path / "checkpoints").exists() for run in runs)


def test_a_study_is_swept_and_its_claims_are_gathered(tmp_path, client):
    sweep = Sweep(STUDY, {"tasks": [40, 60], "training.steps": [8]}, seeds="3:5", out=tmp_path / "tiny").run(client)
    table = sweep.table()
    claims = [row for row in table if "verdict" in row]
    assert [(row["tasks"], row["name"]) for row in claims] == [(t, c) for t in (40, 60) for c in ("better", "small")]
    run = open_run(tmp_path / "tiny" / sweep.points[1].key)
    assert run.config["seed"] == 3
    assert run.settings.seeds == 2
    assert (run.settings.tasks, run.settings.training.steps) == (60, 8)
    assert run.claims[0]["value"] == claims[2]["value"]
    assert {row["low"] for row in table if "verdict" not in row} == {None}  # of two networks
    numbers = {(row["tasks"], row["name"]): row["value"] for row in table if "verdict" not in row}
    assert numbers[60, "comparison: mse trained"] == pytest.approx(run.results["comparison"].mean[:2].mean())
    assert numbers[60, "weights: norm"] == pytest.approx(run.results["weights"]["norm"].mean())


def test_finished_points_are_skipped_and_new_ones_added(functions, client, capsys):
    arguments = ["sweep", functions, "--seeds", "0:2", "--out", "grows"]
    Sweep(functions, {"size": [1]}, seeds="0:2", out="grows").run(client)
    times = {file: file.stat().st_mtime_ns for file in Path("grows").glob("*/results/numbers.npz")}
    assert main([*arguments, "--set", "size=1,2", "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("2 runs: 1 finished, 0 begun, 1 new\nestimated hours: ")
    Sweep(functions, {"size": [1, 2]}, seeds="0:2", out="grows").run(client)
    assert {file: file.stat().st_mtime_ns for file in times} == times
    assert len(times) == 1
    assert main(["sweep", "--resume", "grows", "--format", "json"]) == 0  # starts no workers
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads(Path("grows/table.json").read_text())
    assert [row["size"] for row in found["rows"]] == [1, 1, 2, 2]
    with open("grows/table.csv") as file:
        assert [row["size"] for row in csv.DictReader(file)] == ["1", "1", "2", "2"]


@pytest.mark.parametrize("lost", [["finished.json", "report.html"], ["report.html"]])
def test_a_point_that_was_killed_while_it_was_reported_is_reported_again(functions, client, lost):
    sweep = in_this_process(Sweep(functions, {"size": [1]}, seeds="0:2", out="whole"))
    folder = sweep.out / sweep.points[0].key
    whole = tiny_study.contents(folder)
    for name in lost:
        (folder / name).unlink()
    assert sweep.plan()["finished"] == 0
    sweep.run(client)
    assert tiny_study.contents(folder) == whole
    assert (folder / "report.html").exists()


def metrics_of(folder, change):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in change(rows)))


def rewritten(folder, **changes):
    (folder / "config.json").write_text(json.dumps(json.loads((folder / "config.json").read_text()) | changes))


DAMAGES = {
    "fewer seeds": lambda here, other: rewritten(here, seeds=1),
    "numbers exchanged": lambda here, other: [shutil.copytree(other, here, dirs_exist_ok=True)],
    "timing": lambda here, other: (here / "timing.json").write_text("{"),
    "arrays": lambda here, other: (here / "results/numbers.npz").write_bytes(b"PK"),
    "arrays removed": lambda here, other: (here / "results/numbers.npz").unlink(),
    "numbers": lambda here, other: metrics_of(here, lambda rows: [row | {"error": 5.0} for row in rows]),
    "numbers removed": lambda here, other: metrics_of(here, lambda rows: rows[1:]),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_no_table_holds_a_point_that_was_changed(functions, damage):
    sweep = in_this_process(Sweep(functions, {"size": [1, 2]}, seeds="0:2", out="damaged"))
    assert len(sweep.table()) == 4
    here, other = (sweep.out / point.key for point in sweep.points)
    DAMAGES[damage](here, other)
    assert {row["size"] for row in sweep.table()} == {2}
    assert sweep.plan()["finished"] == 1
    with contextlib.suppress(RunDirectoryError):  # what is removed can be computed again
        in_this_process(sweep)
        assert len(sweep.table()) == 4


ROW = {"training": "numbers", "step": 0, "seed": 1, "error": 2.0, "seed squared": 1}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (ROW | {"seed": 0}, "must hold one row for each training, step and seed, but line 2 is another for one"),
        (ROW | {"seed": 7}, "must hold finite numbers of seeds 0:2, but holds"),
        (ROW | {"error": None}, "must hold finite numbers of seeds 0:2, but holds"),
    ],
)
def test_an_interrupted_point_counts_no_foreign_numbers(functions, row, said):
    sweep = in_this_process(Sweep(functions, {"size": [1]}, seeds="0:2", out="interrupted"))
    folder = sweep.out / sweep.points[0].key
    for name in ("finished.json", "claims.json", "report.html", "results/numbers.npz", "results/index.json"):
        (folder / name).unlink()
    metrics_of(folder, lambda rows: [rows[0], row])
    with pytest.raises(RunDirectoryError, match=said):
        in_this_process(sweep)
    metrics_of(folder, lambda rows: rows[:1])
    assert len(in_this_process(sweep).table()) == 2


def test_an_unfinished_point_of_a_study_begins_again_if_its_code_changed(tmp_path):
    source = Path(tiny_study.__file__).read_text()
    study = tmp_path / "own_study.py"
    study.write_text(source)
    sweep = in_this_process(Sweep(f"{study}:STUDY", out=tmp_path / "sweep"))
    folder = sweep.out / sweep.points[0].key
    first = open_run(folder)
    for name in ("finished.json", "claims.json"):
        (folder / name).unlink()
    study.write_text(f"{source}\n# changed\n")
    sys.modules.pop("own_study", None)
    in_this_process(Sweep(f"{study}:STUDY", out=tmp_path / "sweep"))
    again = open_run(folder)
    assert again.is_complete
    assert (again.config["id"], again.config["code"]) != (first.config["id"], first.config["code"])


def test_a_sweep_tells_of_points_of_another_mesascope(functions, client, capsys):
    sweep = in_this_process(Sweep(functions, {"size": [1]}, seeds="0:1", out="older"))
    config = sweep.out / sweep.points[0].key / "config.json"
    own = json.loads(config.read_text())
    own["versions"]["mesascope"] = "0.0.1"
    config.write_text(json.dumps(own))
    sweep.run(client)
    assert (
        "1 finished point of 1 was made by another version of mesascope: pass another --out" in capsys.readouterr().err
    )


def test_the_page_shows_curves_heat_maps_and_the_table(functions, tmp_path):
    for settings, caption in (
        ({"size": [1, 2]}, "error over size; bars are intervals at 99 %."),
        ({"size": [1, 2], "kind": ["a", "b"]}, "error over size and kind."),
        ({"size": [1, 2], "kind": ["a", "b"], "more": [0, 1]}, "error over kind and more."),
    ):
        sweep = in_this_process(Sweep(functions, settings, seeds="0:8", out=f"page-{len(settings)}"))
        sweep.run()  # everything is done, so that no worker starts
        page = Path(f"page-{len(settings)}/report.html").read_text()
        assert caption in page
        assert "seed squared" in page
        assert "http" not in page.replace("http://www.w3.org", "")


def test_a_point_that_fails_is_tried_again_and_then_listed(functions, client):
    with pytest.warns(UserWarning, match=r"1 of 2 points failed, the first one: it raises ValueError: three is too"):
        sweep = Sweep(functions, {"size": [2, 3]}, out="fails").run(client, retries=2)
    assert list(sweep.failed.values()) == ["it raises ValueError: three is too many."]
    log = Path(f"fails/logs/{sweep.points[1].key}.txt").read_text()
    assert log.count("ValueError: three is too many") == 3
    assert json.loads(Path("fails/table.json").read_text())["failed"][0]["size"] == 3
    assert "Failed: size 3, seeds 0:1: it raises ValueError" in Path("fails/report.html").read_text()
    with pytest.warns(UserWarning, match="1 of 1 point failed"):
        sweep = Sweep("own_functions.py:wrong", {"size": [2]}, out="nan").run(client, retries=0)
    assert "must return finite numbers by name" in next(iter(sweep.failed.values()))
    with pytest.raises(ArgumentError, match=r"leaves must return, but calls sys\.exit\('no license'\): raise an error"):
        in_this_process(Sweep("own_functions.py:leaves", {"size": [2]}, out="leaves"))


def test_a_worker_that_dies_is_replaced_and_a_point_that_kills_workers_is_listed(functions, tmp_path, monkeypatch):
    monkeypatch.setattr("mesascope.sweeps.crew._DEATHS", 2)
    once = {"size": [2], "dies": [str(tmp_path / "died")], "wait": [0.01]}
    with connected(1) as own:
        assert not Sweep(functions, once, out="once").run(own, retries=0).failed
        with pytest.warns(UserWarning, match="1 of 1 point failed"):
            sweep = Sweep(functions, {"size": [2], "always": [1]}, out="always").run(own, retries=1)
    assert "2 workers in a row died without any" in next(iter(sweep.failed.values()))


def test_kills_of_worker_and_driver_lose_nothing(tmp_path):
    """A few of the kills of tests/torture_sweep.py."""
    out = tmp_path / "whole"
    axes = {"size": [1, 2, 3], "noise": [0, 0.5]}
    whole = in_this_process(Sweep(torture_sweep.FUNCTION[0], axes, seeds="0:4", out=out)).run()
    torture = torture_sweep.Torture(torture_sweep.FUNCTION, tmp_path, random.Random(0), lasts=2.0)
    right = torture_sweep.contents(out)
    assert len(whole.table()) == 6
    torture.killed(right, Counter(worker=1, driver=1))
    assert sum(torture.kills.values()) == 2


def test_ctrl_c_lets_running_points_reach_a_checkpoint(functions, tmp_path):
    process = sweeping(
        functions, "--set", "size=1", "--set", "wait=0.4", "--seeds", "0:50,50:100,100:150", "--out", "c"
    )
    started = time.monotonic()
    while len(list(Path("c").glob("*/metrics.jsonl"))) < 2:
        assert time.monotonic() < started + 60
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "running points stop at their next checkpoint" in err
    assert err.endswith("the command was interrupted: continue by mesascope sweep --resume c.\n")
    rows = [file.read_text().splitlines() for file in Path("c").glob("*/metrics.jsonl")]
    assert len(rows) == 2  # the third point has not begun
    assert sum(map(len, rows)) < 60  # of a hundred


def test_a_stop_ends_a_study_at_a_checkpoint_from_which_it_continues(tmp_path):
    """Workers run points outside their main threads, where no signal arrives."""
    from mesascope.progress import STOP

    whole, stopped = (Sweep(STUDY, seeds="0:2", out=tmp_path / name) for name in ("whole", "stopped"))
    STOP.set()
    try:
        with pytest.raises(KeyboardInterrupt):
            in_this_process(stopped)
    finally:
        STOP.clear()
    key = stopped.points[0].key
    assert [path.name for path in (stopped.out / key / "checkpoints" / "layer").iterdir()] == ["1"]
    in_this_process(stopped), in_this_process(whole)
    assert tiny_study.contents(stopped.out) == tiny_study.contents(whole.out)


def test_a_sweep_executes_no_code_of_its_folder(functions):
    sweep = in_this_process(Sweep(functions, {"size": [1]}, out="own"))
    sweep.run()
    inside = Path("own/own_functions.py")
    inside.write_text("raise SystemExit")
    text = Path("own/sweep.json").read_text()
    Path("own/sweep.json").write_text(text.replace(str(Path("own_functions.py").resolve()), str(inside.resolve())))
    with pytest.raises(RunDirectoryError, match=r"sweep\.json must name a task outside the folder of the sweep"):
        Sweep.resume("own")


def test_an_own_scheduler_and_its_workers_are_used(functions, tmp_path):
    base = [sys.executable, "-m"]
    scheduler = subprocess.Popen(
        [*base, "distributed.cli.dask_scheduler", "--port", "0", "--no-dashboard", "--scheduler-file", "file.json"],
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    worker = subprocess.Popen(
        [*base, "distributed.cli.dask_worker", "--scheduler-file", "file.json", "--no-dashboard", "--no-nanny"],
        stderr=subprocess.DEVNULL,
    )
    try:
        while not Path("file.json").exists():
            time.sleep(0.05)
        address = json.loads(Path("file.json").read_text())["address"]
        assert main(["sweep", functions, "--set", "size=1,2", "--scheduler", address, "--out", "far"]) == 0
        assert len(json.loads(Path("far/table.json").read_text())["rows"]) == 4
    finally:
        for process in (worker, scheduler):
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("queue", "kind", "own"),
    [
        ("slurm", "SLURMCluster", {"account": "physics", "walltime": "02:00:00"}),
        ("pbs", "PBSCluster", {"queue": "long", "walltime": "02:00:00"}),
        ("lsf", "LSFCluster", {"project": "physics", "walltime": "02:00"}),
    ],
)
def test_job_scripts_are_those_of_dask_jobqueue(queue, kind, own, monkeypatch):
    jobqueue = pytest.importorskip("dask_jobqueue")
    from mesascope.sweeps.workers import queue_cluster

    monkeypatch.setattr(f"dask_jobqueue.{kind}.adapt", lambda self, **limits: limits)  # there is no queue here
    with queue_cluster(queue, 3, 1, [f"{name}={value}" for name, value in own.items()]) as cluster:
        script = cluster.job_script()
    exports = [f"export {name}_NUM_THREADS=1" for name in ("OMP", "MKL", "OPENBLAS")]
    with getattr(jobqueue, kind)(
        cores=1,
        processes=1,
        memory="4GB",
        job_script_prologue=exports,
        scheduler_options={"dashboard_address": ":0"},
        **own,
    ) as cluster:
        theirs = cluster.job_script()

    def but_address(text):
        return [line for line in text.splitlines() if "tcp://" not in line]

    assert but_address(script) == but_address(theirs)
    assert "export OMP_NUM_THREADS=1" in script


@pytest.mark.parametrize(("options", "memory"), [([], "7G"), (["memory=2GB"], "2G"), (["config-name=other"], "9G")])
def test_memory_comes_from_the_options_and_then_from_the_configuration_of_dask_jobqueue(options, memory, monkeypatch):
    pytest.importorskip("dask_jobqueue")
    from dask import config

    from mesascope.sweeps.workers import queue_cluster

    monkeypatch.setattr("dask_jobqueue.SLURMCluster.adapt", lambda self, **limits: limits)
    slurm = config.get("jobqueue.slurm")
    own = {"jobqueue.slurm.memory": "7GB", "jobqueue.other": {**slurm, "memory": "9GB"}}
    with config.set(own), queue_cluster("slurm", 1, 1, options) as cluster:
        assert f"#SBATCH --mem={memory}" in cluster.job_script()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of dask-jobqueue's half-made cluster
def test_options_of_a_queue_that_are_wrong_are_refused():
    pytest.importorskip("dask_jobqueue")
    from mesascope.sweeps.workers import queue_cluster

    for options in (["nonsense=1"], ["cores=many"]):
        with pytest.raises(ArgumentError, match=r"--queue-option must be .* \(.*\): correct them"):
            queue_cluster("slurm", 1, 1, options)
    with pytest.raises(ArgumentError, match="--queue-option must be name=value, but is 'walltime'"):
        queue_cluster("slurm", 1, 1, ["walltime"])


TWO = '''
import dataclasses

import tiny_study
from mesascope import lenses, nets, tasks


def measure(lab, settings):
    """Trainings that depend on others, and on what was measured of them."""
    config = nets.InContextRegressorConfig(nets.TransformerConfig(width=4, init_scale=0.02))
    look = lambda net: {"mse": 1.0}
    for size in (3, 5):
        family = tasks.LinearRegression(x_scale=size, d_in=3)
        trained = lab.train(f"size-{size}", config, family, settings.training, watch=look)
        found = lab.stage(f"compared-{size}", lenses.measure_learners, {"a": trained}, [], lab.draw(family, 9, "e"))
    family = tasks.LinearRegression(x_scale=4, d_in=3)
    lab.train("again", config, family, settings.training, start=("size-5", trained), watch=look)
    noise = round(abs(float(found.mean[0])), 1)
    noisy = tasks.LinearRegression(x_scale=4, d_in=3, noise=noise)
    lab.train("measured", config, noisy, settings.training)
    tiny_study.measure(lab, settings)


STUDY = dataclasses.replace(tiny_study.STUDY, name="two", measure=measure)
'''


def test_trainings_side_by_side_leave_the_bytes_of_one_process(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(tiny_study.__file__).parent), *sys.path]))
    Path("two.py").write_text(TWO)
    options = ["--training.steps", "12", "--training.checkpoint-every", "5", "--device", "cpu"]
    assert main(["run", "two.py:STUDY", *options, "--out", "alone"]) == 0
    assert main(["run", "two.py:STUDY", *options, "--out", "side", "--workers", "2"]) == 0
    said = capsys.readouterr().err
    assert "training side by side: size-3, size-5" in said
    assert "training again: taken over from side/parts/again" in said
    assert tiny_study.contents("side") == tiny_study.contents("alone")
    assert not Path("side/parts").exists()
    assert main(["run", "two.py:STUDY", "--resume", "side", "--workers", "2"]) == 0


def test_one_process_goes_on_from_what_a_killed_worker_had_trained(functions, monkeypatch, capsys):
    study = dataclasses.replace(from_file(STUDY), defined_in=STUDY)
    alone, side = (new_run(study, "quick", out=name) for name in ("alone", "side"))
    run_study(study, alone.settings, alone)
    save = TrainingCheckpoints.save

    def killed(self, step, tensors):
        save(self, step, tensors)
        if step == 6:
            raise KeyboardInterrupt

    monkeypatch.setattr(TrainingCheckpoints, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        train_part({"run": "side", "name": "layer"})
    monkeypatch.setattr(TrainingCheckpoints, "save", save)
    capsys.readouterr()
    run_study(study, side.settings, side)
    said = capsys.readouterr().err
    assert "training layer: taken over from side/parts/layer" in said
    assert "continues after step 6 of 8" in said
    assert tiny_study.contents("side") == tiny_study.contents("alone")


def test_mistakes_end_in_a_sentence(functions, tmp_path, monkeypatch):
    for make, said in {
        lambda: Sweep("no-such"): "the study must be one of",
        lambda: Sweep("nowhere.py:f"): "nowhere.py must be a Python file",
        lambda: Sweep("json:nothing"): "json:nothing cannot be imported",
        lambda: Sweep("one-step", {"x_scal": [1]}): "did you mean 'x_scale'",
        lambda: Sweep("one-step", {"training.stps": [1]}): "a setting of training must be one of",
        lambda: Sweep("one-step", {"x_scale": [0]}): "x_scale must be greater than 0, but is 0",
        lambda: Sweep("one-step", {"x_scale": []}): "x_scale must have a non-empty list of values",
        lambda: Sweep("one-step", {"x_scale": [1, 1]}): "x_scale must have different values",
        lambda: Sweep("one-step", {"seeds": [1]}): "seeds must be blocks of seeds",
        lambda: Sweep("one-step", preset="medium"): "preset must be one of",
        lambda: Sweep("one-step", seeds="3"): "seeds must be blocks first:end",
        lambda: Sweep("one-step", seeds="0:5,4:6"): "seeds must be blocks first:end without overlap",
        lambda: Sweep(functions, {"value": [1]}): "a setting must not be called name",
        lambda: Sweep.resume(tmp_path): "sweep.json must exist",
        lambda: _setting("n-context"): "--set must be name=value,value",
        lambda: connected(2, scheduler="tcp://127.0.0.1:9", queue="slurm").__enter__(): "queue must be left out",
        lambda: connected(1, queue="slurm").__enter__(): "queue slurm must have its command sbatch",
        lambda: connected(0).__enter__(): "workers must be at least 1",
    }.items():
        with pytest.raises(MesascopeError, match=said):
            make()
    with pytest.raises(ArgumentTypeError, match=r"own_functions\.py:time must be a study or a function"):
        Sweep("own_functions.py:time")
    sweep = Sweep(functions, {"size": [1]}, out="locked")
    sweep.out.mkdir()
    with locked(sweep.out), pytest.raises(RunDirectoryError, match="must be written by one process at a time"):
        sweep.run()
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MesascopeError, match=r"distributed must be installed for many workers.*'\.\[cluster\]'"):
        connected(2).__enter__()


def test_the_name_is_public():
    assert mesascope.Sweep is Sweep
