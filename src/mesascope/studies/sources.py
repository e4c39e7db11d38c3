"""Python files that compute a study's numbers and verdicts, and those of them that changed since a commit."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import mesascope
from mesascope.errors import ArgumentError, refuse
from mesascope.runs.provenance import git
from mesascope.runs.results import PRESENTATION
from mesascope.study import Study

_ROOT = Path(mesascope.__file__).resolve().parent
# Modules that compute every study's trainings, stages and verdicts, though no study imports them.
_EVERY = (_ROOT / "studies" / "lab.py", _ROOT / "evidence" / "judging.py")


def files_of(study: Study) -> list[Path]:
    """Files of a study: its own, first, and all that they import of mesascope or from beside them.

    Code that only shows results is left out. Of a package, such as `mesascope.learners`, only those modules count whose
    names the code uses.
    """
    own = Path(study.defined_in.rpartition(":")[0]) if study.defined_in else None
    homes = [module for module in [*sys.modules.values()] if getattr(module, "__dict__", {}).get("STUDY") is study]
    named = [getattr(module, "__file__", None) for module in (*homes, sys.modules.get(study.measure.__module__))]
    left = [file.resolve() for file in (own, *map(Path, filter(None, named)), *_EVERY) if file]
    found: dict[Path, None] = {}
    while left:
        file = left.pop(0)
        if file not in found and not _presents(file):
            found[file] = None
            left += _imported(file)
    return [*found]


def changed_since(study: Study, commit: str) -> list[str]:
    """Files of a study that differ from those at a commit of the git repository with the study, committed or not.

    Raises:
        ArgumentError: the study's file is not tracked by git, or the repository has no such commit.
    """
    files = files_of(study)
    try:
        git(files[0].parent, "ls-files", "--error-unmatch", files[0].name)
        top = Path(git(files[0].parent, "rev-parse", "--show-toplevel")).resolve()
    except (OSError, subprocess.SubprocessError):
        raise ArgumentError(
            f"since must be used where git tracks the code of {study.name}, but {files[0]} is not tracked: leave it "
            "out, or clone the repository."
        ) from None
    try:
        known = git(top, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}")
    except subprocess.SubprocessError:
        refuse("since", f"be a commit of {top}", commit, "pass one that git log shows")
    inside = [str(file) for file in files if top in file.parents]
    return git(top, "diff", "--name-only", known, "--", *inside).splitlines()


def _presents(file: Path) -> bool:
    return _ROOT in file.parents and file.relative_to(_ROOT).parts[0] in PRESENTATION


@functools.cache
def _imported(file: Path) -> list[Path]:
    """Files of mesascope, or beside this file, with the modules and names that it uses."""
    homes = [_ROOT.parent] if _ROOT in file.parents else [_ROOT.parent, file.parent]
    names = dict.fromkeys(_used(ast.parse(file.read_bytes())))
    found = (_place(home, name.split(".")) for name in names for home in homes)
    return [*dict.fromkeys(path for path in found if path)]


def _used(tree: ast.Module) -> Iterator[str]:
    """Dotted names that a module imports, and those that it reads off imported ones."""
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {one.asname: one.name for one in node.names if one.asname}
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            own = {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
            aliases |= own
            yield from own.values()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in aliases:
            yield f"{aliases[node.value.id]}.{node.attr}"


def _place(home: Path, parts: list[str]) -> Path | None:
    """File of a module, or of the module that defines a name of a package; None if it is not under ``home``."""
    for count in range(len(parts), 0, -1):
        base = home.joinpath(*parts[:count])
        if base.with_suffix(".py").is_file():
            return base.with_suffix(".py").resolve()
        if (base / "__init__.pyi").is_file():  # a package whose names load on use
            named = _named(base / "__init__.pyi").get(parts[count]) if parts[count:] else None
            return _place(base, named.split(".")) if named else None
        if (base / "__init__.py").is_file():
            return (base / "__init__.py").resolve()
    return None


@functools.cache
def _named(stub: Path) -> dict[str, str]:
    """Names that a package's stub lists, each with its module and name within the package."""
    nodes = (node for node in ast.parse(stub.read_bytes()).body if isinstance(node, ast.ImportFrom))
    return {one.asname or one.name: f"{node.module}.{one.name}" for node in nodes for one in node.names}
