"""Reuse of trainings of another run."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mesascope.errors import RunDirectoryError, refuse, require_instance
from mesascope.progress import tell
from mesascope.records import updated
from mesascope.runs import Run, open_run
from mesascope.runs.checkpoints import TrainingCheckpoints, weights_hash
from mesascope.runs.files import read_json
from mesascope.runs.run import PARTS
from mesascope.shapes import Tensor
from mesascope.studies.running import close, differences
from mesascope.training import Training

# Function from a network in training to the metrics to log.
Watch = Callable[[Any], Mapping[str, float]]
# Function from the tensors of a finished training to its watches.
Finished = Callable[[Mapping[str, Tensor]], Sequence[Watch]]


def take_over(run: Run, name: str, checkpoints: TrainingCheckpoints, finished: Finished, training: Training) -> bool:
    """Copy a finished training with the same record, and its metrics, from the run to reuse; True if one was copied.

    If a worker process has begun this training in a part of this run, its checkpoints and metrics are copied instead.

    Args:
        name: name of the training in this run.
        checkpoints: checkpoints of the training in this run; there are none yet.
        finished: function from the tensors of the finished training to its watches.
    """
    part = run.path / PARTS / name
    begun = TrainingCheckpoints(part / "checkpoints" / name, {}).steps()
    if run.is_finished or not (begun or "reuse" in run.config):
        return False
    place = (part if begun else run.path / run.config["reuse"]).resolve()
    with contextlib.suppress(ValueError):
        place = place.relative_to(Path.cwd())
    done = begun[-1] if begun else training.steps
    try:
        other = open_run(place)
        there = _same_there(run, other, checkpoints, done)
        found = there and there.load()
        if there is None or found is None:
            raise RunDirectoryError(_why_not(other, name, checkpoints.config))
        watches = finished(found[1])
        rows = _logged_there(other, there.folder.name, checkpoints.config["seeds"], watches, training, done)
    except RunDirectoryError as error:
        tell(f"training {name} anew: {error}")
        return False
    made = [(one.config.get("code"), one.config.get("versions", {}).get("mesascope")) for one in (run, other)]
    code = "" if made[0] == made[1] else ", made by other code"
    tell(f"training {name}: taken over from {there.folder}{code}")
    run.rewind_metrics(name, -1)
    run.append_metrics({**row, "training": name} for row in rows)
    for step in there.steps():
        checkpoints.copy(there, step)
    if begun:
        run.add_time(f"train {name}", other.times.get(f"train {name}", 0.0))
    return True


def logged_rows(
    name: str, step: int, seeds: Sequence[int], watches: Sequence[Watch], networks: Sequence[Any]
) -> list[dict[str, Any]]:
    """Rows of metrics at a step, one per network; None for numbers that are not finite."""
    found = []
    for seed, look, network in zip(seeds, watches, networks, strict=False):
        row = look(network)
        require_instance("watch(network)", row, Mapping, "return a number for each name")
        numbers = {key: _number(value) for key, value in row.items()}
        found.append({"training": name, "step": step, "seed": seed} | numbers)
    return found


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        refuse("watch(network)", "contain numbers", value, "return a number for each name")
    return number if math.isfinite(number) else None


def _same_there(run: Run, other: Run, checkpoints: TrainingCheckpoints, done: int) -> TrainingCheckpoints | None:
    """Checkpoints of the same training in another run, at step ``done``; None if there are none.

    If it starts from another training's weights, these must be equal too, except in a worker's part of this run.
    """
    folder, start = other.path / "checkpoints", checkpoints.config.get("start")
    apart = other.path.parent.name != PARTS
    if start and apart and weights_hash(run.path / "checkpoints", start) != weights_hash(folder, start):
        return None
    return checkpoints.like(folder, done)


def _why_not(other: Run, name: str, own: Mapping[str, Any]) -> str:
    """Reason why no training of another run can be reused: differences from the most similar record there."""
    found = []
    for manifest in (other.path / "checkpoints").glob("*/*/manifest.json"):
        with contextlib.suppress(RunDirectoryError):
            config, folder = updated(read_json(manifest)["config"]), manifest.parent.parent
            found.append((folder.name != name, len(differences(own, config)), folder, config))
    if not found:
        return f"{other.path} holds no training"
    _, count, folder, config = min(found, key=lambda one: one[:3])
    if not count:
        return f"{folder} is not finished, or starts from other weights"
    shown = [f"{field} is {there} there and {here} here" for field, here, there in differences(own, config)[:3]]
    more = [f"and {count - len(shown)} more"] if count > len(shown) else []
    return f"{folder} differs: {', '.join(shown + more)}"


def _logged_there(
    other: Run, name: str, seeds: Sequence[int], watches: Sequence[Watch], training: Training, done: int
) -> list[Mapping[str, Any]]:
    """Metrics of another run's training up to step ``done``; raise if some are missing.

    If the training is finished, also raise if its last metrics differ from what this run's ``watches`` return.
    """
    rows = {(row["step"], row["seed"]): row for row in other.metrics(name) if row["step"] <= done}
    watched = seeds[: len(watches)]
    wanted = {(step, seed) for step in training.evaluation_steps(done) for seed in watched}
    own = []
    if done == training.steps:
        own = logged_rows(name, done, seeds, watches, [other.network(name, seed) for seed in watched])
    if wanted - set(rows) or not close_rows(own, [rows[row["step"], row["seed"]] for row in own]):
        raise RunDirectoryError(
            f"{other.path} must hold the metrics of {name} that this run logs, but some are missing or different."
        )
    return list(rows.values())


def close_rows(own: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]]) -> bool:
    """True if two lists of rows have the same metrics, with values within 0.1 % of each other."""
    return len(own) == len(other) and all(
        set(a) == set(b) and close(a, b, set(a) - {"training"}, 1e-3) for a, b in zip(own, other, strict=True)
    )
