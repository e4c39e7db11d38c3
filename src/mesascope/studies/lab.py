"""The bench a study works at: trainings and measurements that survive a kill."""

from __future__ import annotations

import copy
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, overload

import torch

from mesascope.errors import ArgumentError, RunDirectoryError
from mesascope.evidence import Arrays, Stage
from mesascope.records import to_record
from mesascope.runs import Run, open_run
from mesascope.runs.checkpoints import TrainingCheckpoints
from mesascope.runs.results import record_hash
from mesascope.shapes import Tensor
from mesascope.streams import stream
from mesascope.tasks import Episode, Family, SequenceFamily
from mesascope.training import Ensemble, ProgressBar, Training, half_mse, train

__all__ = ["Lab"]

# What to log of one network while training.
Watch = Callable[[Any], Mapping[str, float]]


class Lab:
    """What a study uses of a run: its seeds, its device, `train`, `stage` and `draw`.

    Whatever was finished before an interruption is loaded, and what was not goes on from its last checkpoint, so that
    a study is written as if it ran in one go.
    """

    def __init__(self, run: Run, seeds: int) -> None:
        self.run = run
        self.seed: int = run.config["seed"]
        self.seeds = [self.seed + index for index in range(seeds)]
        self.device = torch.device(run.config["device"])
        self._trained: dict[str, Ensemble] = {}
        self._taken: set[str] = set()  # names of the trainings that were taken over

    @overload
    def draw(self, family: Family, tasks: int, name: str) -> Episode: ...
    @overload
    def draw(self, family: SequenceFamily, tasks: int, name: str) -> Tensor: ...
    def draw(self, family: Family | SequenceFamily, tasks: int, name: str) -> Episode | Tensor:
        """Fresh tasks for a use of this name: each name has tasks of its own, and so has each seed of a run."""
        return family.sample(tasks, self.stream(name))

    def stream(self, name: str, step: int = 0) -> torch.Generator:
        """The generator of a use of this name."""
        return stream(self.seed, name, step, self.device)

    def train(
        self,
        name: str,
        network: Any,
        family: Family | SequenceFamily,
        training: Training,
        *,
        seeds: Sequence[int] | None = None,
        loss: Callable[[Any, Any], Tensor] = half_mse,
        watch: Watch | Sequence[Watch] | None = None,
        start: tuple[str, Sequence[Any]] | None = None,
    ) -> list[Any]:
        """The networks of ``network.build`` trained on ``family``, one a seed, or loaded where that was done already.

        What they are built from, the family, the training, the seeds and the name of the start are the training's
        identity: two calls with equal ones share a training.

        Args:
            name: of the training, in metrics and checkpoints.
            network: the registered config of the networks.
            loss: see `mesascope.train`; its name is part of the identity.
            start: what networks start from in place of ``network.build``, in words and one a seed.
            watch: numbers to log of each network while training, or one such function a seed; stage ``name`` holds
                them by seed and step.
        """
        seeds = list(seeds or self.seeds)
        identity = {"network": network, "family": family, "training": training, "seeds": seeds}
        if loss is not half_mse:
            identity["loss"] = loss.__name__
        build = network.build
        if start is not None:
            identity["start"], build = start[0], _one_after_another(start[1])
        record = to_record(identity)
        key = record_hash(record)
        if key not in self._trained:
            with self._timed(f"train {name}"):
                self._trained[key] = self._train(name, build, family, training, record, seeds, watch, loss)
        if watch is not None:
            self.stage(name, lambda: self.run.curves(name))
        return self._trained[key].members()

    def stage(self, name: str, compute: Callable[[], Stage | Mapping[str, Any]]) -> Stage:
        """The arrays of ``name``, computed where they are missing, or were computed by other code or settings.

        A mapping stands for `Arrays` whose first axis is the seed, and numbers.
        """
        results = self.run.results
        if not results.is_current(name):
            print(f"measuring: {name}", file=sys.stderr, flush=True)
            with self._timed(name):
                found = compute()
                results.save(name, found if isinstance(found, Stage) else by_seed(found))
        return results[name]

    def _train(self, name, build, family, training, record, seeds, watch, loss) -> Ensemble:
        checkpoints = TrainingCheckpoints(self.run.path / "checkpoints" / name, record, self.device)
        watches = watch if isinstance(watch, Sequence) else [watch] * len(seeds) if watch else []
        found = checkpoints.load()
        taken = found is None and self._take_over(name, checkpoints, training.steps)
        if taken:
            found = checkpoints.load()
        if found is None:
            self._require_no_progress(name, training, checkpoints.folder)
        else:
            self._require_metrics(name, training, found[0], seeds[: len(watches)])
        self.run.rewind_metrics(name, found[0] if found else -1)

        def looked(step: int, ensemble: Ensemble) -> list[dict[str, Any]]:
            numbers = [look(member) for look, member in zip(watches, ensemble.members(), strict=False)]
            own = zip(seeds, numbers, strict=False)
            return [{"training": name, "step": step, "seed": seed, **_finite(row)} for seed, row in own]

        def log(step: int, ensemble: Ensemble) -> None:
            self.run.append_metrics(looked(step, ensemble))

        with ProgressBar(f"training {name}", training.steps) as bar:
            ensemble = train(
                build, family, training, seeds, loss=loss, device=self.device, evaluate=log,
                checkpoints=checkpoints, observe=bar,
            )  # fmt: skip
        if taken:
            self._require_logged(name, looked(training.steps, ensemble))
        return ensemble

    def _take_over(self, name: str, checkpoints: TrainingCheckpoints, steps: int) -> bool:
        """Copy a finished training of the same record, and what it logged, from the run to reuse, if it has one."""
        if "reuse" not in self.run.config:
            return False
        # A start is recorded by its name alone: it is the same where that training was taken over, too.
        if checkpoints.config.get("start") not in (None, *self._taken):
            return False
        other = open_run(self.run.config["reuse"])
        there = checkpoints.finished_like(other.path / "checkpoints", steps)
        if there is None or (found := there.load()) is None:
            return False
        print(f"training {name}: taken over from {there.folder}", file=sys.stderr, flush=True)
        self.run.rewind_metrics(name, -1)
        self.run.append_metrics({**row, "training": name} for row in other.metrics(there.folder.name))
        checkpoints.save(*found)
        self._taken.add(name)
        return True

    def _require_logged(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Refuse curves of a training taken over that are of other numbers, or of other tasks, than are logged here."""
        logged = {(row["step"], row["seed"]): row for row in self.run.metrics(name)}
        for row in rows:
            other = logged[row["step"], row["seed"]]
            if set(row) != set(other) or not all(_close(row[key], other[key]) for key in row if key != "training"):
                raise ArgumentError(
                    f"reuse must name a run that logs of {name} what this one does, but {self.run.config['reuse']} "
                    f"logged {dict(other)} where this gives {dict(row)}: start a new run without it."
                )

    def _require_no_progress(self, name: str, training: Training, folder: Path) -> None:
        """Refuse to train again what had come past its first checkpoint: what was logged would be lost."""
        last = max((row["step"] for row in self.run.metrics(name)), default=-1)
        if self.run.is_finished or last > training.checkpoint_every:
            raise RunDirectoryError(
                f"{folder} must hold the checkpoints of what was trained, but is missing (published runs leave them "
                f"out): restore it, or {self.run.afresh}."
            )

    def _require_metrics(self, name: str, training: Training, done: int, seeds: Sequence[int]) -> None:
        """Refuse to go on where metrics up to the last checkpoint were lost: curves would have a hole."""
        steps = {0, *range(0, done + 1, training.evaluate_every), *([done] if done == training.steps else [])}
        logged = {(row["step"], row["seed"]) for row in self.run.metrics(name)}
        lost = sorted({(step, seed) for step in steps for seed in seeds} - logged)
        if lost:
            raise RunDirectoryError(
                f"{self.run.path / 'metrics.jsonl'} must hold what {name} logged up to its checkpoint at step {done}, "
                f"but lacks step {lost[0][0]} of seed {lost[0][1]}: restore it, or start a new run."
            )

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            self.run.add_time(stage, time.monotonic() - start)


def _one_after_another(networks: Sequence[Any]) -> Callable[[torch.Generator], Any]:
    """Copies of the networks, one a call."""
    copies = iter([copy.deepcopy(network) for network in networks])
    return lambda generator: next(copies)


def _finite(row: Mapping[str, float]) -> dict[str, float | None]:
    """What a network that diverged gives is no number: null in metrics.jsonl."""
    return {name: value if math.isfinite(value) else None for name, value in row.items()}


def _close(one: float | None, other: float | None) -> bool:
    return one == other or (one is not None and other is not None and math.isclose(one, other, rel_tol=1e-3))


def by_seed(arrays: Mapping[str, Any]) -> Arrays:
    """Arrays whose first axis is the seed; further axes are numbered."""
    import numpy as np

    named = {name: np.asarray(array) for name, array in arrays.items()}
    axes = {name: " ".join(("seed", "row", "column", "entry")[: array.ndim]) for name, array in named.items()}
    return Arrays(named, **axes)
