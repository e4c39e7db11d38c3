"""A sweep: one run for each choice of settings and each block of seeds."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mesascope.errors import (
    ArgumentError,
    ArgumentTypeError,
    RunDirectoryError,
    refuse,
    require_choice,
    require_count,
    require_instance,
    shown,
)
from mesascope.evidence.tables import Table, Tabular
from mesascope.loading import file_of, in_file
from mesascope.progress import tell
from mesascope.records import from_record, to_record
from mesascope.runs import Run
from mesascope.runs.files import as_path, read_json, write_json
from mesascope.runs.locks import locked
from mesascope.runs.provenance import installed
from mesascope.sweeps.points import COLUMNS, Point, as_task, code_of_task, load_task, run_point
from mesascope.text import counted

SWEEP = "sweep.json"


class Sweep(Tabular):
    """Runs of a study, or of a function of settings and a seed, for all choices of settings and all blocks of seeds.

    Each point (one choice of settings and one block of seeds) is a run in a folder inside ``out``, named by a hash of
    its task, preset, settings, seeds and device. Points that are finished in ``out`` are skipped, whichever sweep ran
    them. Interrupted points continue.

    Args:
        task: name of a study, ``path.py:NAME`` of a study or function, or ``module:function``. A function is
            called as ``function(settings, seed)``, with a dictionary, and returns a dictionary of finite numbers.
        settings: values of each setting to vary, by dotted name. Other settings are those of the preset.
        seeds: blocks of seeds, such as ``"0:20"`` or ``"0:10,10:20"``. A study trains a network for each seed of a
            block and kind, in one run; a function is called for each. Default: the preset's seeds; 0:1 for a function.
        preset: preset of a study.
        out: folder of the sweep; ``runs/sweep-<name>`` if None.
        device: device of all points.

    Raises:
        ArgumentError: there is no such task or setting, or a value is invalid.
        ArgumentTypeError: a value has the wrong type, or ``settings`` has no list of values for a name.
    """

    def __init__(
        self,
        task: str,
        settings: Mapping[str, Sequence[Any]] | None = None,
        *,
        seeds: str = "",
        preset: str = "quick",
        out: str | Path | None = None,
        device: str = "cpu",
    ) -> None:
        self.place = os.getcwd()
        found = self._task = load_task(task, self.place)
        self.is_study = not callable(found)
        if in_file(task):
            path, colon, name = task.rpartition(":")
            task = f"{Path(path).expanduser().resolve()}{colon}{name}"
        self.task, self.preset, self.device = task, preset if self.is_study else "", device
        self.name: str = getattr(found, "name", None) or task.rpartition(":")[2]
        self.axes = {name.replace("-", "_"): to_record(values) for name, values in _checked(settings or {}).items()}
        self.out = as_path("out", Path("runs") / f"sweep-{self.name}" if out is None else out)
        other = read_json(self.out / SWEEP, missing={}).get("task", task) if out is None else task
        if other != task:
            refuse("out", f"be given, as {self.out} has the results of {other}", out, "choose a folder")
        self.blocks = _blocks(seeds) if seeds else []
        self.failed: dict[str, str] = {}  # error messages of the points that failed in this session, by key
        self._seconds: dict[str, float] = {}
        self.points = [
            self._point(found, dict(zip(self.axes, values, strict=True)), block)
            for values in itertools.product(*self.axes.values())
            for block in self.blocks or [None]
        ]
        self.blocks = self.blocks or sorted({(point.seed, point.seeds) for point in self.points})

    @classmethod
    def resume(cls, out: str | Path) -> Sweep:
        """Recreate the sweep that was last started in a folder."""
        out = as_path("the folder of a sweep", out)
        own = read_json(out / SWEEP)
        code = Path(own["place"]), file_of(own["task"])
        if any(out.resolve() in (path.resolve(), *path.resolve().parents) for path in code if path.is_absolute()):
            raise RunDirectoryError(  # reading a sweep must not execute code inside its folder
                f"{out / SWEEP} must name a task outside the folder of the sweep, but names {own['task']} in "
                f"{own['place']}: move the task, and start the sweep again."
            )
        with contextlib.chdir(own["place"] if os.path.isdir(own["place"]) else os.getcwd()):
            found = cls(
                own["task"], own["settings"], seeds=own["seeds"], preset=own["preset"] or "quick", device=own["device"]
            )
        found.out = out
        return found

    def run(
        self, client: Any = None, *, workers: int = 2, retries: int = 1, threads: int = 1, show: Any = None
    ) -> Sweep:
        """Run all points that are not finished, and write the table and the report.

        Args:
            client: a ``dask.distributed.Client``; ``workers`` processes of this machine if None.
            retries: number of times that a failed point is tried again. A worker that dies is replaced, and its point
                continues. The point fails if ten workers in a row die without progress.
            threads: number of torch threads of each worker.
            show: called with the progress, a `Crew`; None prints nothing.

        Raises:
            KeyboardInterrupt: after Ctrl-C, once the running points have reached a checkpoint.
        """
        from mesascope.sweeps.crew import Crew
        from mesascope.sweeps.gathering import write_gathered
        from mesascope.sweeps.workers import connected

        retries = require_count("retries", retries, least=0)
        if (self.out / "config.json").exists():
            refuse("out", "not be the folder of a run", str(self.out), "pass another folder")
        self.out.mkdir(parents=True, exist_ok=True)
        with locked(self.out):
            self._save()
            done, left = self._sorted()
            self._tell_of_other_code(done)
            tasks = {point.key: as_task(point, self.out.resolve()) for point in left}
            crew = Crew(run_point, tasks, retries, threads, show or (lambda crew: None))
            crew.done += [point.key for point in done]
            try:
                if tasks:
                    with contextlib.nullcontext(client) if client else connected(workers, threads=threads) as own:
                        crew.work_on(own)
            finally:
                self.failed = dict(crew.failed)
                write_gathered(self)
        if self.failed and show is None:
            lost = f"{len(self.failed)} of {counted(len(self.points), 'point')} failed"
            warnings.warn(f"{lost}, the first one: {next(iter(self.failed.values()))} See failed.", stacklevel=2)
        return self

    def _tell_of_other_code(self, done: Sequence[Point]) -> None:
        """Print how many finished points were made by other code of the task, or by another mesascope."""
        configs = [Run.open(self.out / point.key).config for point in done]
        codes = [config.get("code") for config in configs]
        versions = [config.get("versions", {}).get("mesascope") for config in configs]
        for made, own, other in (
            (codes, code_of_task(self._task), f"other code of {self.name}"),
            (versions, installed("mesascope"), "another version of mesascope"),
        ):
            if count := sum(one not in (None, own) for one in made):
                verb = "was" if count == 1 else "were"
                tell(
                    f"{counted(count, 'finished point')} of {len(done)} {verb} made by {other}: pass another --out to "
                    "compute them again."
                )

    def table(self) -> Table:
        """Claims and measured numbers of all finished points, each in a row with its settings."""
        from mesascope.sweeps.gathering import gathered

        return gathered(self, self.finished())

    def plan(self) -> dict[str, Any]:
        """Numbers of all, finished and begun points; mean seconds per point and seconds left on one worker, or None."""
        done, left = self._sorted()
        times = self.seconds([point.key for point in done])
        each = sum(times) / len(times) if times else None
        begun = sum((self.out / point.key / "config.json").exists() for point in left)
        return {
            "runs": len(self.points), "finished": len(done), "begun": begun, "seconds_each": each,
            "seconds_left": None if each is None else each * len(left),
        }  # fmt: skip

    def seconds(self, keys: Iterable[str]) -> list[float]:
        """Time of each of these points in seconds, from its timing.json."""
        for key in keys:
            if key not in self._seconds:
                self._seconds[key] = sum(Run.open(self.out / key).times.values())
        return [self._seconds[key] for key in keys]

    def finished(self) -> list[tuple[Point, Run]]:
        """The finished points, each with its run."""
        return [(point, Run.open(self.out / point.key)) for point in self._sorted()[0]]

    def _sorted(self) -> tuple[list[Point], list[Point]]:
        """Finished and unfinished points."""
        there = {point.key: self._is_finished(point) for point in self.points}
        done, left = ([point for point in self.points if there[point.key] is wanted] for wanted in (True, False))
        return done, left

    def _is_finished(self, point: Point) -> bool:
        """True if a point's run is complete, unchanged and has a report.

        A damaged run, or one of another point, counts as unfinished, and fails when run again.
        """
        folder = self.out / point.key
        if not all((folder / name).exists() for name in ("config.json", "finished.json", "report.html")):
            return False
        try:
            run = Run.open(folder)
            point.require_own(run, self._task)
            run.require_unchanged()
            run.results.check()
            _ = run.times
        except RunDirectoryError:
            return False
        return run.is_complete

    def _point(self, task: Any, changes: dict[str, Any], block: tuple[int, int] | None) -> Point:
        if not self.is_study:
            seed, seeds = block or (0, 1)
            return Point(self.task, self.place, "", changes, changes, seed, seeds, self.device)
        require_choice("preset", self.preset, task.presets)
        usual = task.presets[self.preset]
        seed, seeds = block or (0, usual.seeds)
        record = to_record(usual)
        for name, value in {**changes, "seeds": seeds}.items():
            _put(record, name, value)
        settings = to_record(from_record(record, type(usual)))
        changes = {name: _got(settings, name) for name in changes}
        return Point(self.task, self.place, self.preset, changes, settings, seed, seeds, self.device)

    def _save(self) -> None:
        blocks = ",".join(f"{seed}:{seed + seeds}" for seed, seeds in self.blocks)
        own = {
            "schema": 2, "task": self.task, "place": self.place, "preset": self.preset, "settings": self.axes,
            "seeds": blocks, "device": self.device,
        }  # fmt: skip
        write_json(self.out / SWEEP, own)

    def __repr__(self) -> str:
        return f"Sweep of {self.name} in {self.out}: {counted(len(self.points), 'point')}"


def _checked(settings: Any) -> Mapping[str, Sequence[Any]]:
    require_instance("settings", settings, Mapping, "pass {'n_context': [5, 10]}, say")
    for name, values in settings.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise ArgumentTypeError(f"{name} must have a non-empty list of values, but has {shown(values)}: pass one.")
        try:
            json.dumps(to_record(values), allow_nan=False, ensure_ascii=False).encode()
        except ValueError:
            raise ArgumentError(
                f"{name} must have finite values and UTF-8 text, but has {shown(values)}: leave the others out."
            ) from None
        if name == "seeds":
            raise ArgumentError("seeds must be blocks of seeds, but is a setting here: pass them as seeds='0:20'.")
        if name in COLUMNS:
            raise ArgumentError(f"a setting must not be called {', '.join(COLUMNS)}, but is called {name}: rename it.")
        if any(same_value(one, other) for one, other in itertools.combinations(values, 2)):
            raise ArgumentError(f"{name} must have different values, but has {shown(values)}: name each once.")
    names = [name.replace("-", "_") for name in settings]
    if len({*names}) < len(names):
        raise ArgumentError(f"settings must name each setting once, but are {shown([*settings])}: leave one out.")
    return settings


def same_value(one: Any, other: Any) -> bool:
    """True if two values are equal, as 1 and 1.0 are; True and 1 are not."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _blocks(seeds: str) -> list[tuple[int, int]]:
    """First seed and number of seeds of each block in ``0:10,10:20``.

    >>> _blocks("0:10,10:15")
    [(0, 10), (10, 5)]
    >>> _blocks("5:5")
    Traceback (most recent call last):
    mesascope.errors.ArgumentError: seeds must be blocks first:end without overlap, but is '5:5': pass 0:20, say.
    """
    found: list[tuple[int, int]] = []
    for block in str(seeds).split(","):
        ends = re.fullmatch(r"\s*(\d{1,18}):(\d{1,18})\s*", block)
        first, end = (int(ends[1]), int(ends[2])) if ends else (0, 0)
        if first >= end or any(first < other + count and other < end for other, count in found):
            raise ArgumentError(f"seeds must be blocks first:end without overlap, but is {seeds!r}: pass 0:20, say.")
        found.append((first, end - first))
    return found


def _put(record: dict[str, Any], name: str, value: Any) -> None:
    """Set a field of a record by its dotted name."""
    *groups, last = name.split(".")
    for index, group in enumerate([*groups, last]):
        known = [key for key in record if key not in ("kind", "name")] if isinstance(record, dict) else []
        prefix = ".".join(groups[:index])
        require_choice(f"a setting{f' of {prefix}' if prefix else ''}", group, known)
        if index < len(groups):
            record = record[group]
    record[last] = value


def _got(record: Any, name: str) -> Any:
    for part in name.split("."):
        record = record[part]
    return record
