"""Registry of named classes and builders, and configs as JSON records.

`register` stores a class or builder under its kind and a name. A config is a frozen dataclass. `to_record` converts it
to JSON, with registered names rather than class paths, and `from_record` is the inverse.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, ModuleType, UnionType
from typing import Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from mesascope.errors import ArgumentError, ArgumentTypeError, plain, require_choice, shown
from mesascope.modes import guarded
from mesascope.validate import validated

__all__ = ["Registered", "facts", "flat", "from_record", "register", "registered", "to_record", "updated"]

_T = TypeVar("_T")

# Packages or modules that register mesascope's own entries of each kind when they are imported.
_HOMES = {
    "family": ("tasks", "language.windows"),
    "learner": ("learners",),
    "predictor": ("learners",),
    "net": ("nets", "meta"),
    "method": ("meta",),
    "layout": ("nets",),
    "attention": ("nets",),
    "construction": ("constructions",),
    "lens": ("lenses", "identification"),
    "study": ("studies.icl_gd", "studies.mesa", "studies.identifying", "studies.sparse", "studies.language"),
}
# Methods of registered classes (``__call__`` for functions) that become independent of torch's modes: see `guarded`.
_GUARDED = {
    "family": "sample", "learner": "__init__", "predictor": "__init__", "net": "build", "construction": "__call__",
    "lens": "__call__",
}  # fmt: skip
# Declared types of a JSON list, and the type that is built for each.
_LISTS: dict[Any, Callable[..., Any]] = {tuple: tuple, list: list, Sequence: list, frozenset: frozenset, Any: list}


class Registered(NamedTuple):
    """Entry of the registry: a class or builder, and facts about it."""

    target: Any
    facts: Mapping[str, Any]


_REGISTRY: dict[str, dict[str, Registered]] = {}


def register(kind: str, name: str, **facts: Any) -> Callable[[_T], _T]:
    """Decorator that registers a class or builder under ``name``, with ``facts`` such as the ranges of its parameters.

    Functions that draw, build or measure are `guarded`: torch's global modes do not affect their results.
    Dataclasses are `validated`: their fields are checked on construction.

    >>> @register("family", "doc-example")
    ... @dataclasses.dataclass(frozen=True)
    ... class Example:
    ...     size: int = 3
    >>> to_record(Example(4))
    {'kind': 'family', 'name': 'doc-example', 'size': 4}
    >>> from_record({"kind": "family", "name": "doc-example", "sise": 4})
    Traceback (most recent call last):
    mesascope.errors.ArgumentError: a record of doc-example has the unknown key 'sise': did you mean 'size'?
    >>> from_record({"kind": "family", "name": "doc-example", "noise": 4})
    Traceback (most recent call last):
    mesascope.errors.ArgumentError: a record of doc-example has the unknown key 'noise': its keys are size.
    >>> del _REGISTRY["family"]["doc-example"]  # so that other tests do not see it
    """
    require_choice("kind", kind, _HOMES)

    def put(target: _T) -> _T:
        entries = _REGISTRY.setdefault(kind, {})
        held = entries.get(name)
        if held is not None and "file" not in held.facts and _source(held.target) != _source(target):
            raise ArgumentError(
                f"name must be free, but {kind} {name!r} is {_place(held.target)} already: choose another name."
            )
        method = _GUARDED.get(kind, "")
        if inspect.isfunction(target):
            target = guarded(target) if method == "__call__" else target
        elif inspect.isfunction(own := getattr(target, method, None)):
            setattr(target, method, guarded(own, meta=kind == "net"))
        entries[name] = Registered(target, MappingProxyType(dict(facts)))
        return validated(target) if isinstance(target, type) else target  # type: ignore[return-value]  # studies are instances

    return put


def registered(kind: str) -> dict[str, Any]:
    """All entries of a kind by name, in alphabetical order."""
    return {name: entry.target for name, entry in sorted(_entries(kind).items())}


def facts(kind: str, name: str) -> Mapping[str, Any]:
    """Facts about one entry, as passed to `register`."""
    entries = _entries(kind)
    require_choice(kind, name, entries)
    return entries[name].facts


def to_record(config: Any) -> Any:
    """Convert a config to JSON types: fields by name, with ``kind`` and ``name`` if its class is registered.

    A registered class that is not a dataclass, such as a learner, must store its constructor's arguments as attributes
    of the same names. Its tensors and arrays become nested lists, which the constructor must accept.
    """
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        own = {field.name: to_record(getattr(config, field.name)) for field in dataclasses.fields(config) if field.init}
        return _identity(type(config)) | own
    if isinstance(config, Mapping):
        return {str(key): to_record(value) for key, value in config.items()}
    if isinstance(config, list | tuple):
        return [to_record(value) for value in config]
    config = plain(config)
    if config is None or isinstance(config, bool | int | float | str):
        return config
    if not isinstance(config, type) and (found := _identity(type(config))):
        return found | {key: _plain(getattr(config, key)) for key in _hints(type(config))}
    raise ArgumentTypeError(
        f"a config must be made of dataclasses, numbers, strings, lists and mappings, but holds {shown(config)} "
        f"({type(config).__name__}): store what it is built from."
    )


def flat(record: Mapping[str, Any], group: str = "") -> dict[str, Any]:
    """Values of a record by dotted name; those of nested records come last.

    >>> flat({"training": {"steps": 10}, "seeds": 2})
    {'seeds': 2, 'training.steps': 10}
    """
    inner = {key: value for key, value in record.items() if isinstance(value, Mapping)}
    found = {f"{group}{key}": value for key, value in record.items() if key not in inner}
    for key, value in inner.items():
        found |= flat(value, f"{group}{key}.")
    return found


def from_record(record: Any, expected: Any = None) -> Any:
    """Build the config that ``record`` describes: a registered class by its name, or the dataclass ``expected``.

    Raises:
        ArgumentError: a kind, name or key is unknown (the message suggests the nearest), or a value is not allowed.
        ArgumentTypeError: a value has the wrong type.
    """
    if isinstance(record, Mapping) and "kind" in record:
        require_choice("kind", record["kind"], _HOMES)
        known = registered(record["kind"])
        require_choice(record["kind"], record.get("name", ""), known)
        own = {key: value for key, value in record.items() if key not in ("kind", "name")}
        return _built(known[record["name"]], own, record["name"])
    if expected is None:
        raise ArgumentError(f"a record must have the keys kind and name, but is {record!r}: see mesascope.records.")
    return _value(record, expected, "the record")


def updated(record: Any) -> Any:
    """Convert a record to this version; missing fields get defaults, unknown parts stay."""
    if isinstance(record, Mapping) and "kind" in record:
        with contextlib.suppress(ArgumentError, ArgumentTypeError):
            return to_record(from_record(record))
    if isinstance(record, list):
        return [updated(value) for value in record]
    return {key: updated(value) for key, value in record.items()} if isinstance(record, Mapping) else record


def _built(target: Any, record: Mapping[str, Any], name: str) -> Any:
    hints = _hints(target)
    known = {key: value for key, value in record.items() if key not in getattr(target, "retired", ())}
    record = {**getattr(target, "added", {}), **known}  # values for fields that older records lack
    for key in record:
        if key not in hints:
            nearest = difflib.get_close_matches(str(key), hints, n=1)
            hint = f": did you mean {nearest[0]!r}?" if nearest else f": its keys are {', '.join(hints)}."
            raise ArgumentError(f"a record of {name} has the unknown key {key!r}{hint}")
    values = {key: _value(value, hints[key], f"{name}.{key}") for key, value in record.items()}
    try:
        return target(**values)
    except ArgumentTypeError:
        raise
    except TypeError as error:
        raise ArgumentError(f"a record of {name} must fit its constructor, but does not: {error}.") from None


def _value(value: Any, hint: Any, place: str) -> Any:
    """Convert a value to a declared type. Nested records are built here, as msgspec ignores unknown keys."""
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if isinstance(value, Mapping) and "kind" in value:
        built = from_record(value)
        if not any(_is_of(built, option) for option in options):
            declared = " or ".join(one.__name__ for one in options if one is not type(None))
            raise ArgumentTypeError(
                f"{place} must be of type {declared}, but is of type {type(built).__name__}: correct it."
            )
        return built
    if isinstance(value, Mapping):
        classes = [option for option in options if dataclasses.is_dataclass(option)]
        nested = sorted(classes, key=lambda one: (len(set(value) - set(_hints(one))), len(_hints(one))))
        nested = nested or [option for option in options if (get_origin(option) or option) in (dict, Mapping, Any)]
    else:
        nested = [option for option in options if (get_origin(option) or option) in _LISTS and _holds_records(value)]
    refused = []
    for option in nested:
        try:
            return _nested(value, option, place)
        except (ArgumentError, ArgumentTypeError) as error:
            refused.append(error)
    if refused:
        raise refused[0]
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        said = str(error).split(" - at")[0].replace("`", "")
        raise ArgumentTypeError(
            f"{place} must be of its declared type, but is {value!r} ({said}): correct it."
        ) from None


def _is_of(value: Any, hint: Any) -> bool:
    """True if a value is an instance of a declared class; protocols and non-class types accept any value."""
    return hint is Any or not isinstance(hint, type) or getattr(hint, "_is_protocol", False) or isinstance(value, hint)


def _nested(value: Any, hint: Any, place: str) -> Any:
    """Convert a mapping to a dataclass or dict, or a list to its declared container."""
    kinds = get_args(hint)
    if dataclasses.is_dataclass(hint):
        return _built(hint, value, hint.__name__)  # type: ignore[union-attr]
    if isinstance(value, Mapping):
        of_key, of_value = kinds or (Any, Any)
        return {_value(k, of_key, place): _value(v, of_value, f"{place}[{k!r}]") for k, v in value.items()}
    origin = get_origin(hint) or hint
    if origin is not tuple or not kinds or kinds[-1] is ...:
        kinds = (kinds or (Any,))[:1] * len(value)
    if len(kinds) != len(value):
        raise ArgumentTypeError(f"{place} must have {len(kinds)} entries, but has {len(value)}: correct it.")
    entries = enumerate(zip(value, kinds, strict=True))
    return _LISTS[origin](_value(one, kind, f"{place}[{index}]") for index, (one, kind) in entries)


def _holds_records(value: Any) -> bool:
    """True if a list contains a mapping, directly or in a nested list."""
    return isinstance(value, list | tuple) and any(isinstance(one, Mapping) or _holds_records(one) for one in value)


@functools.cache
def _hints(target: Any) -> dict[str, Any]:
    if not dataclasses.is_dataclass(target):  # such classes check their arguments themselves
        parameters = inspect.signature(target).parameters.values()
        return {one.name: Any for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)}
    hints = get_type_hints(target)
    return {field.name: hints[field.name] for field in dataclasses.fields(target) if field.init}


def _plain(value: Any) -> Any:
    """The record of an attribute; a tensor or an array becomes a nested list."""
    return to_record(value.tolist() if hasattr(value, "tolist") else value)


def _identity(target: type) -> dict[str, str]:
    """Kind and name of a registered class; empty if it is not registered."""
    for kind, entries in _REGISTRY.items():
        for name, entry in entries.items():
            if entry.target is target:
                return {"kind": kind, "name": name}
    return {}


def _entries(kind: str) -> Mapping[str, Registered]:
    require_choice("kind", kind, _HOMES)
    for package in _HOMES[kind]:
        _import_all(package)
    return _REGISTRY.get(kind, {})


@functools.cache
def _import_all(package: str) -> None:
    home: ModuleType = importlib.import_module(f"mesascope.{package}")
    for module in pkgutil.walk_packages(getattr(home, "__path__", []), f"{home.__name__}."):
        study = getattr(importlib.import_module(module.name), "STUDY", None)
        if study is not None:
            register("study", study.name)(study)


def _source(target: object) -> tuple[str, str]:
    """File (or module) and name of an object's definition; equal if a file is imported again, under any name."""
    module = getattr(target, "__module__", "?")
    file = getattr(sys.modules.get(module), "__file__", None) or module
    return file, getattr(target, "__qualname__", repr(target))


def _place(target: object) -> str:
    return f"{getattr(target, '__module__', '?')}.{getattr(target, '__qualname__', repr(target))}"
