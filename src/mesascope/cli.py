"""The command line: ``mesascope list | run STUDY | report DIR | ledger [DIR...]``."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import errno
import io
import json
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_type_hints

import tyro
from rich.console import Console

from mesascope.errors import ArgumentError, MesascopeError, require_choice

if TYPE_CHECKING:
    from mesascope.runs import RunDirectory
    from mesascope.studies import Study

__all__ = ["main"]

_T = TypeVar("_T")


@dataclass(frozen=True)
class RunOptions:
    """What every study takes."""

    preset: Literal["quick", "paper"] = "quick"
    """Settings to start from: quick reaches the claims in a minute or two, paper follows the paper's numbers."""
    seeds: int = 5
    """Networks trained, one a seed."""
    seed: int = 0
    """The first seed; every random draw follows from it."""
    out: Path | None = None
    """Folder of the run; runs/<study>-<preset>-<time> if not given."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; auto takes a GPU if there is one."""


@dataclass(frozen=True)
class ResumeOptions:
    """Going on with a run: everything else is read from its config.json."""

    resume: Path
    """Folder of the run to continue."""


@dataclass(frozen=True)
class ReportOptions:
    """Write report.html again from what a run directory holds."""

    directory: tyro.conf.Positional[Path]
    """Folder of the run."""


@dataclass(frozen=True)
class LedgerOptions:
    """Every claim of every study with its newest verdict."""

    directories: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Folders of runs, or folders of such folders; ./runs if none is given."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print JSON in place of a table."""
    markdown: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print a Markdown page in place of a table."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 0 if all went well, 2 (and one sentence) if not, 130 if interrupted."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _dispatch(arguments)
    except MesascopeError as error:
        print(f"mesascope: {error}", file=sys.stderr)
    except OSError as error:
        print(f"mesascope: {_os_sentence(error)}", file=sys.stderr)
    except KeyboardInterrupt:
        print("mesascope: interrupted; continue with the same command and --resume DIR.", file=sys.stderr)
        return 130
    return 2


def _dispatch(arguments: list[str]) -> int:
    commands: dict[str, Callable[[list[str]], int]] = {
        "list": _list,
        "run": _run,
        "report": _report,
        "ledger": _ledger,
    }
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_help(commands))
        return 0
    if arguments[0] == "--version":
        from mesascope import __version__

        print(f"mesascope {__version__}")
        return 0
    require_choice("command", arguments[0], commands)
    return commands[arguments[0]](arguments[1:])


def _list(arguments: list[str]) -> int:
    """list: the studies, and what they ask."""
    _parse(_NoOptions, arguments, "mesascope list")
    from mesascope.studies import STUDIES

    for study in STUDIES.values():
        print(f"{study.name}: {study.question}\n  {len(study.claims)} claims; {study.source}")
    return 0


def _run(arguments: list[str]) -> int:
    """run STUDY: train, measure, judge and report (run STUDY --help lists its flags)."""
    from mesascope.studies import STUDIES, run_study
    from mesascope.training import keep_freed_memory

    if not arguments or arguments[0].startswith("-"):
        raise ArgumentError(
            f"run must be given a study ({', '.join(STUDIES)}) before any flag, but is given "
            f"{arguments[0] if arguments else 'none'}: see mesascope list."
        )
    require_choice("study", arguments[0], STUDIES)
    study, flags = STUDIES[arguments[0]], arguments[1:]
    begun = any(flag.split("=")[0] == "--resume" for flag in flags)
    settings, directory = _go_on(study, flags) if begun else _start(study, flags)
    print(f"{study.question}\nrun directory: {directory.path}", flush=True)
    keep_freed_memory()
    records = run_study(study, settings, directory)
    _print_verdicts(records)
    print(f"report: {(directory.path / 'report.html').resolve()}")
    return 0


def _start(study: Study, flags: list[str]) -> tuple[Any, RunDirectory]:
    """Settings from the preset and the flags, and a new run directory."""
    from mesascope.studies import new_run

    preset = _peek(flags, "--preset", "quick")
    require_choice("--preset", preset, study.presets)
    base = study.presets[preset]
    options = _parse(_options_of(base), flags, f"mesascope run {study.name}")
    own = {field.name: getattr(options, field.name) for field in dataclasses.fields(base)}
    settings = dataclasses.replace(base, **own)
    directory = new_run(
        study,
        options.preset,
        settings,
        seed=options.seed,
        seeds=options.seeds,
        device=_device(options.device),
        out=options.out,
        command=shlex.join(["mesascope", "run", study.name, *flags]),
    )
    return settings, directory


def _go_on(study: Study, flags: list[str]) -> tuple[Any, RunDirectory]:
    """Settings and directory of a run begun earlier."""
    from mesascope.studies import STUDIES, resume_run

    path = _parse(ResumeOptions, flags, f"mesascope run {study.name}").resume
    found, settings, directory = resume_run(STUDIES, path)
    if found.name != study.name:
        raise ArgumentError(
            f"--resume must name a run of {study.name}, but {path} is one of {found.name}: "
            f"mesascope run {found.name} --resume {path}."
        )
    _device(directory.config["device"])
    return settings, directory


def _report(arguments: list[str]) -> int:
    """report DIR: write report.html of a run again."""
    from mesascope.reports import write_report
    from mesascope.runs import RunDirectory

    options = _parse(ReportOptions, arguments, "mesascope report")
    print(write_report(RunDirectory.open(options.directory)).resolve())
    return 0


def _ledger(arguments: list[str]) -> int:
    """ledger [DIR...]: every claim of every study with its newest verdict."""
    from mesascope.reports import ledger_markdown, ledger_rows, print_ledger
    from mesascope.runs import find_runs
    from mesascope.studies import STUDIES

    options = _parse(LedgerOptions, arguments, "mesascope ledger")
    folders = options.directories or tuple(path for path in (Path("runs"),) if path.is_dir())
    claims = {name: study.claims for name, study in STUDIES.items()}
    rows = ledger_rows(claims, find_runs(folders))
    if options.json:
        print(json.dumps(rows, indent=2, allow_nan=False))
    elif options.markdown:
        print(ledger_markdown(rows), end="")
    else:
        print_ledger(rows, Console())
    return 0


@dataclass(frozen=True)
class _NoOptions:
    """Takes no options."""


def _options_of(settings: Any) -> type:
    """`RunOptions` with the study's own few fields, whose defaults are those of ``settings``."""
    hints = get_type_hints(type(settings))
    fields = [
        (field.name, hints[field.name], dataclasses.field(default=getattr(settings, field.name)))
        for field in dataclasses.fields(settings)
    ]
    return dataclasses.make_dataclass("Options", fields, bases=(RunOptions,), frozen=True)


def _parse(kind: type[_T], arguments: list[str], program: str) -> _T:
    """Arguments as a ``kind``; a mistake in them becomes one sentence."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(kind, args=arguments, prog=program)
    except SystemExit as stop:
        if not stop.code:
            raise
    raise ArgumentError(_sentence(kind, arguments, said.getvalue(), program))


def _sentence(kind: type, arguments: list[str], said: str, program: str) -> str:
    known = {"--" + field.name.replace("_", "-") for field in dataclasses.fields(kind)} | {"--help"}  # type: ignore[arg-type]
    flags = [argument.split("=")[0] for argument in arguments if argument.startswith("--")]
    for flag in flags:
        if flag.replace("_", "-") not in known:
            nearest = difflib.get_close_matches(flag, sorted(known), n=1, cutoff=0.0)[0]
            return f"{program} must be given flags that it knows, but is given {flag}: did you mean {nearest}?"
    # tyro draws a box: keep the words of its first part.
    first = re.split(r"\n.*[─]{5,}.*\n", re.sub(r"^╭.*\n|\n╰.*", "", said.strip()))[0]
    words = " ".join(re.sub(r"[│╭╮╰╯─]", " ", first).split()).rstrip(".")
    return f"{words}: see {program} --help."


def _peek(arguments: list[str], flag: str, default: str) -> str:
    """The value of a flag before the others can be parsed."""
    for index, argument in enumerate(arguments):
        if argument == flag and index + 1 < len(arguments):
            return arguments[index + 1]
        if argument.startswith(f"{flag}="):
            return argument.split("=", 1)[1]
    return default


def _device(name: str) -> str:
    """The device asked for, refused if it is not there."""
    import torch

    there = torch.cuda.is_available()
    if name == "auto":
        return "cuda" if there else "cpu"
    if name.startswith("cuda") and not there:
        raise ArgumentError("--device must be there, but torch finds no CUDA device: use --device cpu.")
    return name


def _print_verdicts(records: Sequence[Any]) -> None:
    from mesascope.reports import print_claims

    print_claims(records, Console(width=None if sys.stdout.isatty() else 120))
    counts = {
        verdict: sum(record["verdict"] == verdict for record in records) for verdict in ("holds", "fails", "undecided")
    }
    print(f"{len(records)} claims: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()))


def _os_sentence(error: OSError) -> str:
    where = error.filename or "the run directory"
    if error.errno == errno.ENOSPC:
        return f"{where} must have room to be written, but its disk is full: free some space, then --resume the run."
    return f"{where} must be readable and writable, but is not ({error.strerror or error}): check the path."


def _help(commands: dict[str, Callable[[list[str]], int]]) -> str:
    lines = ["usage: mesascope COMMAND", "", "An instrument for the learning algorithms inside neural networks.", ""]
    return "\n".join([*lines, *(f"  {command.__doc__}" for command in commands.values())])
