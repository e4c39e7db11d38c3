"""Parallel trainings of one run: each in a worker and a run folder of its own. The run then takes them over."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mesascope.errors import RunDirectoryError
from mesascope.progress import tell_progress
from mesascope.runs import Run
from mesascope.runs.checkpoints import TrainingCheckpoints
from mesascope.runs.run import PARTS
from mesascope.studies import resume_run
from mesascope.studies.lab import Lab
from mesascope.studies.missing import Missing
from mesascope.studies.reuse import Finished, Watch
from mesascope.study import Study
from mesascope.sweeps.crew import Crew, Task
from mesascope.sweeps.workers import connected
from mesascope.text import counted
from mesascope.training import Ensemble, Training

# Fields of a config that `Run.create` sets.
_OWN = ("schema", "kind", "id", "hash")


def train_side_by_side(study: Study, settings: Any, run: Run, workers: int) -> None:
    """Train the networks of a new or interrupted run in worker processes; `run_study` then takes them over.

    Trainings that need networks of other trainings follow in a later round. Trainings that need measurements run in
    `run_study`. Numbers are byte-identical to those of one process with the same number of torch threads.

    Raises:
        RunDirectoryError: a training failed.
        KeyboardInterrupt: after Ctrl-C, once all running trainings have reached a checkpoint.
    """
    with run.lock():
        run.move_study(study.defined_in)
        names = [] if run.is_complete else _open(study, settings, run)
        if not names:
            return
        with connected(workers) as client:
            before: list[str] = []
            while names and names != before:
                tell_progress(f"training side by side: {', '.join(names)}")
                _train(run, names, client)
                before, names = names, _open(study, settings, run)


def _train(run: Run, names: Sequence[str], client: Any) -> None:
    parts = run.path.resolve() / PARTS
    tasks = {
        f"{index}": Task(f"training {name}", {"run": str(parts.parent), "name": name}, parts / name,
                         parts / "logs" / f"{name}.txt")
        for index, name in enumerate(names)
    }  # fmt: skip
    named: list[str] = []

    def show(crew: Crew) -> None:
        for key in crew.done[len(named) :]:
            tell_progress(f"{tasks[key].label}: done, {counted(len(tasks) - len(crew.done), 'training')} left")
            named.append(key)

    crew = Crew(train_part, tasks, show=show)
    crew.work_on(client)
    for key, sentence in crew.failed.items():
        raise RunDirectoryError(f"{tasks[key].label} must finish, but failed: {sentence}")


def train_part(record: Mapping[str, Any]) -> None:
    """Do one training of a run, in a run folder of its own. Workers call this."""
    from mesascope.ops.products import exact_convolutions, exact_products
    from mesascope.training import keep_freed_memory

    keep_freed_memory()
    study, settings, whole = resume_run(record["run"])
    folder = whole.path / PARTS / record["name"]
    config = {name: value for name, value in whole.config.items() if name not in _OWN}
    if "reuse" in config:
        config["reuse"] = os.path.relpath((whole.path / config["reuse"]).resolve(), folder)
    run = Run.open(folder) if (folder / "config.json").exists() else Run.create(folder, "study", config)
    with run.lock(), exact_products(), exact_convolutions():
        if run.config["device"] != whole.config["device"]:  # the run was resumed on another device
            run.move_device(whole.config["device"])
        lab = _PartLab(run, settings, whole, record["name"])
        with contextlib.suppress(_TrainedError):
            study.measure(lab, settings)


def _open(study: Study, settings: Any, run: Run) -> list[str]:
    """Names of the trainings that can start now, in the order of the study."""
    lab = _PartLab(run, settings, run, "")
    with contextlib.suppress(Exception):  # the run itself raises the same error
        study.measure(lab, settings)
    return list(dict.fromkeys(lab.open))


class _TrainedError(Exception):
    """The training of this part is done."""


class _PartLab(Lab):
    """A lab that trains only ``wanted``, loads finished trainings, and measures nothing."""

    def __init__(self, run: Run, settings: Any, whole: Run, wanted: str) -> None:
        super().__init__(run, settings.seeds)
        self.whole, self.wanted, self.open = whole, wanted, list[str]()

    def stage(self, name: str, compute: Callable[..., Any], *arguments: Any) -> Any:
        return Missing(len(self.seeds))

    def resumed(
        self, name: str, record: Any, training: Training, watches: Sequence[Watch], go: Callable[..., Ensemble],
        finished: Finished | None = None,
    ) -> Any:  # fmt: skip
        if name == self.wanted:
            super().resumed(name, record, training, watches, go, finished)
            raise _TrainedError
        own, part = (path / "checkpoints" / name for path in (self.whole.path, self.whole.path / PARTS / name))
        for folder in (own, part):
            checkpoints = TrainingCheckpoints(folder, record, self.device, keep=training.keep)
            if checkpoints.steps()[-1:] == [training.steps]:
                return go(lambda step, networks: None, checkpoints, lambda step, metrics: None)
        if not Path(own).exists():  # otherwise the run itself continues it
            self.open.append(name)
        return Missing(len(record["seeds"]))
