"""From arguments to a command, and from what is wrong with them to one sentence."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import io
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Union

import tyro

from mesascope.cli.ledger import Ledger
from mesascope.cli.list_studies import ListStudies
from mesascope.cli.report import Report
from mesascope.cli.run import RunStudy, run_command
from mesascope.errors import ArgumentError, MesascopeError, require_choice
from mesascope.records import registered

__all__ = ["parsed"]

COMMANDS = {"run": RunStudy, "list": ListStudies, "report": Report, "ledger": Ledger}

# Words that people know for a flag from elsewhere, and a value where the word means one.
MEANINGS = {
    "lr": "learning-rate", "rate": "learning-rate", "epochs": "steps", "iterations": "steps", "iters": "steps",
    "num-steps": "steps", "max-steps": "steps", "batch-size": "batch", "bs": "batch", "wd": "weight-decay",
    "decay": "weight-decay", "opt": "optimizer", "optim": "optimizer", "warmup": "warmup-steps",
    "grad-clip": "clip", "max-norm": "clip", "ema": "average", "scheduler": "schedule",
    "num-seeds": "seeds", "n-seeds": "seeds", "random-seed": "seed", "samples": "tasks", "n-tasks": "tasks",
    "eval-every": "evaluate-every", "log-every": "evaluate-every", "save-every": "checkpoint-every",
    "gpu": "device cuda", "cuda": "device cuda", "cpu": "device cpu", "mps": "device mps",
    "o": "out", "output": "out", "output-dir": "out", "dir": "out", "folder": "out", "name": "out",
    "continue": "resume", "restart": "resume", "restore": "resume", "checkpoint": "resume",
    "config": "preset", "mode": "preset", "quick": "preset quick", "paper": "preset paper", "full": "preset paper",
    "json": "format json", "markdown": "format markdown", "md": "format markdown", "table": "format table",
    "output-format": "format", "f": "format",
}  # fmt: skip


def parsed(arguments: list[str]) -> Callable[[], None]:
    """The command that the arguments spell, ready to be called.

    Raises:
        ArgumentError: they spell none, or a value is one that settings refuse.
        SystemExit: help was asked for, and has been printed.
    """
    commands = (
        Annotated[run_command(arguments), tyro.conf.subcommand("run")],
        Annotated[ListStudies, tyro.conf.subcommand("list")],
        Annotated[Report, tyro.conf.subcommand("report")],
        Annotated[Ledger, tyro.conf.subcommand("ledger")],
    )
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(
                Union[commands],  # type: ignore[arg-type]  # noqa: UP007
                prog="mesascope",
                description="An instrument for the learning algorithms inside neural networks.",
                args=arguments or ["--help"],
                config=(tyro.conf.FlagConversionOff,),
            )
    except SystemExit as stop:
        if not stop.code:
            raise
        refused: BaseException | None = stop
        while refused := refused.__context__:
            if isinstance(refused, MesascopeError):
                raise refused from None
        _refuse(arguments, _body(said.getvalue()))
        raise


def _refuse(arguments: Sequence[str], body: str) -> None:
    """Raise the sentence for arguments that tyro refuses with ``body``."""
    called = _called(arguments)
    program, flags = " ".join(["mesascope", *called]), _flags(called)
    if body.startswith("Unrecognized"):  # or misplaced
        for token in arguments[len(called) :]:
            flag = token.partition("=")[0].replace("_", "-")
            if re.match(r"--?[^\d.]|--$", token) and flag not in (*flags, "-h", "--help"):
                hint = f"did you mean {_nearest(flag, flags)}?" if flags else f"see {program} --help."
                raise ArgumentError(f"{flag} must be a flag of {program}, but is not: {hint}")
        choices = list(COMMANDS) if not called else list(registered("study")) if called == ["run"] else []
        if choices:
            require_choice("a command" if not called else "a study", arguments[len(called)], choices)
        body = body.replace("Unrecognized options: ", "it takes no ")
    choice = re.match(r"invalid choice '(.*)' for argument '(.*)'. Expected one of \((.*)\)", body)
    if choice:
        value, flag, known = choice.groups()
        require_choice(flag, value, re.findall(r"'([^']*)'", known))
    said = body.rstrip(".").replace(". ", "; ")
    raise ArgumentError(f"{program} must be called as its --help shows, but was not ({said}): see {program} --help.")


def _body(said: str) -> str:
    """The first paragraph in the box that tyro draws around an error, of lines or of ASCII, below its title."""
    lines = ["" if set(line) <= set(" ─-│╰╯") else line.strip("│ ") for line in said.splitlines()[1:]]
    below = itertools.dropwhile(lambda line: not line, lines)
    return " ".join(itertools.takewhile(bool, below))


def _called(arguments: Sequence[str]) -> list[str]:
    """The command, and the study of run, that the arguments begin with."""
    if not arguments or arguments[0] not in COMMANDS:
        return []
    study = arguments[0] == "run" and len(arguments) > 1 and arguments[1] in registered("study")
    return list(arguments[: 2 if study else 1])


def _flags(called: Sequence[str]) -> list[str]:
    if not called or called == ["run"]:
        return []
    own = [field.name for field in dataclasses.fields(COMMANDS[called[0]])]
    names = [name for name in own if name not in ("study", "settings", "directory", "directories")]
    if called[0] == "run":
        names += _nested(next(iter(registered("study")[called[1]].presets.values())))
    return [f"--{name.replace('_', '-')}" for name in names]


def _nested(settings: Any) -> list[str]:
    """The fields of settings within settings, ``training.steps`` and the like."""
    names = []
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        inner = _nested(value) if dataclasses.is_dataclass(value) else []
        names += [f"{field.name}.{name}" for name in inner] or [field.name]
    return names


def _nearest(flag: str, flags: Sequence[str]) -> str:
    """The flag that is meant: of the same word or the same meaning, in the same group if there are several."""
    *group, word = flag.lstrip("-").split(".")
    word, _, value = MEANINGS.get(word, word).partition(" ")

    def likeness(known: str) -> tuple[float, float]:
        *own, last = known.lstrip("-").split(".")
        return _alike(last, word), _alike(".".join(own), ".".join(group))

    return f"{max(flags, key=likeness)} {value}".rstrip()


def _alike(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()
