"""Functions that find and open runs on disk."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from mesascope.errors import ArgumentTypeError, RunDirectoryError
from mesascope.runs.files import as_path
from mesascope.runs.run import Run

# A folder that contains any of these files is a run directory.
_MARKS = ("config.json", "claims.json", "finished.json", "results/index.json")


def open_run(path: str | Path) -> Run:
    """Read a run back: its claims, results, curves, figures and networks.

    ``run.claims`` and ``run.results[stage].table()`` are tables, which notebooks render and ``pandas.DataFrame``
    accepts. ``run.curves(training)`` contains the logged metrics, ``run.network(training, seed)`` is a trained network
    (a learner), ``run.family(training)`` its task family, and ``run.settings`` the study's settings.

    Raises:
        RunDirectoryError: there is no run, its config is damaged or of another schema, or its claims, metrics or index
            of stages were changed after it finished. Damaged stages raise when they are read.
    """
    run = Run.open(path)
    run.require_unchanged()
    return run


def find_runs(folders: str | Path | Sequence[str | Path]) -> tuple[list[Run], list[str]]:
    """Runs in the given folders, oldest first, and error messages for unreadable runs and folders without runs.

    A given folder may itself be a run; deeper subfolders are not searched. Raise if a folder does not exist.
    """
    found: dict[Path, None] = {}
    damaged: list[str] = []
    if not isinstance(folders, str | Path | Iterable):
        raise ArgumentTypeError(
            f"folders must be a path or several, but is {folders!r} ({type(folders).__name__}): pass a string."
        )
    for folder in [folders] if isinstance(folders, str | Path) else list(folders):
        folder = as_path("a folder of runs", folder)
        if not os.path.isdir(folder):
            rule, remedy = ("be a folder", "is a file"), "pass the folder that it is in"
            if not os.path.lexists(folder):
                rule, remedy = ("exist", "does not"), "pass one that does"
            raise RunDirectoryError(f"a folder of runs must {rule[0]}, but {folder} {rule[1]}: {remedy}.")
        try:
            inside = sorted(folder.iterdir())
        except OSError as error:
            raise RunDirectoryError(
                f"{folder} must be a folder that can be read, but is not ({error.strerror}): check its permissions."
            ) from None
        own = [folder] if _is_marked(folder) else list(filter(_is_marked, inside))
        found |= dict.fromkeys(own)
        if not own:
            damaged.append(f"{folder} must be a run, or hold runs, but does not: mesascope run makes one.")
    runs = []
    for path in found:
        try:
            runs.append(Run.open(path))
        except RunDirectoryError as error:
            damaged.append(str(error))
    return sorted(runs, key=lambda run: (run.config.get("created", ""), os.fspath(run.path))), damaged


def _is_marked(path: Path) -> bool:
    """True if a folder contains a file that marks a run."""
    return any(os.path.lexists(path / name) for name in _MARKS)
