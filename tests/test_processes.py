"""Language models that two processes train, as torchrun starts them: the losses of one, and a run that goes on."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import children
import psutil
import pytest
import torch

from mesascope.cli import main
from mesascope.errors import ArgumentError
from mesascope.language import LanguageTraining, load_language_model, new_language_run, prepare
from mesascope.training import ModuleState, Training, local_batch

# After more of them, what is rounded otherwise has grown beyond the bounds below for most seeds.
STEPS = 12
OPTIONS = (
    "--width=16", "--n-heads=2", "--mlp=2", "--context=32", "--dropout=0",
    "--dpfp=3",  # with 1 some gradients are next to nothing, and Adam makes much of how they are rounded
    "--accumulate=2", "--device=cpu", "--validation-windows=8", "--training.warmup-steps=5", "--training.batch=8",
    "--training.evaluate-every=4", "--training.checkpoint-every=8",
)  # fmt: skip
ALONE = ["language", "train"]
TOGETHER = [
    sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m",
    "mesascope", "language", "train",
]  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "songs.txt").write_text("|".join(f"{n} green bottles hanging on the wall. " * 8 for n in range(100)))
    prepare([folder / "songs.txt"], folder / "tokens", delimiter="|", validation=0.1)
    return folder / "tokens"


def command(program, corpus, out, *others, steps=STEPS):
    layers = "softmax,mesa,delta" if steps == STEPS else "softmax,linear,delta"
    about = ["--corpus", str(corpus), "--out", str(out), "--training.steps", str(steps), "--layers", layers]
    return [*map(str, program), *about, *OPTIONS, *others]


def run(line):
    """Alone, in this process."""
    assert main(line) == 0


def together(corpus, out, *others):
    """Two processes as torchrun starts them, but at once; what both have printed."""
    both = two_of(command(ALONE, corpus, out, *others))
    codes = [one.wait() for one in both]
    return codes, *("".join(part) for part in zip(*(one.output() for one in both), strict=True))


def two_of(line):
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    return children.two_of(["-m", "mesascope", *line], port)


def losses(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return torch.tensor([[row["step"], row["loss"], row["in_context_score"]] for row in rows])


@pytest.fixture(scope="module")
def alone(corpus, tmp_path_factory, unchecked_module):
    folder = tmp_path_factory.mktemp("alone") / "run"
    run(command(ALONE, corpus, folder))
    return folder


# Differences of rounding would grow over so many steps, at a high rate or in mesa layers.
LONG, RARELY = 40, ["--training.evaluate-every", "20", "--training.learning-rate", "1e-4"]


@pytest.fixture(scope="module")
def long_alone(corpus, tmp_path_factory, unchecked_module):
    folder = tmp_path_factory.mktemp("long") / "run"
    run(command(ALONE, corpus, folder, *RARELY, steps=LONG))
    return folder


def close(folder, other):
    torch.testing.assert_close(losses(folder), losses(other), rtol=1e-5, atol=1e-5)
    (one, _), (two, _) = load_language_model(folder), load_language_model(other)
    torch.testing.assert_close(one.state_dict(), two.state_dict(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shard", [pytest.param("--no-shard", marks=pytest.mark.slow), "--shard"])
def test_two_processes_train_as_one_does(corpus, alone, tmp_path, shard):
    codes, out, err = together(corpus, tmp_path / "run", shard)
    assert codes == [0, 0], err
    assert out.count("run directory") == 1
    close(tmp_path / "run", alone)
    assert losses(alone)[-1, 1] < 0.9 * losses(alone)[0, 1]


@pytest.mark.parametrize("started_by", ["fork", pytest.param("torchrun", marks=pytest.mark.slow)])
def test_a_killed_worker_leaves_a_run_that_goes_on(started_by, corpus, long_alone, tmp_path, capfd, unchecked):
    """In two processes with weights split over them, and then in one; whole weights are saved as those of one are."""
    folder = tmp_path / "run"
    if started_by == "fork":
        started, killed = two_of(command(ALONE, corpus, folder, "--shard", *RARELY, steps=LONG))
    else:
        started, killed = subprocess.Popen(
            command(TOGETHER, corpus, folder, "--shard", *RARELY, steps=LONG),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"},
        ), None  # fmt: skip
    checkpoints = folder / "checkpoints" / "model"
    try:
        wait_for(lambda: _newest(checkpoints) > 0, started)
        killed = killed or psutil.Process(started.pid).children()[-1]
        killed.send_signal(signal.SIGKILL)
        assert started.wait(60) != 0
    finally:
        started.kill()
    left = _newest(checkpoints)
    assert left < LONG
    capfd.readouterr()
    run([*ALONE, "--resume", str(folder)])
    steps = [int(step) for step in re.findall(r"step (\d+)/", capfd.readouterr().err)]
    assert left <= min(steps)
    assert max(steps) == LONG
    torch.testing.assert_close(losses(folder)[:, :2], losses(long_alone)[:, :2], rtol=1e-4, atol=1e-4)


def _newest(checkpoints):
    """Step of the newest checkpoint; 0 if there is none yet."""
    if not checkpoints.is_dir():
        return 0
    return max((int(path.name) for path in checkpoints.iterdir() if path.name.isdecimal()), default=0)


def wait_for(done, process, seconds=120):
    end = time.monotonic() + seconds
    while not done():
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_batch_that_does_not_split_evenly_is_refused(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 3)
    with pytest.raises(ArgumentError, match="batch must be a multiple of the 3 processes, but is 8"):
        local_batch(torch.zeros(8, 2))


def test_an_average_of_split_weights_is_refused(monkeypatch):
    monkeypatch.setattr("mesascope.training.module_state.is_dtensor", lambda weight: True)
    with pytest.raises(ArgumentError, match="average must be None where weights are split over processes"):
        ModuleState(torch.nn.Linear(1, 1), lambda f, x: f(x).mean(), Training(1, average=1.0))


def test_what_the_first_process_refuses_it_says_and_the_rest_end_without_a_word(corpus, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    codes, _, err = together(corpus, tmp_path / "run")
    assert codes == [2, 2]
    assert err.count("mesascope: ") == 1
    assert "Connection" not in err
    assert "distributed.broadcast" not in err


def test_a_batch_that_processes_cannot_share_is_refused_before_there_is_a_run(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    settings = LanguageTraining(corpus=str(corpus), training=Training(2, 6), accumulate=2, context=32)
    with pytest.raises(ArgumentError, match="batch must be a multiple of 4, 2 parts in 2 processes, but is 6: choose"):
        new_language_run(settings, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_without_a_folder_several_processes_are_refused(corpus, monkeypatch, capsys):
    monkeypatch.setattr("mesascope.training.distributed_context", lambda: contextlib.nullcontext(True))
    line = command(ALONE, corpus, "x")
    at = line.index("--out")
    assert main(line[:at] + line[at + 2 :]) == 2
    assert "out must be given where several processes train" in capsys.readouterr().err
