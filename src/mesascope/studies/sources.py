"""Python files that compute a study's numbers and verdicts, and the files that changed since a commit."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import mesascope
from mesascope.errors import ArgumentError, refuse
from mesascope.loading import file_of, imported_files
from mesascope.runs.provenance import git
from mesascope.runs.results import PRESENTATION
from mesascope.study import Study

_ROOT = Path(mesascope.__file__).resolve().parent
# Modules that compute every study's trainings, stages and verdicts, though no study imports them.
_EVERY = (_ROOT / "studies" / "lab.py", _ROOT / "evidence" / "judging.py")


def files_of(study: Study) -> list[Path]:
    """Files of a study: its own file first, then the files that it imports from mesascope or from its own folder.

    Imports are followed recursively. Files that only present results are left out. A package such as
    `mesascope.learners` adds only the modules that define the names in use.
    """
    own = file_of(study.defined_in) if study.defined_in else None
    homes = [module for module in [*sys.modules.values()] if getattr(module, "__dict__", {}).get("STUDY") is study]
    named = [getattr(module, "__file__", None) for module in (*homes, sys.modules.get(study.measure.__module__))]
    left = [file.resolve() for file in (own, *map(Path, filter(None, named)), *_EVERY) if file]
    found: list[Path] = []
    while left:
        file = left.pop(0)
        shows = _ROOT in file.parents and file.relative_to(_ROOT).parts[0] in PRESENTATION
        if file not in found and not shows:
            found.append(file)
            left += _imported(file)
    return found


def changed_since(study: Study, commit: str) -> list[str]:
    """Files of a study that differ from a commit of its git repository, including uncommitted changes.

    Raises:
        ArgumentError: the study's file is not tracked by git, or the repository has no such commit.
    """
    files = files_of(study)
    own = files[0]
    try:
        git(own.parent, "ls-files", "--error-unmatch", own.name)
        top = Path(git(own.parent, "rev-parse", "--show-toplevel")).resolve()
    except (OSError, subprocess.SubprocessError):
        raise ArgumentError(
            f"since must refer to a git repository with the code of {study.name}, but {own} is not tracked: "
            "leave it out."
        ) from None
    try:
        known = git(top, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}")
    except subprocess.SubprocessError:
        refuse("since", f"be a commit of {top}", commit, "pass one that git log shows")
    inside = [str(file) for file in files if top in file.parents]
    return git(top, "diff", "--name-only", known, "--", *inside).splitlines()


@functools.cache
def _imported(file: Path) -> list[Path]:
    """Files, in mesascope or beside ``file``, that define the modules and names that ``file`` uses."""
    return imported_files(file, (_ROOT.parent, file.parent))
