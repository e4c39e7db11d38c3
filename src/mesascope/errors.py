"""The errors that mesascope raises, and checks that raise them.

Every message is one sentence: the argument, the rule, the value received, the remedy.
"""

from __future__ import annotations

import difflib
import importlib
import math
import sys
from collections.abc import Iterable
from types import ModuleType, UnionType
from typing import Any, NoReturn

__all__ = [
    "ArgumentError", "ArgumentTypeError", "MesascopeError", "MissingPackageError", "NumericalError",
    "RunDirectoryError", "one_line", "plain", "raised", "refuse", "require_callable", "require_choice", "require_count",
    "require_double", "require_instance", "require_number", "require_package", "shown",
]  # fmt: skip

# PyPI names of modules whose import name differs.
DISTRIBUTIONS = {"sklearn": "scikit-learn", "PIL": "pillow", "dask_jobqueue": "dask-jobqueue"}


class MesascopeError(Exception):
    """Base class of errors that a user can fix; the command line prints them as one sentence."""


class ArgumentError(MesascopeError, ValueError):
    """An argument has the right type, but a value that is not allowed."""


class ArgumentTypeError(MesascopeError, TypeError):
    """An argument has the wrong type."""


class NumericalError(MesascopeError, ArithmeticError):
    """A computation failed: a loss diverged, a prediction is not finite, or a factorisation failed."""


class MissingPackageError(MesascopeError, ImportError):
    """An optional package is not installed, or cannot be imported."""


class RunDirectoryError(MesascopeError):
    """A run directory is missing, damaged, in use, or has another schema version."""


def shown(value: object) -> str:
    """Value on one line of at most 80 characters; longer arrays show only their shape.

    >>> shown([[1.0, 2.0]] * 20)
    '[[1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [1....'
    """
    try:
        line = " ".join(repr(value).split())
    except Exception:  # the object is not fully initialised
        line = f"a {type(value).__name__}"
    if len(line) <= 80:
        return line
    shape = getattr(value, "shape", None)
    return f"a {type(value).__name__} of shape {tuple(shape)}" if isinstance(shape, tuple) else f"{line[:77]}..."


def one_line(error: object) -> str:
    """Message of another package's error, on one line of at most 200 characters, without the full stop."""
    line = " ".join(str(error).split()).rstrip(".")
    return line if len(line) <= 200 else f"{line[:197]}..."


def raised(error: BaseException | None) -> str:
    """Type and message of another package's error, for use in a sentence."""
    return f"{type(error).__name__} ({one_line(error)})"


def refuse(
    argument: str, rule: str, value: object, remedy: str, error: type[MesascopeError] = ArgumentError
) -> NoReturn:
    """Raise ``error`` for ``value``.

    >>> refuse("d_out", "be at least 1", 0, "pass the number of targets")
    Traceback (most recent call last):
    mesascope.errors.ArgumentError: d_out must be at least 1, but is 0: pass the number of targets.
    """
    raise error(f"{argument} must {rule}, but is {shown(value)}: {remedy}.")


def plain(value: Any) -> Any:
    """Convert a NumPy scalar to a Python number, bool or string; return other values unchanged."""
    numpy = sys.modules.get("numpy")  # no NumPy scalar exists before NumPy is imported
    return value.item() if numpy is not None and isinstance(value, numpy.generic) else value


def require_count(argument: str, value: object, *, least: float = 1) -> int:
    """Return ``value`` as a Python int; raise unless it is an integer of at least ``least``.

    >>> import numpy
    >>> require_count("steps", numpy.int64(6))
    6
    """
    value = plain(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ArgumentTypeError(
            f"{argument} must be an integer, but is {shown(value)} ({type(value).__name__}): pass a whole number."
        )
    if value < least:
        refuse(argument, f"be at least {least}", value, "pass a larger whole number")
    return value


def require_instance(argument: str, value: object, kind: type | UnionType, remedy: str = "pass one") -> None:
    """Raise unless ``value`` is an instance of ``kind``, which may be a union such as ``int | str``.

    >>> require_instance("config", 8, dict)
    Traceback (most recent call last):
    mesascope.errors.ArgumentTypeError: config must be of type dict, but is 8 (int): pass one.
    """
    if not isinstance(plain(value), kind):
        own = type(value).__name__
        found = f"{value!r} ({own})" if len(repr(value)) < 80 else f"of type {own}"
        named = " or ".join(one.__name__ for one in (kind.__args__ if isinstance(kind, UnionType) else (kind,)))
        raise ArgumentTypeError(f"{argument} must be of type {named}, but is {found}: {remedy}.")


def require_callable(argument: str, value: object) -> None:
    """Raise unless ``value`` is callable.

    >>> require_callable("observe", 3)
    Traceback (most recent call last):
    mesascope.errors.ArgumentTypeError: observe must be callable, but is 3: pass a module or a function.
    """
    if not callable(value):
        refuse(argument, "be callable", value, "pass a module or a function", ArgumentTypeError)


def require_number(
    argument: str, value: object, *, above: float = -math.inf, least: float = -math.inf, most: float = math.inf
) -> float:
    """Return ``value`` as a Python number; raise unless it is finite and in (above, inf) and [least, most]."""
    value = plain(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ArgumentTypeError(
            f"{argument} must be a number, but is {shown(value)} ({type(value).__name__}): pass a float."
        )
    if not math.isfinite(value):
        refuse(argument, "be finite", value, "pass a finite number")
    if value <= above:
        refuse(argument, f"be greater than {above:g}", value, "pass a larger number")
    if value < least:
        refuse(argument, f"be at least {least:g}", value, "pass a larger number")
    if value > most:
        refuse(argument, f"be at most {most:g}", value, "pass a smaller number")
    return value


def require_double(device: object) -> None:
    """Raise if the device is an Apple GPU, which has no float64.

    >>> require_double("mps")
    Traceback (most recent call last):
    mesascope.errors.ArgumentError: device must support float64, but is 'mps': pass 'cpu'.
    """
    if str(device).partition(":")[0] == "mps":
        refuse("device", "support float64", str(device), "pass 'cpu'")


def require_package(module: str, user: str, extra: str = "") -> ModuleType:
    """Import ``module``, which ``user`` needs; raise if it is not installed or fails to import.

    Args:
        extra: optional dependency group of mesascope that installs the module.

    >>> require_package("no_such", "to_pandas")
    Traceback (most recent call last):
    mesascope.errors.MissingPackageError: no_such must be installed for to_pandas, but is not: pip install no_such.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        root = module.partition(".")[0]
        name = DISTRIBUTIONS.get(root, root)
        failed = "is not" if (error.name or "").partition(".")[0] == root else f"fails to import ({error})"
        also = f", or pip install '.[{extra}]' in mesascope's folder" if extra else ""
        raise MissingPackageError(
            f"{name} must be installed for {user}, but {failed}: pip install {name}{also}."
        ) from None


def require_choice(argument: str, value: object, choices: Iterable[str]) -> None:
    """Raise if a value is not in ``choices``; the message suggests a choice with a similar spelling.

    >>> require_choice("x", "unifrom", ["uniform", "normal"])
    Traceback (most recent call last):
    mesascope.errors.ArgumentError: x must be one of 'normal', 'uniform', but is 'unifrom': did you mean 'uniform'?
    >>> require_choice("x", "cauchy", ["uniform", "normal"])
    Traceback (most recent call last):
    mesascope.errors.ArgumentError: x must be one of 'normal', 'uniform', but is 'cauchy'.
    """
    known = sorted(choices)
    if value in known:
        return
    by_lower = {choice.lower(): choice for choice in known}
    nearest = difflib.get_close_matches(str(value).lower(), by_lower, n=1)
    listed = ", ".join(repr(choice) for choice in known)
    hint = f": did you mean {by_lower[nearest[0]]!r}?" if nearest else "."
    raise ArgumentError(f"{argument} must be one of {listed}, but is {shown(value)}{hint}")
