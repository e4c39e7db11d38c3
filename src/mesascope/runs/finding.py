"""Finding runs on disk."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from mesascope.errors import RunDirectoryError
from mesascope.runs.run import Run

__all__ = ["find_runs", "newest_run", "open_run"]


def open_run(path: str | Path) -> Run:
    """Read a run back: its claims, results, curves, figures and networks.

    ``run.claims`` and ``run.results[stage].table()`` are tables that notebooks show and ``pandas.DataFrame`` takes;
    ``run.curves(training)`` is what was logged; ``run.network(training, seed)`` is a trained network, a learner.

    Raises:
        RunDirectoryError: no run there, a damaged one, or one of another schema.
    """
    return Run.open(Path(path))


def find_runs(folders: Sequence[str | Path]) -> tuple[list[Run], list[str]]:
    """All runs in ``folders`` and one level below, oldest first, and a sentence for each that cannot be read.

    Folders that hold no config.json are passed over.
    """
    found: dict[Path, None] = {}
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise RunDirectoryError(f"a folder of runs must exist, but {folder} does not: pass one that does.")
        found |= dict.fromkeys(p for p in (folder, *sorted(folder.iterdir())) if (p / "config.json").is_file())
    runs, damaged = [], []
    for path in found:
        try:
            runs.append(Run.open(path))
        except RunDirectoryError as error:
            damaged.append(str(error))
    return sorted(runs, key=lambda run: (str(run.config.get("created", "")), os.fspath(run.path))), damaged


def newest_run(study: str, folder: str | Path = "runs", preset: str | None = None) -> Run:
    """The newest run of a study under ``folder``."""
    runs, _ = find_runs([folder])
    own = [run for run in runs if run.config.get("study") == study and preset in (None, run.config["preset"])]
    if not own:
        raise RunDirectoryError(
            f"{folder} must hold a run of {study}{f' ({preset})' if preset else ''}, but holds none: mesascope run "
            f"{study} makes one."
        )
    return own[-1]
