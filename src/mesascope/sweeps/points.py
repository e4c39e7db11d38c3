"""Points of a sweep: each is a run of a study or function at one choice of settings and one block of seeds."""

from __future__ import annotations

import copy
import inspect
import math
import os
import pkgutil
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mesascope.errors import ArgumentError, ArgumentTypeError, RunDirectoryError, one_line, plain, require_choice, shown
from mesascope.loading import file_of, from_file, in_file
from mesascope.progress import STOP, tell
from mesascope.records import registered
from mesascope.runs import Run
from mesascope.runs.files import damaged, write_json
from mesascope.runs.results import code_of, record_hash

if TYPE_CHECKING:
    from mesascope.study import Study

# Columns of a sweep's table beside the settings.
COLUMNS = ("name", "value", "low", "high", "replicates", "bound", "verdict", "reason")
# Columns of metrics that are not numbers of a function.
_OWN = ("training", "step", "seed")


@dataclass(frozen=True)
class Point:
    """One run of a sweep.

    Args:
        task: name of a study, ``path.py:NAME``, or ``module:function``.
        place: folder from which modules are imported.
        preset: preset of a study; empty for a function.
        changes: values of the settings that the sweep varies, by dotted name.
        settings: record of all settings.
        seed, seeds: first seed, and number of seeds.
        device: device of the run.
    """

    task: str
    place: str
    preset: str
    changes: dict[str, Any]
    settings: dict[str, Any]
    seed: int
    seeds: int
    device: str

    @property
    def key(self) -> str:
        """Hash of the task, preset, settings, seeds and device; name of the run's folder."""
        own: list[Any] = [self.task, self.preset, self.settings, self.seed, self.seeds, self.device]
        if ":" in self.task and not in_file(self.task):
            own.append(self.place)  # modules of one name can lie in several folders
        return record_hash(own)

    def require_own(self, run: Run, task: Any) -> None:
        """Raise if a run in this point's folder is of another point; ``task`` is what `load_task` returns."""
        own = {"settings": self.settings, "seed": self.seed}
        own |= (
            {"task": self.task, "seeds": self.seeds} if callable(task) else {"preset": self.preset, "study": task.name}
        )
        wrong = [name for name, value in own.items() if run.config.get(name) != value]
        if wrong:
            raise RunDirectoryError(
                f"{run.path} must be the run of {self.label}, but has another {' and '.join(wrong)}: restore it, or "
                "delete it to compute the point again."
            )

    @property
    def block(self) -> str:
        """Seeds as text, such as ``0:20``."""
        return f"{self.seed}:{self.seed + self.seeds}"

    @property
    def label(self) -> str:
        """Varied settings and seeds in words."""
        named = [f"{name.replace('_', '-')} {value}" for name, value in self.changes.items()]
        return ", ".join([*named, f"seeds {self.block}"])


def load_task(task: str, place: str = "") -> Study | Callable[..., Any]:
    """Load a study by name, a study or function from ``path.py:NAME``, or a function from ``module:function``.

    ``place`` is a folder to find modules in.

    Raises:
        ArgumentError: there is no such study, file, module or function.
        ArgumentTypeError: the object is neither a study nor a function.
    """
    from mesascope.study import Study, load_study

    if not isinstance(task, str):
        raise ArgumentTypeError(f"task must be a name, but is {shown(task)}: pass a study's name, or path.py:NAME.")
    if in_file(task):
        found = from_file(task)
        return load_study(task) if isinstance(found, Study) else _callable(task, found)
    if ":" not in task:
        require_choice("the study", task, registered("study"))
        return registered("study")[task]
    if place and place not in sys.path:
        sys.path.insert(0, place)
    try:
        found = pkgutil.resolve_name(task)
    except (ImportError, AttributeError, ValueError) as error:
        raise ArgumentError(
            f"the task must be a study, path.py:NAME or module:function, but {task} cannot be imported "
            f"({one_line(error)}): correct it."
        ) from None
    if isinstance(found, Study):  # in a package: its file is known by the module that was imported
        module, _, name = task.partition(":")
        return load_study(f"{sys.modules[module].__file__}:{name}")
    return _callable(task, found)


def _callable(task: str, found: Any) -> Callable[..., Any]:
    if not callable(found):
        raise ArgumentTypeError(
            f"{task} must be a study or a function(settings, seed), but is {shown(found)}: pass one of these."
        )
    return found


def run_point(record: Mapping[str, Any]) -> None:
    """Run or continue a point in its folder; judge and report a finished point again. Workers call this."""
    point, folder = Point(**record["point"]), Path(record["folder"])
    try:
        task = load_task(point.task, point.place)
        if callable(task):
            return _run_function(point, task, folder)
        return _run_study(point, task, folder)
    except SystemExit as stop:  # would end the worker
        raise ArgumentError(f"{point.task} must return, but calls sys.exit({stop.code!r}): raise an error.") from None


def _run_study(point: Point, study: Study, folder: Path) -> None:
    from mesascope.records import from_record
    from mesascope.studies import new_run, resume_run, run_study
    from mesascope.training import keep_freed_memory

    keep_freed_memory()
    if (folder / "config.json").exists():
        _begin_again_with_other_code(point, study, folder)
    if (folder / "config.json").exists():
        _, settings, run = resume_run(folder, study)
    else:
        settings = from_record(point.settings, type(study.presets[point.preset]))
        run = new_run(study, point.preset, settings, seed=point.seed, device=point.device, out=folder)
    run_study(study, settings, run)


def _begin_again_with_other_code(point: Point, study: Study, folder: Path) -> None:
    """Delete a point's unfinished run if it was begun with other code of a user's study."""
    run = Run.open(folder)
    point.require_own(run, study)
    with run.lock():  # raises if another process continues it
        if not run.is_finished and run.config.get("code") not in (None, code_of_task(study)):
            tell(f"{folder} was begun with other code of {study.name}, and begins again")
            shutil.rmtree(folder)


def _run_function(point: Point, function: Callable[..., Any], folder: Path) -> None:
    """Call the function for each seed, and store the numbers after each call."""
    from mesascope.reports import write_report

    run = _function_run(point, function, folder)
    with run.lock():
        code = code_of_task(function)
        same = run.is_finished or run.config.get("code") == code
        run.rewind_metrics("numbers", 0 if same else -1)  # drops an incomplete last line, or numbers of other code
        if not same:
            run.config |= {"code": code}
            write_json(folder / "config.json", run.config)
        known = _known(point, run)
        for seed in range(point.seed, point.seed + point.seeds):
            if STOP.is_set():
                raise KeyboardInterrupt
            if seed not in known:
                start = time.monotonic()
                numbers = _numbers(point, function(copy.deepcopy(point.settings), seed))
                run.add_time("numbers", time.monotonic() - start)
                known[seed] = {"training": "numbers", "step": 0, "seed": seed, **numbers}
                run.append_metrics([known[seed]])
        if not run.is_complete:
            run.results.save("numbers", _by_seed(known, point.task))
        run.save_claims([])
        write_report(run)


def _function_run(point: Point, function: Callable[..., Any], folder: Path) -> Run:
    from mesascope.runs.provenance import installed

    if (folder / "config.json").exists():
        run = Run.open(folder)
        point.require_own(run, function)
        run.check()
        return run
    doc = inspect.getdoc(function) or point.task
    config = {
        "settings": point.settings, "seed": point.seed, "seeds": point.seeds, "task": point.task,
        "question": doc.partition("\n")[0],
        "versions": {name: installed(name) for name in ("mesascope", "numpy")},
    }  # fmt: skip
    if (source := _source(function)) is not None:
        config |= {"defined_in": f"{source}:{function.__name__}", "code": code_of_task(function)}
    return Run.create(folder, "sweep", config)


def _source(task: Any) -> Path | None:
    """File of a function, or of a user's study; None if there is none."""
    if defined_in := getattr(task, "defined_in", ""):
        return file_of(defined_in)
    source = inspect.getsourcefile(inspect.unwrap(task)) if inspect.isroutine(task) else None
    return Path(os.path.abspath(source)) if source else None


def code_of_task(task: Any) -> str | None:
    """Hash of the code of a function or of a user's study; None if it is unknown."""
    source = _source(task)
    return None if source is None else code_of(source)


def _numbers(point: Point, returned: Any) -> dict[str, float]:
    """Return a function's numbers by name; raise unless they are finite."""
    numbers = {str(name): plain(value) for name, value in returned.items()} if isinstance(returned, Mapping) else None
    wrong = not numbers or any(
        name in _OWN or isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value)
        for name, value in numbers.items()
    )
    if wrong:
        raise ArgumentError(
            f"{point.task} must return finite numbers by name (other than {', '.join(_OWN)}), but returns "
            f"{shown(returned)}: return {{'error': 0.1}}, say."
        )
    assert numbers is not None
    return numbers


def _known(point: Point, run: Run) -> dict[int, dict[str, Any]]:
    """Logged numbers of a function by seed; raise if they are of other seeds, or not finite."""
    rows = {row["seed"]: row for row in run.metrics("numbers")}
    for seed, row in rows.items():
        if not 0 <= seed - point.seed < point.seeds or None in row.values():
            raise damaged(run.path / "metrics.jsonl", f"hold finite numbers of seeds {point.block}", f"holds {row}")
    return rows


def _by_seed(known: Mapping[int, Mapping[str, Any]], task: str) -> Any:
    import numpy as np

    from mesascope.evidence import Arrays

    rows = [known[seed] for seed in sorted(known)]
    names = [name for name in rows[0] if name not in _OWN]
    if any(set(row) != set(rows[0]) for row in rows):
        raise ArgumentError(
            f"{task} must return numbers of the same names for every seed, but does not: return all of "
            f"{', '.join(names)}."
        )
    arrays = {name: np.array([row[name] for row in rows], dtype=float) for name in ("seed", *names)}
    return Arrays(arrays | {"seed": arrays["seed"].astype(int)}, **dict.fromkeys(arrays, "seed"))


def as_task(point: Point, out: Path) -> Any:
    """The work of a point for a `Crew`: its run and its log are written to ``out``."""
    from mesascope.sweeps.crew import Task

    folder = out / point.key
    return Task(point.label, {"point": asdict(point), "folder": str(folder)}, folder, out / "logs" / f"{point.key}.txt")
