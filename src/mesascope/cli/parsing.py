"""From arguments to a command, and from what is wrong with them to one sentence."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import io
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from types import NoneType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import tyro

from mesascope.cli.identify import Identify
from mesascope.cli.language import LANGUAGE, Language, language_command
from mesascope.cli.ledger import Ledger
from mesascope.cli.list_studies import ListStudies
from mesascope.cli.report import Report
from mesascope.cli.run import RunStudy, run_command
from mesascope.errors import ArgumentError, MesascopeError, refuse, require_choice
from mesascope.records import registered

__all__ = ["naming_flags", "parsed"]

COMMANDS = {
    "run": RunStudy, "identify": Identify, "language": Language, "list": ListStudies, "report": Report,
    "ledger": Ledger,
}  # fmt: skip
# How few and how many words a command takes, if not as many as one likes.
WORDS = {
    "run": (0, 0), "list": (0, 0), "report": (1, 1), "identify": (0, 1), "language train": (0, 0),
    "language evaluate": (1, 1), "language sample": (1, 1), "language inspect": (1, 1),
}  # fmt: skip

# How alike a word and a flag are, of 1, where the one may stand for the other.
NEAR = 0.6

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
    _check(arguments)
    arguments = _spelt_out(arguments)
    commands = (
        Annotated[run_command(arguments), tyro.conf.subcommand("run")],
        Annotated[Identify, tyro.conf.subcommand("identify")],
        Annotated[language_command(arguments), tyro.conf.subcommand("language")],
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
                description="An instrument for learning algorithms in neural networks; --version prints its version.",
                args=arguments or ["--help"],
                config=(tyro.conf.FlagConversionOff,),
            )
    except SystemExit as stop:
        refused: BaseException | None = stop
        while refused := refused.__context__:
            if isinstance(refused, MesascopeError):
                raise refused from None
        sys.stderr.write(said.getvalue())
        raise


@contextlib.contextmanager
def naming_flags(arguments: Sequence[str]) -> Iterator[None]:
    """Have a sentence about fields of the settings name their flags."""
    try:
        yield
    except MesascopeError as error:
        name, _, rest = str(error).partition(" ")
        flags = {token.partition("=")[0].replace("_", "-") for token in arguments if _is_flag(token)}
        own = [flag for flag in flags if re.split(r"--|\.", flag)[-1].replace("-", "_") == name]
        rest = re.sub(r"(?<![-\w.])[a-z]+(?:[_.][a-z]+)+\b", lambda found: _named(found.group(), arguments), rest)
        raise type(error)(f"{own[0] if len(own) == 1 else _named(name, arguments)} {rest}") from None


def _named(field: str, arguments: Sequence[str]) -> str:
    """The flag of a field that a sentence names, ``training.clip`` or ``n_heads`` say; the field if there is none."""
    word = field.replace("_", "-")
    if not re.search(r"[-.]", word):
        return field
    own = [flag for flag in _flags(_called(arguments)) if flag == f"--{word}" or flag.endswith(f".{word}")]
    return own[0] if len(own) == 1 else field


def _check(arguments: Sequence[str]) -> None:
    """Raise for an unknown word or flag, or a value that its flag does not take."""
    called = _called(arguments)
    program, rest = " ".join(["mesascope", *called]), list(arguments[len(called) :])
    kinds, given, words = _flags(called), [], []
    if {"-h", "--help"} & set(rest) or arguments in ([], ["--version"]):
        return
    while rest:
        token = rest.pop(0)
        if token == "--":  # only words follow
            words += rest
            break
        if not _is_flag(token):
            words.append(token)
            continue
        name, given_at_once, value = token.partition("=")
        flag = name.replace("_", "-")
        if flag not in kinds:
            near = _nearest(flag, list(kinds))
            hint = f"did you mean {near}?" if near else f"see {program} --help."
            raise ArgumentError(f"{flag} must be a flag of {program}, but is not: {hint}")
        values = [value] if given_at_once else ["True"] if _is_alone(kinds[flag], rest) else []
        parts, several = _parts(kinds[flag])
        most = len(rest) if several else len(parts) - len(values)
        while rest and most > 0 and not _is_flag(rest[0]):
            values.append(rest.pop(0))
            most -= 1
        dashed = [token for token in rest[:1] if token.partition("=")[0] not in kinds]
        _check_values(flag, parts, several, values, f"{flag}={shlex.quote(*dashed)}" if dashed else "")
        given.append(flag)
    if "--resume" in given and len(given) > 1:
        others = ", ".join(flag for flag in given if flag != "--resume")
        raise ArgumentError(
            f"--resume must stand alone, as all settings are read from the run, but is given with {others}: leave the "
            "other flags out."
        )
    _check_words(called, program, words)


def _spelt_out(arguments: Sequence[str]) -> list[str]:
    """The arguments, with True after each switch that stands alone."""
    kinds = _flags(_called(arguments))
    found = []
    for index, token in enumerate(arguments):
        found += [token, "True"] if _is_alone(kinds.get(token.replace("_", "-")), arguments[index + 1 :]) else [token]
    return found


def _is_alone(kind: Any, rest: Sequence[str]) -> bool:
    """True for a switch that no True or False follows."""
    return kind is bool and rest[:1] not in (["True"], ["False"])


def _parts(kind: Any) -> tuple[tuple[Any, ...], bool]:
    """Types of a flag's values, and True if there may be any number of values of the one type."""
    if get_origin(kind) not in (tuple, list, set, Sequence):
        return (kind,), False
    parts = tuple(part for part in get_args(kind) if part is not ...)
    return parts, get_origin(kind) is not tuple or ... in get_args(kind)


def _check_values(flag: str, parts: tuple[Any, ...], several: bool, values: Sequence[str], dashed: str) -> None:
    """Raise for too few values, and for a value that is no choice or no number where the flag takes those.

    Args:
        dashed: spelling of a value that looks like a flag, if one follows.
    """
    if len(values) < len(parts):
        must = "at least one value" if several else f"{len(parts)} values" if len(parts) > 1 else "a value"
        remedy = f"pass one that begins with a dash as {dashed}" if dashed else f"pass {flag} VALUE"
        remedy = f"pass them with spaces between, such as {flag} 0.5 0.9" if len(parts) > 1 else remedy
        raise ArgumentError(f"{flag} must have {must}, but has {len(values) or 'none'}: {remedy}.")
    for part, value in zip(parts * len(values) if several else parts, values, strict=False):
        allowed = get_args(part) or (part,)
        choices = allowed if get_origin(part) is Literal else ("True", "False") if part is bool else ()
        if choices:
            require_choice(flag, value, choices)
        for number, name in ((int, "a whole number"), (float, "a number")):
            if number in allowed and not (NoneType in allowed and value == "None") and not _reads(number, value):
                remedy = f"pass numbers with spaces between, such as {flag} 5 10" if several else "pass one, such as 5"
                refuse(flag, f"be {name}{' or None' if NoneType in allowed else ''}", value, remedy)


def _reads(number: type, value: str) -> bool:
    """True if Python reads the text as a number of this type."""
    try:
        number(value)
    except ValueError:
        return False
    return True


def _check_words(called: Sequence[str], program: str, words: Sequence[str]) -> None:
    """Refuse words that name no command or study, and more or fewer folders than a command takes."""
    if called in ([], ["run"], ["language"]):
        known = {"run": registered("study"), "language": LANGUAGE}[called[0]] if called else COMMANDS
        what = "a study" if called == ["run"] else "a command"
        if not words:
            raise ArgumentError(f"{program} must be given {what}, but is given none: choose one of {', '.join(known)}.")
        require_choice(what, words[0], known)
    command = " ".join(called[:1] if called[0] == "run" else called)
    least, most = WORDS.get(command, (0, len(words)))
    if not least <= len(words) <= most:
        given, takes = (
            " ".join(words) or "none",
            {"report": "one folder", "identify": "one learner"}.get(
                command, "one model" if most else "no words but flags"
            ),
        )
        raise ArgumentError(f"{program} takes {takes}, but is given {given}: see {program} --help.")


def _is_flag(token: str) -> bool:
    """True for --flag, -f and --, not for negative numbers, -inf among them."""
    return token == "--" or (token[:1] == "-" and token.lstrip("-")[:1].isalpha() and not _reads(float, token))


def _called(arguments: Sequence[str]) -> list[str]:
    """The command, and the study of run, that the arguments begin with."""
    if not arguments or arguments[0] not in COMMANDS:
        return []
    words = [arguments[0], *(word.replace("_", "-") for word in arguments[1:2])]  # as tyro takes them, too
    known = {"run": registered("study"), "language": LANGUAGE}.get(words[0], {})
    return words if words[1:] and words[1] in known else words[:1]


def _flags(called: Sequence[str]) -> dict[str, Any]:
    """The flags of a command, each with the type of its value."""
    if called in ([], ["run"], ["language"]):
        return {}
    own = get_type_hints(LANGUAGE[called[1]] if called[0] == "language" else COMMANDS[called[0]])
    own = {
        name: kind
        for name, kind in own.items()
        if name not in ("study", "settings", "directory", "directories", "learner", "paths", "model")
    }
    if called[0] == "run":
        presets = registered("study")[called[1]].presets
        own |= {"preset": Literal[tuple(presets)]} | _nested(next(iter(presets.values())))
    if list(called) == ["language", "train"]:
        from mesascope.language.learning import PRESETS

        own |= _nested(PRESETS["quick"])
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
    """The flag that is meant: of nearly the same word or the same meaning, in the same group if there are several."""
    *group, word = flag.lstrip("-").split(".")
    word, _, value = MEANINGS.get(word, word).partition(" ")

    def likeness(known: str) -> tuple[float, float]:
        *own, last = known.lstrip("-").split(".")
        return _alike(last, word), _alike(".".join(own), ".".join(group))

    near = [flag for flag in flags if likeness(flag)[0] >= NEAR]
    return f"{max(near, key=likeness)} {value}".rstrip() if near else ""


def _alike(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()
