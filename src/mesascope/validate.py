"""Types that declare ranges, and a check of a config's fields against their types.

A config is a frozen dataclass. `frozen` makes one from a class; `validated` checks fields on construction.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, dataclass_transform, get_args, get_origin, get_type_hints

import msgspec

from mesascope.errors import (
    ArgumentError,
    ArgumentTypeError,
    plain,
    refuse,
    require_choice,
    require_count,
    require_instance,
    require_number,
    shown,
)

__all__ = [
    "Count", "NonEmpty", "NonNegative", "Positive", "Several", "Share", "Whole", "frozen", "validate", "validated",
]  # fmt: skip

_T = TypeVar("_T")

Count = Annotated[int, msgspec.Meta(ge=1)]
Several = Annotated[int, msgspec.Meta(ge=2)]
Whole = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
NonNegative = Annotated[float, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
NonEmpty = Annotated[tuple[_T, ...], msgspec.Meta(min_length=1)]


@dataclass_transform(frozen_default=True)
def frozen(target: type[_T]) -> type[_T]:
    """Make a frozen dataclass whose fields are checked against their types; NumPy scalars become Python numbers.

    >>> @frozen
    ... class Plan:
    ...     steps: Count = 10
    >>> Plan(0)
    Traceback (most recent call last):
    mesascope.errors.ArgumentError: steps must be at least 1, but is 0: pass a larger whole number.
    """
    return validated(dataclasses.dataclass(frozen=True)(target))


def validated(target: type[_T]) -> type[_T]:
    """Check the fields of a frozen dataclass on construction, before its own ``__post_init__``."""
    own = getattr(target, "__post_init__", None)
    if not dataclasses.is_dataclass(target) or hasattr(own, "validates"):
        return target

    def check(self: Any) -> None:
        validate(self)
        if own is not None:
            own(self)

    check.validates = True  # type: ignore[attr-defined]
    target.__post_init__ = check  # type: ignore[attr-defined]
    if own is None:  # the dataclass's __init__ does not call __post_init__
        target.__init__ = _then_checked(target.__init__)
    return target


def _then_checked(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        self.__post_init__()

    return made


def validate(config: Any) -> None:
    """Check the fields of a frozen dataclass, and store lists as tuples and NumPy scalars as Python numbers.

    Raises:
        ArgumentTypeError: a value does not have the type of its field.
        ArgumentError: a number is out of range, or a value is not one of the choices.
    """
    for name, hint in _hints(type(config)).items():
        object.__setattr__(config, name, _checked(name, getattr(config, name), hint))


@functools.cache
def _hints(target: type) -> Mapping[str, Any]:
    try:
        hints = get_type_hints(target, include_extras=True)
    except NameError:  # types are local to a function, or imported only for type checkers
        hints = {}
    return {field.name: hints.get(field.name, Any) for field in dataclasses.fields(target)}  # type: ignore[arg-type]


def _checked(name: str, value: Any, hint: Any) -> Any:
    """Check a value against the declared type ``hint``, and return it."""
    value, (origin, kinds, bounds) = plain(value), _parts(hint)
    if origin in (Union, UnionType):
        return _of_union(name, value, kinds)
    if origin is Literal:
        require_choice(name, value, kinds)
    elif origin is tuple:
        return _of_tuple(name, value, kinds, bounds.min_length or 0)
    elif origin in (int, float):
        _check_number(name, value, bounds, whole=origin is int)
    elif origin in (bool, str) or (isinstance(origin, type) and dataclasses.is_dataclass(origin)):
        require_instance(name, value, origin)
    return value


@functools.cache
def _parts(hint: Any) -> tuple[Any, tuple[Any, ...], msgspec.Meta]:
    """Type, type arguments and range of a hint."""
    bounds = msgspec.Meta()
    if get_origin(hint) is Annotated:
        hint, *metas = get_args(hint)
        bounds = next((one for one in metas if isinstance(one, msgspec.Meta)), bounds)
    return get_origin(hint) or hint, get_args(hint), bounds


def _of_union(name: str, value: Any, options: tuple[Any, ...]) -> Any:
    """Check a value against a union, and return it; if no option fits, raise the error of one of them."""
    if value is None and NoneType in options:
        return None
    refused: list[Exception] = []
    several = isinstance(value, tuple | list)  # try tuples first: their error is the useful one
    for option in sorted(options, key=lambda option: (_parts(option)[0] is tuple) != several):
        if option is NoneType:
            continue
        try:
            return _checked(name, value, option)
        except (ArgumentError, ArgumentTypeError) as error:
            refused.append(error)
    raise next((one for one in refused if isinstance(one, ArgumentError)), refused[0])


def _of_tuple(name: str, value: Any, kinds: tuple[Any, ...], least: int) -> Any:
    if not isinstance(value, tuple | list):
        count = 1 if not kinds or kinds[-1] is ... else len(kinds)
        entries = ", ".join([shown(value)] * count) + "," * (count == 1)
        raise ArgumentTypeError(
            f"{name} must be a tuple, but is {shown(value)} ({type(value).__name__}): pass ({entries}), say."
        )
    if kinds and kinds[-1] is not ...:
        if len(kinds) != len(value):
            refuse(name, f"have {len(kinds)} entries", value, "pass as many")
        return tuple(_checked(name, one, kind) for one, kind in zip(value, kinds, strict=True))
    found = tuple(_checked(name, one, kinds[0] if kinds else Any) for one in value)
    if len(found) < least:
        refuse(name, f"have {least} or more entries", found, "pass as many")
    return found


def _check_number(name: str, value: Any, bounds: msgspec.Meta, *, whole: bool) -> None:
    if whole:
        require_count(name, value, least=-math.inf if bounds.ge is None else bounds.ge)
    above, least, most = (
        other if bound is None else bound
        for bound, other in ((bounds.gt, -math.inf), (bounds.ge, -math.inf), (bounds.le, math.inf))
    )
    require_number(name, value, above=above, least=least, most=most)
    if bounds.lt is not None and value >= bounds.lt:
        refuse(name, f"be less than {bounds.lt:g}", value, "pass a smaller number")
