"""From arguments to a command, and from what is wrong with them to one sentence."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import io
import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

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
        ArgumentError: they name no command, study or flag, or a value is one that a flag or settings refuse.
        SystemExit: help was asked for, or tyro has said what is wrong.
    """
    program, flags = _check(arguments)
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
        refused: BaseException | None = stop
        while refused := refused.__context__:
            if isinstance(refused, MesascopeError):
                raise refused from None
            if isinstance(refused, ValueError):  # what int() and float() say of a value
                named = [flag for flag, value in flags.items() if repr(value) in str(refused)]
                which = named[0] if len(named) == 1 else "a value"
                raise ArgumentError(
                    f"{which} must be as {program} --help says, but is not ({refused}): correct it."
                ) from None
        sys.stderr.write(said.getvalue())
        raise


def _check(arguments: Sequence[str]) -> tuple[str, dict[str, str]]:
    """The command's words and the values of its flags; refuse words, flags and choices that there are not."""
    called = _called(arguments)
    program, rest = " ".join(["mesascope", *called]), list(arguments[len(called) :])
    kinds, given = _flags(called), {}
    if {"-h", "--help"} & set(rest) or arguments in ([], ["--version"]):
        return program, given
    for index, token in enumerate(rest):
        if not _is_flag(token):
            continue
        name, given_at_once, value = token.partition("=")
        flag = name.replace("_", "-")
        if flag not in kinds:
            hint = f"did you mean {_nearest(flag, list(kinds))}?" if kinds else f"see {program} --help."
            raise ArgumentError(f"{flag} must be a flag of {program}, but is not: {hint}")
        after = rest[index + 1 : index + 2]
        if not given_at_once and (not after or _is_flag(after[0])):
            raise ArgumentError(f"{flag} must have a value, but has none: see {program} --help.")
        given[flag] = value if given_at_once else after[0]
        if get_origin(kinds[flag]) is Literal:
            require_choice(flag, given[flag], get_args(kinds[flag]))
    _check_words(called, program, list(itertools.takewhile(lambda token: not _is_flag(token), rest)))
    return program, given


def _check_words(called: Sequence[str], program: str, words: Sequence[str]) -> None:
    """Refuse words that name no command or study, and more or fewer folders than a command takes."""
    if called in ([], ["run"]):
        what, known = ("a study", registered("study")) if called else ("a command", COMMANDS)
        if not words:
            raise ArgumentError(f"{program} must be given {what}, but is given none: choose one of {', '.join(known)}.")
        require_choice(what, words[0], known)
    least, most = {"run": (0, 0), "list": (0, 0), "report": (1, 1)}.get(called[0], (0, len(words)))
    if not least <= len(words) <= most:
        given, takes = " ".join(words) or "none", "one folder" if most else "no words but flags"
        raise ArgumentError(f"{program} takes {takes}, but is given {given}: see {program} --help.")


def _is_flag(token: str) -> bool:
    return len(token) > 1 and token[0] == "-" and not (token[1].isdecimal() or token[1] == ".")


def _called(arguments: Sequence[str]) -> list[str]:
    """The command, and the study of run, that the arguments begin with."""
    if not arguments or arguments[0] not in COMMANDS:
        return []
    words = [arguments[0], *(word.replace("_", "-") for word in arguments[1:2])]  # as tyro takes them, too
    return words if words[0] == "run" and words[1:] and words[1] in registered("study") else words[:1]


def _flags(called: Sequence[str]) -> dict[str, Any]:
    """The flags of a command, each with the type of its value."""
    if called in ([], ["run"]):
        return {}
    own = get_type_hints(COMMANDS[called[0]])
    own = {name: kind for name, kind in own.items() if name not in ("study", "settings", "directory", "directories")}
    if called[0] == "run":
        own |= _nested(next(iter(registered("study")[called[1]].presets.values())))
    return {f"--{name.replace('_', '-')}": kind for name, kind in own.items()}


def _nested(settings: Any) -> dict[str, Any]:
    """The fields of settings within settings, ``training.steps`` and the like, and their types."""
    kinds: dict[str, Any] = {}
    for name, kind in get_type_hints(type(settings)).items():
        value = getattr(settings, name)
        inner = _nested(value) if dataclasses.is_dataclass(value) else {}
        kinds |= {f"{name}.{key}": own for key, own in inner.items()} or {name: kind}
    return kinds


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
