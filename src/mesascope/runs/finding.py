"""Finding runs on disk."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from mesascope.errors import ArgumentTypeError, RunDirectoryError
from mesascope.runs.files import as_path
from mesascope.runs.run import Run

__all__ = ["find_runs", "newest_run", "open_run"]


def open_run(path: str | Path) -> Run:
    """Read a run back: its claims, results, curves, figures and networks.

    ``run.claims`` and ``run.results[stage].table()`` are tables that notebooks show and ``pandas.DataFrame`` takes;
    ``run.curves(training)`` is what was logged; ``run.network(training, seed)`` is a trained network, a learner.

    Raises:
        RunDirectoryError: no run there, a damaged one, or one of another schema.
    """
    return Run.open(path)


def find_runs(folders: str | Path | Sequence[str | Path]) -> tuple[list[Run], list[str]]:
    """All runs in a folder, or several, and one level below, oldest first, and a sentence for each unreadable one.

    Folders that hold no config.json are passed over.
    """
    found: dict[Path, None] = {}
    for folder in [folders] if isinstance(folders, str | Path) else _listed(folders):
        folder = as_path("a folder of runs", folder)
        if not os.path.isdir(folder):
            raise RunDirectoryError(f"a folder of runs must exist, but {folder} does not: pass one that does.")
        try:
            inside = sorted(folder.iterdir())
        except OSError as error:
            raise RunDirectoryError(
                f"{folder} must be a folder that can be read, but is not ({error.strerror}): check its permissions."
            ) from None
        found |= dict.fromkeys(p for p in (folder, *inside) if os.path.lexists(p / "config.json"))
    runs, damaged = [], []
    for path in found:
        try:
            runs.append(Run.open(path))
        except RunDirectoryError as error:
            damaged.append(str(error))
    return sorted(runs, key=lambda run: (run.config.get("created", ""), os.fspath(run.path))), damaged


def _listed(folders: Any) -> Sequence[Any]:
    if not isinstance(folders, Iterable):
        raise ArgumentTypeError(
            f"folders must be a path or several, but is {folders!r} ({type(folders).__name__}): pass a string."
        )
    return list(folders)


def newest_run(study: str, folder: str | Path = "runs", preset: str | None = None) -> Run:
    """The newest run of a study under ``folder``."""
    runs, _ = find_runs([folder])
    own = [run for run in runs if run.config.get("study") == study and preset in (None, run.config.get("preset"))]
    if not own:
        raise RunDirectoryError(
            f"{folder} must hold a run of {study}{f' ({preset})' if preset else ''}, but holds none: mesascope run "
            f"{study} makes one."
        )
    return own[-1]
