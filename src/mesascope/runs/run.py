"""One run and its folder: the only code that reads and writes it. Imports no torch."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mesascope.errors import RunDirectoryError, require_choice
from mesascope.evidence import Arrays
from mesascope.evidence.tables import Table
from mesascope.runs.files import read_json, write_aside, write_json
from mesascope.runs.results import Results

__all__ = ["KINDS", "SCHEMA", "Run"]

SCHEMA = 2
KINDS = ("study", "training", "benchmark", "identification", "sweep")


class Run:
    """A run: what it was asked, what it measured, and what it trained. `open_run` reads one back.

    Every file is written aside and renamed, but for metrics.jsonl, which is appended to and mended on `rewind_metrics`.
    """

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        self.path, self.config = path, config
        self.results = Results(path / "results", [config.get("settings"), config.get("seed")])

    @classmethod
    def create(cls, path: Path, kind: str, config: Mapping[str, Any]) -> Run:
        """Start a run of this kind in an empty or a new folder; ``config`` holds ``settings`` and ``seed``."""
        require_choice("kind", kind, KINDS)
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise RunDirectoryError(
                f"a new run must have an empty folder, but {path} is not: continue it with --resume {path}, or choose "
                "another --out."
            )
        path.mkdir(parents=True, exist_ok=True)
        config = {"schema": SCHEMA, "kind": kind, "id": uuid.uuid4().hex, **config}
        write_json(path / "config.json", config)
        return cls(path, config)

    @classmethod
    def open(cls, path: Path) -> Run:
        """Go back to a run; refuse a folder that is not one, is damaged, or is of another schema."""
        if not path.is_dir():
            raise RunDirectoryError(f"a run directory must exist, but {path} does not: see the folders under runs/.")
        config = read_json(path / "config.json")
        schema = config.get("schema") if isinstance(config, dict) else None
        if not isinstance(schema, int):
            raise RunDirectoryError(
                f"{path / 'config.json'} must describe a run, but has no schema: restore it, or start a new run."
            )
        if schema != SCHEMA:
            remedy = "install a newer mesascope" if schema > SCHEMA else "run it again"
            raise RunDirectoryError(f"{path} must be of schema {SCHEMA}, but is of schema {schema}: {remedy}.")
        if not {"kind", "id", "settings", "seed"} <= set(config):
            raise RunDirectoryError(
                f"{path / 'config.json'} must have a kind, an id, settings and a seed, but does not: restore it, or "
                "start a new run."
            )
        return cls(path, config)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes from writing to this run; a killed process lets go of it."""
        from filelock import FileLock, Timeout

        try:
            with FileLock(self.path / ".lock", timeout=0):
                yield
        except Timeout:
            raise RunDirectoryError(
                f"{self.path} must be written by one process at a time, but another one is at it: wait for that one, "
                "or choose another --out."
            ) from None

    @property
    def is_finished(self) -> bool:
        """Whether all was trained, measured and judged."""
        return (self.path / "claims.json").exists()

    @property
    def claims(self) -> Table:
        """The claims as they were judged when the run finished; none before that."""
        return Table(read_json(self.path / "claims.json", missing=[]))

    def save_claims(self, records: Sequence[Mapping[str, Any]]) -> None:
        write_json(self.path / "claims.json", list(records))

    def curves(self, training: str) -> Arrays:
        """What was logged of a training: ``step``, and each number by seed and step."""
        rows = self.metrics(training)
        if not rows:
            known = list(dict.fromkeys(str(row.get("training")) for row in self.metrics()))
            require_choice("training", training, known)
        steps, seeds = (sorted({row[key] for row in rows}) for key in ("step", "seed"))
        keys = dict.fromkeys(key for row in rows for key in row if key not in ("training", "step", "seed"))
        places = {(row["seed"], row["step"]): row for row in rows}
        numbers = {
            key: np.array([[_number(places.get((seed, step), {}).get(key)) for step in steps] for seed in seeds])
            for key in keys
        }
        axes = {"step": "step", "seed": "seed"} | dict.fromkeys(keys, "seed step")
        return Arrays({"step": np.array(steps), "seed": np.array(seeds), **numbers}, **axes)

    def network(self, training: str, seed: int = 0) -> Any:
        """The network of a seed, as training left it: a learner or predictor, built from its record."""
        from mesascope.runs.checkpoints import trained_network

        return trained_network(self.path / "checkpoints", training, seed)

    def metrics(self, training: str | None = None) -> Table:
        """All rows logged, or those of one training; a torn last line is left out."""
        try:
            lines = (self.path / "metrics.jsonl").read_text(encoding="utf-8").split("\n")
        except FileNotFoundError:
            return Table()
        rows = Table()
        for number, line in enumerate(lines[:-1], 1):  # what follows the last newline is empty or torn
            try:
                rows.append(json.loads(line))
            except ValueError:
                raise RunDirectoryError(
                    f"{self.path / 'metrics.jsonl'} must hold one JSON object a line, but line {number} is damaged: "
                    "delete that line and the ones after it."
                ) from None
        return Table(row for row in rows if training is None or row.get("training") == training)

    def append_metrics(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append one JSON object a row, and flush."""
        with open(self.path / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)

    def rewind_metrics(self, training: str, step: int) -> None:
        """Drop what ``training`` logged after ``step``, which is about to be logged again."""
        if not (self.path / "metrics.jsonl").exists():
            return
        kept = [row for row in self.metrics() if row.get("training") != training or row["step"] <= step]
        write_aside(self.path / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in kept).encode())

    @property
    def figures(self) -> dict[str, Path]:
        """The figures' .svg files, by name."""
        return {name: self.path / "figures" / f"{name}.svg" for name in self.captions}

    @property
    def captions(self) -> dict[str, str]:
        """The caption of each figure, in the order in which they were first saved."""
        return read_json(self.path / "figures" / "captions.json", missing={})

    def save_figure(self, name: str, caption: str, content: Mapping[str, bytes]) -> None:
        """Keep a figure: ``content`` maps a suffix (svg, png) to its bytes."""
        for suffix, data in content.items():
            write_aside(self.path / "figures" / f"{name}.{suffix}", data)
        write_json(self.path / "figures" / "captions.json", self.captions | {name: caption})

    def figure_svg(self, name: str) -> str:
        try:
            return (self.path / "figures" / f"{name}.svg").read_text(encoding="utf-8")
        except FileNotFoundError:
            raise RunDirectoryError(
                f"{self.path / 'figures' / name}.svg must exist, but is missing: --resume the run to draw it again."
            ) from None

    @property
    def times(self) -> dict[str, float]:
        """Wall seconds of each stage, added up over all sessions. No result depends on them."""
        return read_json(self.path / "timing.json", missing={})

    def add_time(self, stage: str, seconds: float) -> None:
        """Add to the wall time of a stage."""
        times = self.times
        write_json(self.path / "timing.json", times | {stage: round(times.get(stage, 0.0) + seconds, 3)})

    def write_report(self, html: str) -> Path:
        write_aside(self.path / "report.html", html.encode())
        return self.path / "report.html"

    def __repr__(self) -> str:
        study = f" of {self.config['study']} ({self.config['preset']})" if "study" in self.config else ""
        return (
            f"Run {self.config['id'][:8]}{study} in {self.path}: {len(self.results)} stages, {len(self.claims)} claims"
        )


def _number(value: Any) -> float:
    return float("nan") if value is None else value
