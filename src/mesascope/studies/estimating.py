"""Hours and memory that the trainings of a study would take, from a few steps of each."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mesascope.errors import RunDirectoryError
from mesascope.evidence.tables import Table
from mesascope.modes import guarded
from mesascope.ops.products import exact_convolutions, exact_products
from mesascope.studies.lab import Lab
from mesascope.studies.missing import Missing, MissingError
from mesascope.studies.running import new_run
from mesascope.study import Study
from mesascope.training import Training
from mesascope.training.costs import peak_gigabytes, reset_peak_memory, steps_to_time

# Approximate duration of the timed steps, in seconds.
_SECONDS = 2.0


@guarded
def estimate(study: Study, preset: str, settings: Any = None, device: str = "cpu") -> Table:
    """Table of the trainings of a study: hours and peak memory in GB, from a few steps of each.

    Memory is that of the GPU, or on the CPU that of the process so far. The table leaves out evaluations, measurements,
    learners of streams, and all trainings after the first use of a measured result. Nothing stays on disk.
    """
    with tempfile.TemporaryDirectory() as folder:
        run = new_run(study, preset, settings, device=device, out=Path(folder) / "run")
        lab = _Brief(run, run.settings.seeds)
        with exact_products(), exact_convolutions(), contextlib.suppress(MissingError, RunDirectoryError):
            study.measure(lab, run.settings)
        return Table(lab.found)


class _Brief(Lab):
    """Lab that takes a few steps of each training and skips measurements."""

    def __init__(self, run: Any, seeds: int) -> None:
        super().__init__(run, seeds)
        self.found: list[dict[str, Any]] = []

    def train(
        self, name: str, network: Any, family: Any, training: Training, *, watch: Any = None, **options: Any
    ) -> list[Any]:
        reset_peak_memory(self.device)

        def timed(steps: int) -> tuple[float, list[Any]]:
            brief = dataclasses.replace(training, steps=steps, evaluate_every=steps, warmup_steps=0, keep=())
            since = time.monotonic()
            trained = super(_Brief, self).train(f"{name} ({steps} steps)", network, family, brief, **options)
            return time.monotonic() - since, trained

        known = len(self._trained)
        _, trained = timed(1)  # loads data and starts the device
        if len(self._trained) == known:  # the same as an earlier training with another name
            return trained
        first, _ = timed(2)
        count = steps_to_time(first, _SECONDS)
        took, trained = timed(2 + count)
        each = max(took - first, 0.0) / count
        hours = each * training.steps / 3600
        row = {"training": name, "steps": training.steps, "hours": hours, "memory (GB)": peak_gigabytes(self.device)}
        self.found.append(row)
        return trained

    def stage(self, name: str, compute: Callable[..., Any], *arguments: Any) -> Any:
        return Missing(len(self.seeds))

    def resumed(self, name: str, record: Any, training: Training, *others: Any) -> Any:
        if " (" not in name:  # a learner of streams: its steps differ in cost
            return Missing(len(record["seeds"]))
        return super().resumed(name, record, training, *others)
