"""Checkpoints of one training: tensors by name in safetensors, and a manifest beside them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from mesascope.errors import ArgumentError, RunDirectoryError, refuse, require_choice, require_count
from mesascope.files import sync, write_aside
from mesascope.records import from_record, updated
from mesascope.runs.files import as_path, damaged, read_bytes, read_json, write_json
from mesascope.runs.results import record_hash
from mesascope.runs.schemas import SCHEMA


class TrainingCheckpoints:
    """Save, list and load the checkpoints of one training: the newest, and those of the steps in ``keep``.

    Each is a folder checkpoints/<training>/<step>/, written atomically. Its weights.safetensors contains the training
    state by name: ``weights/``, the optimiser's state and, if weights are averaged, ``average/``. ``result`` in
    manifest.json is ``average`` or ``weights``: the tensors that the run's networks use.

    Args:
        folder: checkpoints/<training> of a run directory.
        config: the record of the training; `load` raises for checkpoints of other trainings.
        device: device of loaded tensors.
        keep: steps whose checkpoints are kept, besides those of `Training.keep`, if they are saved.
    """

    def __init__(
        self,
        folder: Path | str,
        config: Mapping[str, Any],
        device: torch.device | str = "cpu",
        *,
        keep: Collection[int] = (),
    ) -> None:
        self.folder, self.config, self.device, self.keep = as_path("folder", folder), _identity(config), device, keep

    def save(self, step: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Write the checkpoint of ``step`` unless it exists; remove earlier ones that are not in ``keep``."""
        # Copies, as safetensors refuses tensors that share memory.
        own = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
        content = safetensors.torch.save(own)
        manifest = {
            "schema": SCHEMA,
            "step": step,
            "result": "average" if any(name.startswith("average/") for name in tensors) else "weights",
            "key": record_hash(self.config),
            "config": self.config,
            "versions": {"torch": torch.__version__, "safetensors": safetensors.__version__},
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        with self._placed(step) as aside:
            write_aside(aside / "weights.safetensors", content)
            write_json(aside / "manifest.json", manifest)
        for older in {*self.steps()[:-1]} - {*self.keep}:
            shutil.rmtree(self.folder / str(older))

    def steps(self) -> list[int]:
        """Steps with a complete checkpoint, in increasing order."""
        if not os.path.isdir(self.folder):
            return []
        return sorted(int(path.name) for path in self.folder.iterdir() if path.name.isdecimal() and path.is_dir())

    def like(self, others: Path, step: int) -> TrainingCheckpoints | None:
        """Checkpoints of this record in ``others``, another run's checkpoints/; None if there is none at ``step``."""
        for manifest in sorted(others.glob(f"*/{step}/manifest.json")):
            with contextlib.suppress(RunDirectoryError):  # skip damaged checkpoints
                if self._is_of(read_json(manifest)):
                    return TrainingCheckpoints(manifest.parent.parent, self.config, self.device)
        return None

    def copy(self, other: TrainingCheckpoints, step: int) -> None:
        """Copy another run's checkpoint of ``step``, byte for byte."""
        with self._placed(step) as aside:
            for name in ("weights.safetensors", "manifest.json"):
                write_aside(aside / name, read_bytes(other.folder / str(step) / name))

    def _is_of(self, manifest: Mapping[str, Any]) -> bool:
        """True if a checkpoint belongs to this training; records of earlier versions may lack newer fields."""
        key, config = record_hash(self.config), manifest.get("config")
        whole = manifest.get("key") == record_hash(config)
        return whole and (manifest["key"] == key or record_hash(updated(config)) == key)

    @contextlib.contextmanager
    def _placed(self, step: int) -> Iterator[Path]:
        """Yield a temporary folder; on success, rename it to the checkpoint of ``step`` unless that exists."""
        aside = self.folder / f".{step}.aside"
        shutil.rmtree(aside, ignore_errors=True)
        try:
            yield aside
            if not (self.folder / str(step)).exists():
                os.rename(aside, self.folder / str(step))
                sync(self.folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def load(self, step: int | None = None) -> tuple[int, dict[str, torch.Tensor]] | None:
        """Step and tensors of the newest checkpoint, or of the one at ``step``; None if there are no checkpoints."""
        steps = self.steps()
        if not steps:
            return None
        step = steps[-1] if step is None else step
        folder = self.folder / str(step)
        manifest = read_json(folder / "manifest.json")
        if manifest["step"] != step:
            raise damaged(folder / "manifest.json", "name the step of its folder", f"names {manifest['step']}")
        if not self._is_of(manifest):
            raise RunDirectoryError(
                f"{folder} must hold the training that is asked for, but was made with another configuration: start a "
                "new run, or restore config.json."
            )
        file, remedy = folder / "weights.safetensors", "restore it, or start a new run"
        content = read_bytes(file, remedy)
        if hashlib.sha256(content).hexdigest() != manifest["sha256"]:
            raise damaged(file, "have the checksum in its manifest", "is damaged", remedy)
        try:
            tensors = safetensors.torch.load(content)
        except safetensors.SafetensorError as error:
            raise damaged(file, "hold tensors", f"does not ({error})", remedy) from None
        return step, {name: tensor.to(self.device) for name, tensor in tensors.items()}


def rewind(run: Any, training: str, step: int | None, plan: Any, seeds: Sequence[int]) -> None:
    """Drop a training's metrics after its newest checkpoint, at ``step``, or all if there is none.

    Args:
        plan: the `Training`.

    Raises:
        RunDirectoryError: metrics up to ``step`` are missing, or checkpoints are missing though the training went on.
    """
    if step is None:
        _require_no_progress(run, training, plan.checkpoint_every)
    else:
        _require_metrics(run, training, plan.evaluation_steps(step), seeds)
    run.rewind_metrics(training, -1 if step is None else step)


def _require_metrics(run: Any, training: str, steps: Iterable[int], seeds: Iterable[int]) -> None:
    """Raise if a run lacks metrics that a training logged before its newest checkpoint: curves would have a gap."""
    logged = {(row["step"], row["seed"]) for row in run.metrics(training)}
    lost = sorted({(step, seed) for step in steps for seed in seeds} - logged)
    if lost:
        raise RunDirectoryError(
            f"{run.path / 'metrics.jsonl'} must hold the metrics of {training} up to its newest checkpoint, but lacks "
            f"step {lost[0][0]} of seed {lost[0][1]}: restore it, or start a new run."
        )


def _require_no_progress(run: Any, training: str, every: int) -> None:
    """Raise if a training without checkpoints has finished, or has logged steps beyond the first: ``every`` steps."""
    last = max((row["step"] for row in run.metrics(training)), default=-1)
    if run.is_finished or last > every:
        raise RunDirectoryError(
            f"{run.path / 'checkpoints' / training} must hold the checkpoints of this training, but is missing "
            f"(published runs leave them out): restore it, or {run.afresh}."
        )


def trained_network(checkpoints: Path, training: str, seed: int, step: int | None = None) -> torch.nn.Module:
    """Build the network of a seed from the record and weights in a checkpoint, the newest if ``step`` is None.

    Raises:
        RunDirectoryError: the run has no checkpoints of this training.
        ArgumentError: there is no such training, seed or step.
    """
    from mesascope.modules import fill
    from mesascope.training import result_tensors

    seed = require_count("seed", seed, least=0)
    config, tensors = _read(checkpoints, training, step)
    if seed not in config["seeds"]:
        refuse("seed", f"be one of {', '.join(map(str, config['seeds']))}", seed, "choose one of these")
    member = config["seeds"].index(seed)
    network = from_record(config["network"]).build(torch.Generator())
    own = network.state_dict()
    state = {  # ensembles have a leading axis of members, single networks do not
        name: tensor if name in own and tensor.ndim == own[name].ndim else tensor[member]
        for name, tensor in result_tensors(tensors).items()
    }
    fill(network, state)
    return network.eval().requires_grad_(False)


def record_of(checkpoints: Path, training: str) -> dict[str, Any]:
    """Record of a training in its newest checkpoint.

    Raises:
        RunDirectoryError: the run has no checkpoints of this training.
        ArgumentError: there is no such training.
    """
    return _read(checkpoints, training)[0]


def kept_steps(checkpoints: Path, training: str) -> list[int]:
    """Steps of a training that have a checkpoint."""
    known = [path.name for path in checkpoints.iterdir() if path.is_dir()] if os.path.isdir(checkpoints) else []
    require_choice("training", training, known)
    steps = TrainingCheckpoints(checkpoints / training, {}).steps()
    if not steps:
        raise RunDirectoryError(f"{checkpoints / training} must hold a checkpoint, but is empty: --resume the run.")
    return steps


def lost(checkpoints: Path, trainings: Iterable[str]) -> list[str]:
    """Names of the trainings whose checkpoints are missing or damaged."""
    found = []
    for training in trainings:
        try:
            _read(checkpoints, training)
        except (RunDirectoryError, ArgumentError):
            found.append(training)
    return found


def weights_hash(checkpoints: Path, training: str) -> str | None:
    """Checksum of a training's newest weights; None if there are none."""
    steps = TrainingCheckpoints(checkpoints / training, {}).steps()
    return read_json(checkpoints / training / str(steps[-1]) / "manifest.json").get("sha256") if steps else None


def _read(checkpoints: Path, training: str, step: int | None = None) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Record of a training, and tensors of a checkpoint, the newest if ``step`` is None."""
    steps = kept_steps(checkpoints, training)
    step = steps[-1] if step is None else require_count("step", step, least=0)
    if step not in steps:
        refuse("step", f"be one of {', '.join(map(str, steps))}", step, "choose one, or keep more by Training.keep")
    manifest = checkpoints / training / str(step) / "manifest.json"
    config = read_json(manifest)["config"]
    found = TrainingCheckpoints(checkpoints / training, config).load(step)
    assert found is not None
    if not {"seeds", "network", "family"} <= set(config):
        raise damaged(manifest, "hold what its networks are built from", "has no seeds, network and family")
    return config, found[1]


def _identity(record: Any) -> Any:
    """Drop empty ``keep`` entries, which records of earlier versions do not have."""
    if not isinstance(record, Mapping):
        return record
    return {key: _identity(value) for key, value in record.items() if key != "keep" or value}
