"""Files of a run: JSON, JSON lines and arrays. Errors name the damaged file."""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from mesascope.errors import ArgumentError, ArgumentTypeError, RunDirectoryError, one_line
from mesascope.files import write_aside
from mesascope.runs.schemas import FILES, SCHEMA, MetricsRow, problem


def as_path(argument: str, value: str | os.PathLike[str]) -> Path:
    """A `Path` from a string or a path; ~ is replaced by the home folder.

    >>> as_path("out", 3)
    Traceback (most recent call last):
    mesascope.errors.ArgumentTypeError: out must be a path, but is 3 (int): pass a string or a pathlib.Path.
    """
    if not isinstance(value, str | Path) or "\0" in str(value) or not str(value):
        raise ArgumentTypeError(
            f"{argument} must be a path, but is {value!r} ({type(value).__name__}): pass a string or a pathlib.Path."
        )
    return Path(os.path.expanduser(value))


def write_json(path: Path, value: Any) -> None:
    """Write strict JSON, which has no nan (callers pass None instead), if it fits the schema of the file's name."""
    write_aside(path, json_bytes(path.name, value, indent=2))


def json_bytes(name: str, value: Any, indent: int | None = None) -> bytes:
    """Strict JSON and a line break, if ``value`` fits the schema of the files of this name."""
    try:
        content = (json.dumps(value, indent=indent, allow_nan=False) + "\n").encode()
        wrong = problem(msgspec.json.decode(content), FILES[name].holds)
    except (TypeError, ValueError, RecursionError) as error:
        wrong = one_line(error)
    if wrong:
        raise ArgumentError(
            f"{name} must fit its schema, but would not ({wrong}): correct the value, and pass None for what is not "
            "finite."
        )
    return content


def damaged(path: Path, rule: str, found: str, remedy: str | None = None) -> RunDirectoryError:
    """Error about a damaged file, with ``remedy`` or, if that is None, the remedy for files of this name."""
    return RunDirectoryError(f"{path} must {rule}, but {found}: {remedy or FILES[path.name].remedy}.")


def read_bytes(path: Path, remedy: str | None = None, missing: bytes | None = None) -> bytes:
    """Bytes of a file. If there is no file, return ``missing``, or raise if that is None."""
    try:
        if path.is_fifo() or path.is_char_device():  # reading could wait for ever
            raise damaged(path, "be a regular file", "is a pipe or a device", remedy)
        return path.read_bytes()
    except FileNotFoundError:
        if missing is not None:
            return missing
        raise damaged(path, "exist in a run directory", "does not", remedy) from None
    except OSError as error:
        raise damaged(path, "be a file that can be read", f"is not ({error.strerror or error})", remedy) from None


def checksum(path: Path) -> str | None:
    """Checksum of a file's bytes; None if there is no file."""
    return hashlib.sha256(read_bytes(path)).hexdigest() if os.path.lexists(path) else None


def read_json(path: Path, missing: Any = None) -> Any:
    """Read JSON and check it against the file's schema. Without a file, return ``missing`` or, if None, raise."""
    content = read_bytes(path, missing=None if missing is None else b"")
    if missing is not None and not content and not path.exists():
        return missing
    return _checked(path, content, "")


def read_lines(path: Path) -> list[Any]:
    """Read the rows of a metrics.jsonl and check their schema; raise if two rows of one step and seed differ.

    Repeated rows are read once. An incomplete last line is left out; if there is no file, the list is empty.
    """
    lines = read_bytes(path, missing=b"").split(b"\n")
    rows: dict[Any, Any] = {}
    for number, line in enumerate(lines[:-1], 1):
        row = _checked(path, line, f"line {number} ")
        if rows.setdefault(tuple(row[name] for name in MetricsRow.__annotations__), row) != row:
            raise damaged(path, "hold one row for each training, step and seed", f"line {number} is another for one")
    return [*rows.values()]


def _checked(path: Path, content: bytes, place: str) -> Any:
    rule = "hold one JSON object a line" if place else "hold JSON"
    try:
        value = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise damaged(path, rule, f"{place}is damaged ({error})") from None
    holds = FILES[path.name].holds
    has_schema = isinstance(value, dict) and "schema" in getattr(holds, "__annotations__", ())
    version = value.get("schema") if has_schema else None
    if type(version) is int and version != SCHEMA:
        remedy = "install a newer mesascope" if version > SCHEMA else "run it again"
        raise damaged(path, f"be of schema {SCHEMA}", f"is of schema {version}", remedy)
    wrong = problem(value, holds)
    if wrong:
        raise damaged(path, f"{rule} of a run", f"{place}does not ({wrong})")
    return value


def arrays_bytes(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Bytes of an .npz file of arrays, byte-identical for the same arrays."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for key, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{key}.npy"), member.getvalue(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def read_arrays(content: bytes) -> dict[str, np.ndarray]:
    """The inverse of `arrays_bytes`."""
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        return {key: archive[key] for key in archive.files}
