"""``mesascope run``."""

from __future__ import annotations

import dataclasses
import functools
import operator
import re
import shlex
import sys
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from mesascope.errors import ArgumentError, require_count
from mesascope.loading import in_file
from mesascope.progress import tell_progress
from mesascope.records import facts, register, registered

_DOC = """Run a study: train, measure, judge its claims and write a report.

mesascope run --resume DIR continues an interrupted run, with the same result. Pass your own study as FILE.py:NAME,
also before --resume.
"""
# Seconds without output before a progress message.
_SILENT = 3.0


@dataclass(frozen=True)
class RunStudy:
    """Train, measure, judge claims and write a report.

    The preset sets all settings; the flags below change single settings.
    """

    study: tyro.conf.Suppress[str]
    settings: Annotated[Any, tyro.conf.arg(name="")]
    preset: str = "quick"
    """Settings to start from: quick takes a few minutes, paper has the settings of the paper."""
    seed: int = 0
    """First seed; it determines every random draw."""
    out: Path | None = None
    """Folder of the run; runs/<study>-<preset>-<time> if not given."""
    device: str = "auto"
    """Device to compute on: cpu, cuda, cuda:1, ...; auto chooses a GPU if there is one."""
    reuse: Path | None = None
    """Folder of a run whose finished trainings are reused if their settings are the same."""
    resume: Path | None = None
    """Folder of a run to continue, with the settings in its config.json: only --workers and --device may be added.
    With --device it continues on that device, and its files are no longer byte-identical to an uninterrupted run."""
    workers: int = 1
    """Number of processes that train the study's kinds of networks in parallel, each with one torch thread."""
    estimate: bool = False
    """Run only a few steps of each training, and print the hours and memory that all would take."""

    def __call__(self) -> None:
        study, settings = registered("study")[self.study], self.settings
        require_count("workers", self.workers)
        if self.estimate:
            from mesascope.runs.provenance import available_device
            from mesascope.studies import estimate

            table = estimate(study, self.preset, settings, self.device)
            print(f"device: {available_device(self.device)}")
            print(table or "no training of this study can be timed from a few steps")
            print("left out: evaluations, measurements, trainings that need a measurement, and learners of streams")
            return
        slow = threading.Timer(_SILENT, tell_progress, ["loading torch and the study"])
        slow.daemon = True
        slow.start()
        try:
            run, settings = self._begun(study, settings)
        finally:
            slow.cancel()
        from mesascope.studies import run_study

        print(f"{study.question}\nrun directory: {run.path}\ndevice: {run.config['device']}", flush=True)
        try:
            if self.workers > 1:
                from mesascope.sweeps import train_side_by_side

                train_side_by_side(study, settings, run, self.workers)
            records = run_study(study, settings, run)
        except (KeyboardInterrupt, Exception) as stop:
            stop.add_note(_resume_command(run))
            raise
        _print_verdicts(records)
        print(f"report: {(run.path / 'report.html').resolve()}\nfigures: {(run.path / 'figures').resolve()}")

    def _begun(self, study: Any, settings: Any) -> tuple[Any, Any]:
        """New or resumed run, and its settings."""
        from mesascope.studies import new_run, resume_run
        from mesascope.training import keep_freed_memory

        keep_freed_memory()
        if self.resume is None:
            run = new_run(
                study, self.preset, settings, seed=self.seed, device=self.device, out=self.out,
                reuse=self.reuse, command=shlex.join(["mesascope", *sys.argv[1:]]),
            )  # fmt: skip
        else:
            found, settings, run = resume_run(self.resume, study, None if self.device == "auto" else self.device)
            if found.name != study.name:
                raise ArgumentError(
                    f"--resume must name a run of {study.name}, but {self.resume} is one of {found.name}: "
                    f"{_resume_command(run)}."
                )
        return run, settings


@dataclass(frozen=True)
class Group:
    """A command with subcommands."""

    command: Any

    def __call__(self) -> None:
        self.command()


def with_fields(base: type, doc: str | None, *fields: tuple[str, Any] | tuple[str, Any, Any]) -> Any:
    """Type of a command with further fields, whose types or defaults depend on the arguments."""
    kind = dataclasses.make_dataclass(base.__name__, fields, bases=(base,), frozen=True)
    kind.__doc__ = doc
    return kind


def one_of(commands: Iterable[Any]) -> Any:
    """Union type of the commands; names of subcommands have no prefix on the command line."""
    return Annotated[functools.reduce(operator.or_, commands), tyro.conf.arg(name="")]


def run_command(arguments: Sequence[str]) -> Any:
    """Type of the command, with one subcommand per study; flags default to the chosen preset.

    Only this command imports the studies.
    """
    if arguments[:1] != ["run"]:
        return with_fields(Group, _DOC, ("command", tyro.conf.Suppress[Any], None))
    preset = asked_preset(arguments)
    kinds = []
    for name, study in registered("study").items():
        settings = study.presets.get(preset, study.presets["quick"])
        flags = {field.name for field in dataclasses.fields(RunStudy)} | {"preset", "study", "settings"}
        if taken := flags & {field.name for field in dataclasses.fields(settings)}:
            raise ArgumentError(
                f"settings of {name} must not have the names of flags of mesascope run, but have "
                f"{', '.join(sorted(taken))}: rename them."
            )
        kind = with_fields(
            RunStudy, f"{study.question}\n\n{RunStudy.__doc__}",
            ("preset", Literal[tuple(study.presets)], "quick"),
            ("study", tyro.conf.Suppress[str], name),
            ("settings", Annotated[type(settings), tyro.conf.arg(name="")], settings),
        )  # fmt: skip
        kinds.append(Annotated[kind, tyro.conf.subcommand(name, description=study.question)])
    return with_fields(Group, _DOC, ("command", one_of(kinds)))


def with_study(arguments: Sequence[str]) -> list[str]:
    """Register ``path.py:STUDY`` and replace it by its name, or insert the name of the resumed study."""
    word = "".join(arguments[1:2]) if arguments[:1] == ["run"] else ""
    flag, _, folder = word.partition("=")
    if flag == "--resume" and (folder or arguments[2:]):
        from mesascope.runs import open_run

        run = open_run(folder or arguments[2])
        if run.config.get("study") in registered("study"):
            return ["run", run.config["study"], *arguments[1:]]
        if run.config["kind"] == "sweep":
            raise ArgumentError(
                f"--resume must name a run of a study, but {run.path} is a point of a sweep: continue the sweep by "
                f"{shlex.join(['mesascope', 'sweep', '--resume', str(run.path.parent)])}."
            )
        if run.config.get("defined_in"):  # a file is code, so it must be named
            raise ArgumentError(f"--resume must follow the file of your own study: {_resume_command(run)}.")
    if not in_file(word):
        return list(arguments)
    from mesascope.study import load_study

    study = load_study(word)
    name = re.sub(r"[^a-z0-9]+", "-", study.name.lower()).strip("-") or "own"  # as a command-line word
    if name in registered("study") and "file" not in facts("study", name):
        raise ArgumentError(
            f"the study of {word} must have a unique name, but {study.name!r} is the name of a study of "
            "mesascope: rename it."
        )
    register("study", name, file=study.defined_in)(study)
    return ["run", name, *arguments[2:]]


@dataclass(frozen=True)
class _Preset:
    preset: str = "quick"


def asked_preset(arguments: Sequence[str]) -> str:
    """Preset in the arguments, for the defaults of the other flags; an invalid preset raises later."""
    try:
        found, _ = tyro.cli(
            _Preset, args=list(arguments), return_unknown_args=True, add_help=False, console_outputs=False
        )
        return found.preset
    except SystemExit:
        return "quick"


def _resume_command(run: Any) -> str:
    own = [run.config["defined_in"]] if "defined_in" in run.config else []
    return shlex.join(["mesascope", "run", *own, "--resume", str(run.path)])


def _print_verdicts(records: Sequence[Any]) -> None:
    from mesascope.reports import console, counts_text, holding_text, print_claims
    from mesascope.text import counted

    print_claims(records, console())
    print(f"{counted(len(records), 'claim')}: {counts_text(records)}; {holding_text(records)}")
