"""The bench a study works at: trainings and measurements that survive a kill."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from mesascope.records import to_record
from mesascope.runs import RunDirectory
from mesascope.runs.checkpoints import TrainingCheckpoints, training_key
from mesascope.tasks import Family
from mesascope.training import Ensemble, Module, ProgressBar, Training, train

__all__ = ["Lab"]


class Lab:
    """What a study uses of a run: its seeds, its device, `train` and `stage`.

    Whatever was finished before an interruption is loaded, and what was not goes on from its last checkpoint, so that
    a study is written as if it ran in one go.
    """

    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory
        self.seed: int = directory.config["seed"]
        self.seeds: list[int] = [self.seed + index for index in range(directory.config["seeds"])]
        self.device = torch.device(directory.config["device"])
        self._trained: dict[str, Ensemble] = {}

    def train(
        self,
        name: str,
        make: Callable[[torch.Generator], Module],
        family: Family,
        training: Training,
        *,
        learner: Mapping[str, Any],
        seeds: Sequence[int] | None = None,
        evaluate: Callable[[Ensemble], Sequence[Mapping[str, float]]] | None = None,
    ) -> Ensemble[Module]:
        """Train ``make``'s learner on ``family``, one member a seed, or load it where that was done already.

        Two calls with one configuration share one training.

        Args:
            name: of the training, in metrics and checkpoints.
            learner: what ``make`` makes, as JSON: with family, training and seeds it is the training's identity.
            evaluate: numbers to log while training, one mapping a member.
        """
        seeds = list(seeds or self.seeds)
        config = _plain({"learner": learner, "family": to_record(family), "training": training, "seeds": seeds})
        key = training_key(config)
        if key not in self._trained:
            with self._timed(f"train {name}"):
                self._trained[key] = self._train(name, make, family, training, config, seeds, evaluate)
        return self._trained[key]

    def stage(self, name: str, compute: Callable[[], Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """The arrays of ``results/<name>.npz``, computed where they are not there yet."""
        saved = self.directory.results(name)
        if saved is None:
            print(f"measuring: {name}", file=sys.stderr, flush=True)
            with self._timed(name):
                self.directory.save_results(name, compute())
            saved = self.directory.results(name)
            assert saved is not None
        return saved

    def curves(self, training: str) -> dict[str, np.ndarray]:
        """What was logged of a training: ``step (k,)``, and each number as ``(members, k)``."""
        rows = self.directory.metrics(training)
        steps = sorted({row["step"] for row in rows})
        seeds = sorted({row["seed"] for row in rows})
        keys = [key for key in (rows[0] if rows else {}) if key not in ("training", "step", "seed")]
        by_place = {(row["seed"], row["step"]): row for row in rows}
        curves = {key: np.array([[by_place[s, t][key] for t in steps] for s in seeds]) for key in keys}
        return {"step": np.array(steps), **curves}

    def _train(self, name, make, family, training, config, seeds, evaluate) -> Ensemble:
        checkpoints = TrainingCheckpoints(self.directory.path / "checkpoints" / name, config, self.device)
        found = checkpoints.load()
        self.directory.rewind_metrics(name, found[0] if found else -1)

        def log(step: int, ensemble: Ensemble) -> None:
            numbers = evaluate(ensemble) if evaluate else []
            self.directory.append_metrics(
                {"training": name, "step": step, "seed": seed, **row} for seed, row in zip(seeds, numbers, strict=False)
            )

        with ProgressBar(f"training {name}", training.steps) as bar:
            return train(
                make, family, training, seeds, device=self.device, evaluate=log, checkpoints=checkpoints, observe=bar
            )

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            self.directory.add_time(stage, time.monotonic() - start)


def _plain(value: Any) -> Any:
    """Dataclasses, tuples and mappings as JSON has them."""
    return json.loads(json.dumps(value, default=dataclasses.asdict))
