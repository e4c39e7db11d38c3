"""Running a study: from settings to a finished run directory."""

from __future__ import annotations

import dataclasses
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from mesascope.errors import RunDirectoryError, require_choice, require_count
from mesascope.reports import figure_files, write_report
from mesascope.runs import RunDirectory, judge
from mesascope.studies.lab import Lab
from mesascope.studies.study import Study

__all__ = ["new_run", "resume_run", "run_study"]


def new_run(
    study: Study, preset: str, settings: Any, *, seed: int, seeds: int, device: str, out: Path | None, command: str
) -> RunDirectory:
    """Create the directory of a run; in runs/<study>-<preset>-<time> where ``out`` is None."""
    require_choice("preset", preset, study.presets)
    require_count("seeds", seeds)
    require_count("seed", seed, least=0)
    created = datetime.now(UTC).astimezone()
    path = out or Path("runs") / f"{study.name}-{preset}-{created:%Y%m%d-%H%M%S}"
    config = {
        "study": study.name,
        "preset": preset,
        "settings": dataclasses.asdict(settings),
        "seed": seed,
        "seeds": seeds,
        "device": device,
        "question": study.question,
        "source": study.source,
        "command": command,
        "created": created.isoformat(timespec="seconds"),
        "versions": {name: _version(name) for name in ("mesascope", "torch", "numpy")},
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, threads: {torch.get_num_threads()}",
        "git": _commit(),
    }
    return RunDirectory.create(path, config)


def resume_run(studies: Mapping[str, Study], path: Path) -> tuple[Study, Any, RunDirectory]:
    """The study and settings of a run begun earlier."""
    directory = RunDirectory.open(path)
    config = directory.config
    require_choice("study", config["study"], studies)
    study = studies[config["study"]]
    try:
        settings = type(study.presets[config["preset"]])(**config["settings"])
    except (TypeError, KeyError) as error:
        raise RunDirectoryError(
            f"{path / 'config.json'} must hold settings of {study.name}, but does not ({error}): start a new run."
        ) from None
    return study, settings, directory


def run_study(study: Study, settings: Any, directory: RunDirectory) -> Sequence[Mapping[str, Any]]:
    """Train, measure, judge, draw and report; return the claims' records. What is already there is kept."""
    results = study.measure(Lab(directory), settings)
    measured = study.judge(results)
    records = [judge(claim, directory.config["preset"], measured[claim.id]) for claim in study.claims]
    for name, figure in study.draw(results).items():
        directory.save_figure(name, str(figure.get_label()), figure_files(figure))
    directory.save_claims(records)
    write_report(directory)
    return records


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _commit() -> str | None:
    """The commit of the checkout that mesascope runs from, None outside one."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
