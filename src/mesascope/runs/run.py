"""A run and the files in its folder. Imports no torch."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from mesascope.errors import MesascopeError, RunDirectoryError, require_choice, require_instance
from mesascope.evidence import Arrays, Verdicts
from mesascope.evidence.tables import Table
from mesascope.files import append, write_aside
from mesascope.loading import from_file
from mesascope.records import from_record, registered
from mesascope.runs.files import as_path, checksum, damaged, json_bytes, read_bytes, read_json, read_lines, write_json
from mesascope.runs.locks import LOCKS, locked
from mesascope.runs.provenance import machine
from mesascope.runs.results import Results, record_hash
from mesascope.runs.schemas import KINDS, SCHEMA, require_name
from mesascope.text import counted

# Entries of a config that determine the numbers of a run and their verdicts.
_DECIDES = ("kind", "study", "preset", "settings", "seed", "device")
# Files of a finished run whose checksums are in finished.json.
_LEFT = ("claims.json", "metrics.jsonl", "results/index.json", "identification.json")
# Folder of the runs of single trainings, each in its own process; the enclosing run takes them over.
PARTS = "parts"
# Files that can be left in the folder if the process is killed while it creates the run.
_EMPTY = {*LOCKS, ".config.json.aside"}


class Run:
    """A run: its settings, measurements and trained networks. `open_run` reads one back.

    Files are written atomically, except metrics.jsonl: rows are appended, and `rewind_metrics` removes incomplete ones.
    """

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        self.path, self.config = path, config
        self._find_results()

    def _find_results(self) -> None:
        decides = [self.config.get("settings"), self.config.get("seed")]
        self.results = Results(self.path / "results", decides, self.config.get("defined_in", ""))

    @classmethod
    def create(cls, path: str | Path, kind: str, config: Mapping[str, Any]) -> Run:
        """Create a run in an empty folder. ``config`` needs settings, seed; for a study also study, preset, device."""
        require_choice("kind", kind, KINDS)
        path = as_path("the folder of a run", path)
        config = {"schema": SCHEMA, "kind": kind, "id": uuid.uuid4().hex, **config}
        config["hash"] = _hash(config)
        content = json_bytes("config.json", config, indent=2)  # raises before a folder is made
        require_new(path)
        path.mkdir(parents=True, exist_ok=True)
        run = cls(path, config)
        with run.lock():
            require_new(path)
            write_aside(path / "config.json", content)
        return run

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """Open an existing run; raise if config.json is missing, damaged, edited or of another schema."""
        path = as_path("the folder of a run", path)
        if os.path.isfile(path):
            own = (path.parent / "config.json").exists()
            remedy = f"pass {path.parent}" if own else "pass one that mesascope run made, such as one of those in runs/"
            raise RunDirectoryError(f"a run directory must be a folder, but {path} is a file: {remedy}.")
        if not os.path.isdir(path):
            raise RunDirectoryError(f"a run directory must exist, but {path} does not: see the folders under runs/.")
        config = read_json(path / "config.json")
        if config.get("hash", _hash(config)) != _hash(config):
            raise damaged(
                path / "config.json", "hold the settings that the run was begun with", "was edited",
                "restore it, or start a new run with these settings",
            )  # fmt: skip
        return cls(path, config)

    def check(self) -> None:
        """Raise if times, captions, metrics or stages are damaged, or metrics were changed after the run finished."""
        _ = self.times, self.captions, self.metrics()
        self.require_unchanged("metrics.jsonl")
        self.results.check()

    def require_unchanged(self, *names: str) -> None:
        """Raise if files of a finished run were changed: those in ``names``, by default all in finished.json."""
        for name, left in self._left.items():
            path = self.path / name
            if (not names or name in names) and (own := checksum(path)) != left:
                if own is not None:
                    (read_lines if path.suffix == ".jsonl" else read_json)(path)  # may raise a more specific error
                raise damaged(path, "be as the run left it when it finished", "was changed" if own else "is missing")

    def lock(self) -> AbstractContextManager[None]:
        """Keep other processes from writing to this run. The lock of a killed process is released."""
        return locked(self.path)

    def discard_if_new(self) -> None:
        """Remove the run's folder if it has no metrics, checkpoints or results yet; its lock must be free."""
        beginnings = {*LOCKS, "config.json", "timing.json"}
        files = list(self.path.iterdir())
        if {file.name for file in files} <= beginnings:
            for file in files:
                file.unlink()
            with contextlib.suppress(OSError):  # a link to a folder, say
                self.path.rmdir()

    def discard_parts(self) -> None:
        """Remove the runs of single trainings; call it after this run has taken them over."""
        shutil.rmtree(self.path / PARTS, ignore_errors=True)

    @property
    def is_finished(self) -> bool:
        """True if all training, measurements and verdicts are done."""
        return any(os.path.exists(self.path / name) for name in ("claims.json", "finished.json"))

    @property
    def is_complete(self) -> bool:
        """True if the run is finished, all its stages exist, and their index is unchanged."""
        if not (self.is_finished and self.results.is_complete()):
            return False
        return self._left.get("results/index.json") in (None, checksum(self.results.folder / "index.json"))

    @property
    def _left(self) -> dict[str, str]:
        """Checksums of the run's files when it finished; empty for unfinished runs and runs of older versions."""
        return read_json(self.path / "finished.json", missing={})

    @property
    def study(self) -> Any:
        """The run's study: a registered study, or the one in the user's file from which the run was started.

        Raises:
            RunDirectoryError: the study is not registered, or the file no longer defines it.
        """
        file, config = self.path / "config.json", self.config
        if config["kind"] == "sweep":
            raise RunDirectoryError(f"{self.path} must be a run of a study, but is one of a function: see its config.")
        own = config.get("defined_in")
        if own is not None:
            # Reading a run must not execute code inside the run directory.
            if not Path(own).is_absolute() or self.path.resolve() in Path(own).parents:
                raise damaged(file, "name a file outside the run", f"names {own}", "leave its study out")
            try:
                return from_file(own)
            except MesascopeError as error:
                raise RunDirectoryError(
                    f"{file} must name a study that can be imported here, but {str(error).rpartition(': ')[0]}: store "
                    f"the place where it is now by mesascope run FILE.py:STUDY --resume {shlex.quote(str(self.path))}."
                ) from None
        study = registered("study").get(config["study"]) if config["kind"] == "study" else None
        if study is None:
            raise RunDirectoryError(
                f"{file} must name a study that is registered, but does not: see mesascope list, or pass your own to "
                "mesascope run FILE.py:STUDY."
            )
        return study

    def move_study(self, place: str) -> None:
        """Store the new ``path.py:NAME`` of the run's study; paths inside the run directory are ignored."""
        if place not in ("", self.config.get("defined_in")) and self.path.resolve() not in Path(place).parents:
            self.config["defined_in"] = place
            write_json(self.path / "config.json", self.config)
            self._find_results()  # the code hash includes the study's file

    def move_device(self, device: str) -> None:
        """Store the device on which an unfinished run continues, and where it began. The caller holds the lock."""
        began = f"{self.config['device']} ({self.config.get('machine', 'unknown')})"
        self.config = {"begun_on": began, **self.config, "device": device, "machine": machine(device)}
        self.config["hash"] = _hash(self.config)
        write_json(self.path / "config.json", self.config)

    @property
    def settings(self) -> Any:
        """The run's settings, as an object of its study's class.

        Raises:
            RunDirectoryError: see `study`; also if the fields of the study's settings have changed since.
        """
        return self.settings_of(self.study)

    def settings_of(self, study: Any) -> Any:
        """The run's settings, as an object of the class of ``study``'s settings."""
        return self.settings_as(type(next(iter(study.presets.values()))), f"settings of {study.name}")

    def settings_as(self, kind: type, named: str) -> Any:
        """The run's settings, as an object of ``kind``; ``named`` describes them in error messages."""
        try:
            return from_record(self.config["settings"], kind)
        except (ValueError, TypeError, KeyError) as error:
            raise RunDirectoryError(
                f"{self.path / 'config.json'} must hold {named}, but does not "
                f"({str(error).rstrip('.')}): start a new run."
            ) from None

    @property
    def afresh(self) -> str:
        """Remedy in error messages: the command that repeats the run in another folder."""
        try:
            words = shlex.split(self.config.get("command", ""))
        except ValueError:  # not a command that mesascope stored
            words = []
        if "--out" in words:
            at = words.index("--out")
            del words[at : at + 2]
        command = shlex.join(word for word in words if not word.startswith("--out="))
        return f"start a new run by {command}" if command else "start a new run"

    @property
    def claims(self) -> Verdicts:
        """Claims with the verdicts stored when the run finished; empty before that."""
        return Verdicts(read_json(self.path / "claims.json", missing=[]))

    def save_claims(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Store the claims, and checksums of the run's files; the run is then finished.

        If the run was finished before, the checksum of its metrics is kept, as it logs no more.
        """
        write_json(self.path / "claims.json", list(records))
        first = {name: left for name, left in self._left.items() if name == "metrics.jsonl"}
        left = {name: first.get(name) or checksum(self.path / name) for name in _LEFT}
        write_json(self.path / "finished.json", {name: own for name, own in left.items() if own})

    @property
    def identification(self) -> dict[str, Any]:
        """The run's result of `identify` as plain numbers, for `Identification.from_dict`."""
        return read_json(self.path / "identification.json")

    def save_identification(self, record: Mapping[str, Any]) -> None:
        write_json(self.path / "identification.json", record)

    def curves(self, training: str) -> Arrays:
        """Logged metrics: ``step`` (steps,), ``seed`` (seeds,), and each metric (seeds, steps), nan if missing."""
        rows = self.metrics()
        require_choice("training", training, {row["training"] for row in rows})
        rows = [row for row in rows if row["training"] == training]
        steps, seeds = (sorted({row[key] for row in rows}) for key in ("step", "seed"))
        keys = dict.fromkeys(key for row in rows for key in row if key not in ("training", "step", "seed"))
        places = {(row["seed"], row["step"]): row for row in rows}
        numbers = {
            key: np.array([[places.get((seed, step), {}).get(key) for step in steps] for seed in seeds], dtype=float)
            for key in keys
        }
        axes = {"step": "step", "seed": "seed"} | dict.fromkeys(keys, "seed step")
        return Arrays({"step": np.array(steps), "seed": np.array(seeds), **numbers}, **axes)

    def network(self, training: str, seed: int = 0, step: int | None = None) -> Any:
        """The trained network of a seed (a learner or predictor), built from its record.

        Args:
            step: one of `steps`; the newest if None.
        """
        from mesascope.runs.checkpoints import trained_network

        return trained_network(self._checkpoints(), training, seed, step)

    def steps(self, training: str) -> list[int]:
        """Steps of a training that have a checkpoint: those in `Training.keep`, and the newest."""
        from mesascope.runs.checkpoints import kept_steps

        return kept_steps(self._checkpoints(), training)

    def family(self, training: str) -> Any:
        """The task family of a training, to `sample` new tasks or to compare the network with others."""
        return from_record(self.record(training)["family"])

    def record(self, training: str) -> dict[str, Any]:
        """The record of a training: its network, family, training and seeds, as JSON."""
        from mesascope.runs.checkpoints import record_of

        return record_of(self._checkpoints(), training)

    def _checkpoints(self) -> Path:
        with contextlib.suppress(RunDirectoryError):
            _ = self.study  # registers the networks and tasks of the user's file
        folder = self.path / "checkpoints"
        if not os.path.isdir(folder):
            raise RunDirectoryError(
                f"{folder} must hold the run's trained networks, but does not exist (published runs leave them out): "
                f"{self.afresh}."
            )
        return folder

    def metrics(self, training: str | None = None) -> Table:
        """All logged rows, or those of one training; an incomplete last line is left out."""
        rows = read_lines(self.path / "metrics.jsonl")
        return Table(row for row in rows if training is None or row["training"] == training)

    @property
    def trainings(self) -> list[str]:
        """Names of the trainings that logged metrics."""
        return list(dict.fromkeys(row["training"] for row in self.metrics()))

    def append_metrics(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append one JSON object for each row, and flush to disk.

        A row has a training, a step, a seed and metrics: finite numbers, or None for nan and infinity.
        """
        append(self.path / "metrics.jsonl", _lines(rows))

    def rewind_metrics(self, training: str, step: int) -> None:
        """Drop an incomplete last line, and the rows of ``training`` after ``step``, which will be logged again."""
        kept = _lines(row for row in self.metrics() if row["training"] != training or row["step"] <= step)
        if kept != read_bytes(self.path / "metrics.jsonl", missing=b""):
            write_aside(self.path / "metrics.jsonl", kept)

    @property
    def figures(self) -> dict[str, Path]:
        """The figures' .svg files, by name."""
        return {name: self.path / "figures" / f"{name}.svg" for name in self.captions}

    @property
    def captions(self) -> dict[str, str]:
        """Captions of the figures by name, in the order in which they were first saved."""
        return read_json(self.path / "figures" / "captions.json", missing={})

    def forget_figures(self, kept: Collection[str]) -> None:
        """Leave figures out of `captions` unless their names are in ``kept``."""
        if {*self.captions} - {*kept}:
            captions = {name: caption for name, caption in self.captions.items() if name in kept}
            write_json(self.path / "figures" / "captions.json", captions)

    def save_figure(self, name: str, caption: str, content: Mapping[str, bytes]) -> None:
        """Store a figure: ``content`` maps a suffix (svg, png) to the file's bytes."""
        require_name("the name of a figure", name)
        for suffix, data in content.items():
            write_aside(self.path / "figures" / f"{name}.{suffix}", data)
        write_json(self.path / "figures" / "captions.json", self.captions | {name: caption})

    def figure_svg(self, name: str) -> str:
        """The figure as an <svg> element."""
        file, remedy = self.path / "figures" / f"{name}.svg", "draw it again by mesascope report"
        _, start, element = read_bytes(file, remedy).decode("utf-8", "replace").partition("<svg")
        if not start or "</svg>" not in element:
            raise damaged(file, "be a figure in SVG", "is damaged", remedy)
        return start + element

    @property
    def times(self) -> dict[str, float]:
        """Wall time of each stage in seconds, summed over all sessions. No result depends on it."""
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
        parts = f"{counted(len(self.results), 'stage')}, {counted(len(self.claims), 'claim')}"
        return f"Run {self.config['id'][:8]}{study} in {self.path}: {parts}"

    def plot(self, figure: str) -> Any:
        """Draw a figure of the run's study, by its name in `captions`, from the run's arrays.

        Returns:
            Matplotlib's figure, which notebooks show.

        Raises:
            ArgumentError: the study has no such figure.
            RunDirectoryError: the study cannot be imported here, or an array is missing.
        """
        return self.study.plot(figure, self.results)

    def _repr_html_(self) -> str:
        return f"<p>{escape(repr(self))}</p>{self.claims._repr_html_()}"


def _hash(config: Mapping[str, Any]) -> str:
    return record_hash({key: config.get(key) for key in _DECIDES})


def require_new(path: Path) -> None:
    """Raise unless a run can be made at ``path``: it must be an empty folder, or not exist."""
    if not os.path.lexists(path) or (path.is_dir() and {file.name for file in path.iterdir()} <= _EMPTY):
        return
    own = path.is_dir() and (path / "config.json").exists()
    remedy = "continue that run with --resume, or choose another --out" if own else "choose another --out"
    raise RunDirectoryError(f"a new run must have an empty folder, but {path} is not: {remedy}.")


def _lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    require_instance("rows", rows, Iterable)
    return b"".join(json_bytes("metrics.jsonl", row) for row in rows)
