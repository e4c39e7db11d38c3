"""``mesascope sweep``."""

from __future__ import annotations

import ast
import json
import shlex
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from mesascope.errors import ArgumentError, MesascopeError, require_count
from mesascope.progress import duration, tell
from mesascope.text import counted, printable

Repeated = tyro.conf.UseAppendAction[tuple[str, ...]]


@dataclass(frozen=True)
class RunSweep:
    """Run a study, or a function, at many settings and seeds, on many workers.

    Each point (settings and seeds) is a run in its own folder. After an interruption, repeat the command or pass
    --resume.
    """

    task: tyro.conf.Positional[str] = ""
    """Name of a study, FILE.py:NAME of a study or function(settings, seed), or module:function."""
    set: Repeated = ()
    """Setting to vary, with its values: --set x-scale=0.5,1,2. Can be repeated; all combinations are run."""
    seeds: str = ""
    """Blocks of seeds: 0:20, or 0:10,10:20. A study trains a network for each seed of a block, in one run."""
    preset: str = "quick"
    """Settings of a study to start from."""
    out: Path | None = None
    """Folder of the sweep; runs/sweep-<name> if not given."""
    device: str = "cpu"
    """Device of all points."""
    resume: Path | None = None
    """Folder of a sweep to continue. Only flags about workers and output may be given beside it."""
    workers: int = 2
    """Number of worker processes, or of jobs of a queue."""
    scheduler: str = ""
    """Address of a running dask scheduler, such as tcp://host:8786, whose workers are used."""
    queue: Literal["", "slurm", "pbs", "lsf"] = ""
    """Job queue whose jobs are the workers; jobs that end are replaced."""
    queue_option: Repeated = ()
    """Argument of dask-jobqueue's cluster: --queue-option walltime=02:00:00. Can be repeated."""
    threads: int = 1
    """Number of torch threads of each worker."""
    retries: int = 1
    """Number of times that a failed point is tried again."""
    dry_run: bool = False
    """Print the number of runs and the estimated hours, and run nothing."""
    format: Literal["table", "json", "csv"] = "table"
    """Output format of the gathered table."""

    def __call__(self) -> None:
        from mesascope.sweeps.gathering import to_csv, to_json

        require_count("workers", self.workers)
        if self.queue_option and not self.queue:
            raise ArgumentError(
                "--queue-option must be given with --queue, but is given alone: pass --queue slurm, say."
            )
        sweep = self._sweep()
        if self.dry_run:
            return _print_plan(sweep, self.workers)
        try:
            self._run(sweep)
        except (KeyboardInterrupt, Exception) as stop:
            stop.add_note(shlex.join(["mesascope", "sweep", "--resume", str(sweep.out)]))
            raise
        table = sweep.table()
        if self.format == "table":
            _print_table(sweep, table)
        else:
            print(to_json(sweep, table) if self.format == "json" else to_csv(table), end="")
        if sweep.failed:
            raise MesascopeError(_failures(sweep))
        return None

    def _sweep(self) -> Any:
        from mesascope.sweeps import Sweep

        if self.resume is not None:
            if self.task:
                raise ArgumentError(f"the task must be left out beside --resume, but is {self.task!r}: leave it out.")
            return Sweep.resume(self.resume)
        if not self.task:
            raise ArgumentError("the task must be a study or a function, but is left out: see mesascope list.")
        settings: dict[str, list[Any]] = {}
        for name, values in map(_setting, self.set):
            settings.setdefault(name, []).extend(values)
        own = {"seeds": self.seeds, "preset": self.preset, "out": self.out, "device": self.device}
        return Sweep(self.task, settings, **own)

    def _run(self, sweep: Any) -> None:
        from mesascope.sweeps import connected
        from mesascope.sweeps.display import progress_of

        where: dict[str, Any] = {"scheduler": self.scheduler, "queue": self.queue, "options": self.queue_option}
        # Without a scheduler or queue, the sweep starts processes of this machine if it needs them.
        own = connected(self.workers, threads=self.threads, **where) if self.scheduler or self.queue else nullcontext()
        with progress_of(sweep) as show, own as client:
            sweep.run(client, workers=self.workers, retries=self.retries, threads=self.threads, show=show)


def _setting(text: str) -> tuple[str, list[Any]]:
    """Name and values of ``name=value,value``; values are JSON, Python's numbers, True, False or None, or words.

    >>> _setting("noise=0,.5"), _setting("kind=mesa,delta"), _setting("bias=True,false")
    (('noise', [0, 0.5]), ('kind', ['mesa', 'delta']), ('bias', [True, False]))
    """
    name, equals, values = text.partition("=")
    if not equals or not values:
        raise ArgumentError(f"--set must be name=value,value, but is {text!r}: pass --set x-scale=0.5,1, say.")
    try:
        return name, json.loads(f"[{values}]")
    except ValueError:
        return name, [_value(word) for word in values.split(",")]


def _value(word: str) -> Any:
    with suppress(ValueError):
        return json.loads(word)
    with suppress(ValueError, SyntaxError):
        return ast.literal_eval(word.strip())
    return word


def _print_plan(sweep: Any, workers: int) -> None:
    plan = sweep.plan()
    left = plan["runs"] - plan["finished"]
    print(
        f"{counted(plan['runs'], 'run')}: {plan['finished']} finished, {plan['begun']} begun, "
        f"{left - plan['begun']} new"
    )
    if plan["seconds_left"] is None:
        print("estimated hours: unknown until a run has finished")
        return
    hours = plan["seconds_left"] / 3600
    print(
        f"estimated hours: {hours:.2g} of computing, {hours / workers:.2g} on {counted(workers, 'worker')} "
        f"({duration(plan['seconds_each'])} a run, the mean of {plan['finished']})"
    )


def _failures(sweep: Any) -> str:
    from mesascope.sweeps.gathering import failures

    for label, sentence in failures(sweep):
        tell(f"failed: {label}: {sentence}")
    return (
        f"all {len(sweep.points)} points must finish, but {len(sweep.failed)} failed: correct them (their output is "
        f"in {sweep.out / 'logs'}), and repeat the command, which tries them again."
    )


def _print_table(sweep: Any, table: Any) -> None:
    from mesascope.sweeps.gathering import shown_table

    print(printable(repr(shown_table(table))))
    done = len(sweep.finished())
    print(f"{done} of {counted(len(sweep.points), 'point')} finished\nreport: {(sweep.out / 'report.html').resolve()}")


def flags_beside_resume(arguments: Sequence[str]) -> set[str]:
    """Flags that may be given beside --resume, as they change no setting."""
    if arguments[:1] == ["sweep"]:
        own = ("workers", "scheduler", "queue", "queue-option", "threads", "retries", "dry-run", "format")
        return {f"--{name}" for name in own}
    return {"--workers", "--device"} if arguments[:1] == ["run"] else set()
