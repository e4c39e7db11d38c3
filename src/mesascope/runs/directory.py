"""The directory of one run: the only code that reads and writes it. Imports no torch."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mesascope.errors import RunDirectoryError
from mesascope.runs.files import read_json, write_aside, write_json

__all__ = ["SCHEMA", "RunDirectory", "find_runs"]

SCHEMA = 1


class RunDirectory:
    """A run's files; `create` starts one, `open` goes back to one.

    Every file is written aside and renamed, but for metrics.jsonl, which is appended to and mended on `open`.
    """

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        self.path = path
        self.config = config

    @classmethod
    def create(cls, path: Path, config: Mapping[str, Any]) -> RunDirectory:
        """Start a run in an empty or a new folder."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise RunDirectoryError(
                f"a new run must have an empty folder, but {path} is not: continue it with --resume {path}, or choose "
                "another --out."
            )
        path.mkdir(parents=True, exist_ok=True)
        config = {"schema": SCHEMA, **config}
        write_json(path / "config.json", config)
        return cls(path, config)

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """Go back to a run; refuse a folder that is not one, is damaged, or is of a newer schema."""
        if not path.is_dir():
            raise RunDirectoryError(f"a run directory must exist, but {path} does not: see the folders under runs/.")
        config = read_json(path / "config.json")
        schema = config.get("schema") if isinstance(config, dict) else None
        if not isinstance(schema, int) or not {"study", "preset", "settings", "seed", "seeds"} <= set(config):
            raise RunDirectoryError(
                f"{path / 'config.json'} must describe a run (schema, study, preset, settings, seed, seeds), but does "
                "not: restore it, or start a new run."
            )
        if schema > SCHEMA:
            raise RunDirectoryError(
                f"{path} must be of schema {SCHEMA} or older, but is of schema {schema}: install a newer mesascope."
            )
        return cls(path, config)

    def append_metrics(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append one JSON object a row, and flush."""
        with open(self.path / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)

    def metrics(self, training: str | None = None) -> list[dict[str, Any]]:
        """All rows logged, or those of one training; a torn last line is left out."""
        try:
            lines = (self.path / "metrics.jsonl").read_text(encoding="utf-8").split("\n")
        except FileNotFoundError:
            return []
        rows = []
        for number, line in enumerate(lines[:-1], 1):  # what follows the last newline is empty or torn
            try:
                rows.append(json.loads(line))
            except ValueError:
                raise RunDirectoryError(
                    f"{self.path / 'metrics.jsonl'} must hold one JSON object a line, but line {number} is damaged: "
                    "delete that line and the ones after it."
                ) from None
        return [row for row in rows if training is None or row.get("training") == training]

    def rewind_metrics(self, training: str, step: int) -> None:
        """Drop what ``training`` logged after ``step``, which is about to be logged again."""
        if not (self.path / "metrics.jsonl").exists():
            return
        kept = [row for row in self.metrics() if row.get("training") != training or row["step"] <= step]
        write_aside(self.path / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in kept).encode())

    def save_results(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Keep arrays behind figures and claims in results/<name>.npz, the same bytes for the same arrays."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
            for key, array in arrays.items():
                member = io.BytesIO()
                np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)
                archive.writestr(zipfile.ZipInfo(f"{key}.npy"), member.getvalue())
        write_aside(self.path / "results" / f"{name}.npz", buffer.getvalue())

    def results(self, name: str) -> dict[str, np.ndarray] | None:
        """The arrays saved under ``name``, None if there are none."""
        path = self.path / "results" / f"{name}.npz"
        if not path.exists():
            return None
        try:
            with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as archive:
                return {key: archive[key] for key in archive.files}
        except (ValueError, OSError, zipfile.BadZipFile, KeyError) as error:
            raise RunDirectoryError(
                f"{path} must be an .npz archive, but is damaged ({error}): delete it and --resume the run."
            ) from None

    def save_claims(self, records: Sequence[Mapping[str, Any]]) -> None:
        write_json(self.path / "claims.json", list(records))

    def claims(self) -> list[dict[str, Any]] | None:
        """The claims judged, None if the run has not come that far."""
        return read_json(self.path / "claims.json") if (self.path / "claims.json").exists() else None

    def save_figure(self, name: str, caption: str, content: Mapping[str, bytes]) -> None:
        """Keep a figure: ``content`` maps a suffix (svg, png) to its bytes."""
        for suffix, data in content.items():
            write_aside(self.path / "figures" / f"{name}.{suffix}", data)
        write_json(self.path / "figures" / "captions.json", self.captions() | {name: caption})

    def captions(self) -> dict[str, str]:
        """The caption of each figure, in the order in which they were first saved."""
        path = self.path / "figures" / "captions.json"
        return read_json(path) if path.exists() else {}

    def figure_svg(self, name: str) -> str:
        try:
            return (self.path / "figures" / f"{name}.svg").read_text(encoding="utf-8")
        except FileNotFoundError:
            raise RunDirectoryError(
                f"{self.path / 'figures' / name}.svg must exist, but is missing: --resume the run to draw it again."
            ) from None

    def add_time(self, stage: str, seconds: float) -> None:
        """Add to the wall time of a stage in timing.json, which no result depends on."""
        times = self.times()
        write_json(self.path / "timing.json", times | {stage: round(times.get(stage, 0.0) + seconds, 3)})

    def times(self) -> dict[str, float]:
        """Wall seconds of each stage, all sittings added."""
        return read_json(self.path / "timing.json") if (self.path / "timing.json").exists() else {}

    def write_report(self, html: str) -> Path:
        write_aside(self.path / "report.html", html.encode())
        return self.path / "report.html"


def find_runs(folders: Sequence[Path]) -> list[RunDirectory]:
    """All runs in ``folders`` and one level below, oldest first; folders that hold no config.json are passed over."""
    found = []
    for folder in folders:
        if not folder.is_dir():
            raise RunDirectoryError(f"a folder of runs must exist, but {folder} does not: pass one that does.")
        found += [path for path in (folder, *sorted(folder.iterdir())) if (path / "config.json").is_file()]
    runs = [RunDirectory.open(path) for path in dict.fromkeys(found)]
    return sorted(runs, key=lambda run: (str(run.config.get("created", "")), os.fspath(run.path)))
