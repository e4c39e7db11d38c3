"""Parsing of arguments into a command; tyro's errors become one sentence."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Annotated, Any

import tyro

from mesascope.cli.explore import Explore
from mesascope.cli.identify import Identify
from mesascope.cli.language import language_command
from mesascope.cli.ledger import Ledger
from mesascope.cli.list_studies import ListStudies
from mesascope.cli.mutate import Mutate
from mesascope.cli.report import Report
from mesascope.cli.run import RunStudy, one_of, run_command
from mesascope.cli.sweep import RunSweep, flags_beside_resume
from mesascope.cli.verify import Verify
from mesascope.errors import ArgumentError, MesascopeError
from mesascope.records import flat, registered

# Tyro's message for a value that is no number.
_NO_NUMBER = (
    r"error parsing (\S+): (invalid literal for int\(\) with base 10|could not convert string to float): ('.*')"
)


def parsed(arguments: list[str]) -> Callable[[], int | None]:
    """Parse the arguments into a command that can be called.

    Raises:
        ArgumentError: there is no such command, study or flag, or the value of a flag is invalid.
        SystemExit: after ``--help``.
    """
    _require_resume_alone(arguments)
    commands = {
        "run": run_command(arguments), "identify": Identify, "language": language_command(arguments),
        "sweep": RunSweep, "explore": Explore, "list": ListStudies, "report": Report, "ledger": Ledger,
        "verify": Verify, "mutate": Mutate,
    }  # fmt: skip
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(
                one_of(Annotated[kind, tyro.conf.subcommand(name)] for name, kind in commands.items()),
                prog="mesascope",
                description="An instrument for learning algorithms in neural networks; --version prints its version.",
                args=arguments or ["--help"],
            )
    except SystemExit as stop:
        refused: BaseException | None = stop
        while refused := refused.__context__:
            if isinstance(refused, MesascopeError):
                raise refused from None
        if stop.code:
            raise ArgumentError(_sentence(said.getvalue(), _settings_flags(arguments))) from None
        raise


def _sentence(box: str, settings: Collection[str] = ()) -> str:
    """Convert tyro's error box to one line: the error, the nearest flag, and the help command.

    Tyro looks for similar flags among all commands. If a study's flags for ``settings`` are given, others are left out.

    >>> _sentence("╭─ Error ─╮\\n│ Unrecognized options: --sed │\\n│ ─── │\\n│ Perhaps you meant: │\\n│ --seed INT │")
    'unrecognized options: --sed; perhaps you meant --seed INT.'
    >>> _sentence("╭─ Error ─╮\\n│ Error parsing --seeds: invalid literal for int() with base 10: 'two' │")
    "--seeds must be a whole number, but is 'two': correct it."
    """
    parts: list[list[str]] = [[]]
    for line in box.splitlines()[1:]:  # below the title
        text = line.strip("│| ")
        if set(text) <= set("─╰╯-"):
            parts.append([])
        else:
            parts[-1].append(text)
    first, *others = [part for part in parts if part]
    if number := re.fullmatch(_NO_NUMBER, " ".join(first), re.IGNORECASE):
        flag, why, value = number.groups()
        return f"{flag} must be a {'whole ' if 'int' in why else ''}number, but is {value}: correct it."
    sentences = [re.sub(r"\. E", ": e", " ".join(first))]
    for head, *rest in others:
        if head.startswith("Perhaps you meant"):
            own = {*settings, *(f"--{field.name}" for field in dataclasses.fields(RunStudy))}
            similar = [one for one in rest if not settings or one.split()[0] in own]
            sentences += [f"perhaps you meant {one}" for one in similar[:1]]
        elif head.startswith(("Available", "For full")):
            sentences.append(" ".join([head[0].lower() + head[1:], *rest]))
    line = "; ".join(one.rstrip(".") for one in sentences) + "."
    return line[0].lower() + line[1:]


def _require_resume_alone(arguments: Sequence[str]) -> None:
    given = {token.partition("=")[0] for token in arguments if token.startswith("--")}
    others = given - {"--resume", "--help", *flags_beside_resume(arguments)}
    if "--resume" in given and others:
        raise ArgumentError(
            "--resume must stand alone, as all settings are read from the run, but is given with "
            f"{', '.join(sorted(others))}: leave the other flags out."
        )


@contextlib.contextmanager
def naming_flags(arguments: Sequence[str]) -> Iterator[None]:
    """Replace the names of settings in error messages by the flags of the command line."""
    try:
        yield
    except MesascopeError as error:
        name, _, rest = _with_flags_for_memory(error, arguments).partition(" ")
        given = {token.partition("=")[0].replace("_", "-") for token in arguments if token.startswith("--")}
        own = [flag for flag in given if re.split(r"--|\.", flag)[-1].replace("-", "_") == name]
        flags = [flag for flag in _settings_flags(arguments) if re.search("[-.]", flag[2:])]
        for flag in flags:  # compound names, such as training.clip and n_heads
            field = re.escape(flag.removeprefix("--").replace("-", "_"))
            rest = re.sub(rf"(?<![-\w.]){field}\b", flag, rest)
        raise type(error)(f"{own[0] if len(own) == 1 else name} {rest}") from None


def _with_flags_for_memory(error: MesascopeError, arguments: Sequence[str]) -> str:
    """Message of an error; if memory ran out, it names the flags that reduce the memory, if the command has any."""
    said, _, remedy = str(error).rpartition(": ")
    if error.__cause__ is None or "must fit into memory" not in said:
        return str(error)
    return f"{said}: {memory_remedy(arguments, training=said.startswith('a batch')) or remedy.rstrip('.')}."


def memory_remedy(arguments: Sequence[str], training: bool) -> str:
    """Advice on flags that reduce the memory of a training or an evaluation; "" if there are none.

    Double --accumulate, or halve the batch or tasks; else lower the width, inner steps, context or seeds.
    """
    values = _values(arguments)
    parts, noun = training and "--accumulate" in values, "batch" if training else "tasks"
    if parts and values["--accumulate"] < values.get("--training.batch", 1):
        return "double --accumulate"
    own = [flag for flag, value in values.items() if re.split(r"[-.]", flag)[-1] == noun and value > 1 and not parts]
    verb = "halve" if own else "lower"
    inner = ["--inner-steps"] if values.get("--order") == 2 else []  # order 2 keeps the activations of each step
    own = own or [flag for flag in ("--width", *inner, "--context", "--seeds") if values.get(flag, 1) > 1]
    return f"{verb} {', '.join(own[:-1])} or {own[-1]}" if own[1:] else "".join(f"{verb} {flag}" for flag in own)


def _values(arguments: Sequence[str]) -> dict[str, int]:
    """Integer settings, by flag, of the study or training in the arguments; empty if there are none."""
    try:
        settings = getattr(getattr(parsed([*arguments]), "command", None), "settings", None)
    except ArgumentError:
        return {}
    return {flag: value for flag, value in _flags(settings).items() if type(value) is int} if settings else {}


def _settings_flags(arguments: Sequence[str]) -> list[str]:
    """Flags for the settings of the study or training in the arguments."""
    command, name = [*arguments, "", ""][:2]
    if (command, name) == ("language", "train"):
        from mesascope.language.learning import PRESETS

        return [*_flags(PRESETS["quick"])]
    study = registered("study").get(name.replace("_", "-")) if command == "run" else None
    return [*_flags(next(iter(study.presets.values())))] if study else []


def _flags(settings: Any) -> dict[str, Any]:
    """Values of settings by flag."""
    return {f"--{name.replace('_', '-')}": value for name, value in flat(dataclasses.asdict(settings)).items()}
