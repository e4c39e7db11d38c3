"""Running a study: from settings to a finished run."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from mesascope.errors import RunDirectoryError, require_choice, require_count
from mesascope.evidence import judge_all
from mesascope.evidence.tables import Table
from mesascope.records import from_record, registered, to_record
from mesascope.reports import draw_figures, write_report
from mesascope.runs import Run, open_run
from mesascope.studies.study import Study

__all__ = ["changed_settings", "conclude", "new_run", "resume_run", "run_study"]


def new_run(
    study: Study,
    preset: str,
    settings: Any = None,
    *,
    seed: int = 0,
    device: str = "cpu",
    out: Path | None = None,
    command: str = "",
) -> Run:
    """Create the folder of a run of a study; runs/<study>-<preset>-<time> if ``out`` is None.

    Args:
        settings: those of the preset if None.
        seed: the first of the networks' seeds; every random draw follows from it.
    """
    require_choice("preset", preset, study.presets)
    require_count("seed", seed, least=0)
    created = datetime.now(UTC).astimezone()
    path = out or Path("runs") / f"{study.name}-{preset}-{created:%Y%m%d-%H%M%S}"
    config = {
        "study": study.name,
        "preset": preset,
        "settings": to_record(settings or study.presets[preset]),
        "seed": seed,
        "device": device,
        "question": study.question,
        "source": study.source,
        "deviations": list(study.deviations) if preset == "paper" else [],
        "command": command,
        "created": created.isoformat(timespec="seconds"),
        "versions": {name: _version(name) for name in ("mesascope", "torch", "numpy")},
        "python": platform.python_version(),
        "machine": _machine(device),
        "git": _commit(),
    }
    return Run.create(path, "study", config)


def resume_run(path: Path) -> tuple[Study, Any, Run]:
    """The study and settings of a run begun earlier."""
    run = open_run(path)
    studies = registered("study")
    require_choice("study", run.config.get("study", ""), studies)
    study = studies[run.config["study"]]
    try:
        settings = from_record(run.config["settings"], type(study.presets[run.config["preset"]]))
    except (ValueError, TypeError, KeyError) as error:
        raise RunDirectoryError(
            f"{path / 'config.json'} must hold settings of {study.name}, but does not ({error}): start a new run."
        ) from None
    for package, then in run.config.get("versions", {}).items():
        if then != (now := _version(package)):
            print(
                f"mesascope: {path} was begun with {package} {then} and goes on with {now}: numbers may differ.",
                file=sys.stderr,
            )
    return study, settings, run


def run_study(study: Study, settings: Any, run: Run) -> Table:
    """Train, measure, judge, draw and report; return the claims' records. What is already there is kept."""
    from mesascope.studies.lab import Lab

    with run.lock():
        study.measure(Lab(run, settings.seeds), settings)
        return conclude(study, run)


def conclude(study: Study, run: Run) -> Table:
    """Judge, draw and report what a run has measured, by today's claims and figures; return the claims' records."""
    records = judge_all(study.claims, run.config["preset"], run.results)
    draw_figures(run, study.figures)
    run.save_claims(records)
    write_report(run)
    return records


def changed_settings(study: Study, run: Run) -> list[str]:
    """How the settings of a run differ from those of its preset, ``name value (preset's)`` each."""
    preset = study.presets.get(run.config["preset"])
    ours = _flat(to_record(preset)) if preset is not None else {}
    own = _flat(run.config["settings"])
    names = dict.fromkeys([*own, *ours])
    return [f"{name} {own.get(name)} ({ours.get(name)})" for name in names if own.get(name) != ours.get(name)]


def _flat(record: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(record, dict):
        return {prefix.rstrip("."): record}
    return {name: value for key, part in record.items() for name, value in _flat(part, f"{prefix}{key}.").items()}


def _machine(device: str) -> str:
    import torch

    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()}, threads: {torch.get_num_threads()}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _commit() -> str | None:
    """The commit of the checkout that mesascope runs from, None outside one."""
    command: Sequence[str] = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
