"""The arrays of a run, stage by stage, each with hashes of the settings and code that computed it."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import mesascope
from mesascope.errors import ArgumentTypeError, RunDirectoryError, shown
from mesascope.evidence import Arrays, Estimates, Stage
from mesascope.files import write_aside
from mesascope.loading import file_of, own_files
from mesascope.runs.files import arrays_bytes, checksum, damaged, read_arrays, read_bytes, read_json, write_json
from mesascope.runs.provenance import PACKAGES, installed
from mesascope.runs.schemas import require_name

# Remedy for a damaged stage.
_AGAIN = "delete it and --resume the run"

# Code that only displays or checks results; all other code of the package can change the numbers of a stage.
PRESENTATION = ("cli", "explore", "reports", "testing", "__main__.py", "progress.py", "text.py")


def code_of(file: Path) -> str | None:
    """SHA-256 of a user's Python file, and of the files of its folder that it imports; None if it is missing."""
    own = [checksum(one) for one in own_files(file)]
    return record_hash(own) if own[1:] else next(iter(own), None)


class Results(Mapping[str, Stage]):
    """Stages of a run by name, each read from results/<name>.npz on first use.

    results/index.json contains the checksum of each stage, and hashes of the settings and code that computed it.
    Reading a stage raises an error if its file is damaged or comes from another run.

    Args:
        folder: results/ of a run.
        settings: JSON settings that the stages depend on.
        study: ``path.py:NAME`` of a user's own study; the code hash then includes its file.
    """

    def __init__(self, folder: Path, settings: Any, study: str = "") -> None:
        self.folder, self.settings, self._study = folder, record_hash(settings), study
        self._read: dict[str, Stage] = {}

    def __getitem__(self, name: str) -> Stage:
        if not isinstance(name, str) or name not in self._read:
            self._read[name] = self._load(name)
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._index())

    def __len__(self) -> int:
        return len(self._index())

    def __contains__(self, name: object) -> bool:
        return name in self._index()

    def __repr__(self) -> str:
        return "\n".join(f"{name}: {shown(self[name])}" for name in self)

    def save(self, name: str, stage: Stage) -> None:
        """Store a stage as <name>.npz."""
        require_name("the name of a stage", name)
        if not isinstance(stage, Stage):
            raise ArgumentTypeError(
                f"stage must be of type Arrays or Estimates, but is of type {type(stage).__name__}: pass one of these."
            )
        content = arrays_bytes({"@type": np.array(type(stage).__name__), **stage.to_arrays()})
        entry = {"sha256": hashlib.sha256(content).hexdigest(), "settings": self.settings, "code": self._code()}
        write_aside(self.folder / f"{name}.npz", content)
        write_json(self.folder / "index.json", self._index() | {name: entry})
        self._read.pop(name, None)

    def is_current(self, name: str) -> bool:
        """True if the stage is stored, and was computed with these settings and this code."""
        entry = self._index().get(name, {})
        made = (entry.get("settings"), entry.get("code")) == (self.settings, self._code())
        return made and os.path.exists(self.folder / f"{name}.npz")

    def missing(self) -> list[str]:
        """Names of stages whose files do not exist."""
        return [name for name in self if not os.path.exists(self.folder / f"{name}.npz")]

    def is_complete(self) -> bool:
        """True if there are stages, and all their files exist."""
        return len(self) > 0 and not self.missing()

    def check(self) -> None:
        """Raise if a stage is damaged or was computed from other settings; missing stages are allowed."""
        for name in self:
            if os.path.lexists(self.folder / f"{name}.npz"):
                self.content(name)

    def _code(self) -> str:
        own = code_of(file_of(self._study))
        return record_hash([code_hash(), own]) if own else code_hash()

    def _index(self) -> dict[str, dict[str, str]]:
        return read_json(self.folder / "index.json", missing={})

    def content(self, name: str) -> bytes:
        """Bytes of a stage's file, after a check of its settings and checksum."""
        path, index = self.folder / f"{name}.npz", self._index()
        entry = index.get(name)
        if entry is None and index:
            raise RunDirectoryError(
                f"{path} must be a stage of the run ({', '.join(index)}), but is none: choose one of these."
            )
        if entry is None or not os.path.exists(path):
            raise RunDirectoryError(f"{path} must exist, but is missing: --resume the run to measure it.")
        if entry["settings"] != self.settings:
            raise damaged(
                path, "be what this run measured", "is of another run, or the settings in config.json were edited",
                "restore them, or start a new run",
            )  # fmt: skip
        content = read_bytes(path, _AGAIN)
        if hashlib.sha256(content).hexdigest() != entry["sha256"]:
            raise damaged(path, "be what this run measured", "is damaged", _AGAIN)
        return content

    def _load(self, name: str) -> Stage:
        require_name("the name of a stage", name)
        content = self.content(name)
        try:
            arrays = read_arrays(content)
            kind = {"Estimates": Estimates, "Arrays": Arrays}[str(arrays.pop("@type"))]
            return kind.from_arrays(arrays)
        except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile) as error:
            path = self.folder / f"{name}.npz"
            raise damaged(path, "hold the arrays of a stage", f"does not ({error})", _AGAIN) from None


def record_hash(record: Any) -> str:
    """Hash of a JSON record, in 16 hexadecimal digits; the order of keys does not matter."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:16]


@functools.cache
def code_hash() -> str:
    """Hash of mesascope's code that can change a measurement, and of the versions of numerical packages."""
    root = Path(mesascope.__file__).parent
    digest = hashlib.sha256("".join(f"{name} {installed(name)} " for name in PACKAGES).encode())
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if name.parts[0] not in PRESENTATION:
            digest.update(name.as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
