"""Writing a file so that no kill leaves half of it, and reading it so that damage is named."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mesascope.errors import RunDirectoryError

__all__ = ["arrays_bytes", "read_arrays", "read_json", "sync", "write_aside", "write_json"]


def write_aside(path: Path, content: bytes) -> None:
    """Write beside ``path``, flush to disk, and rename over it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.aside")
    try:
        with open(aside, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
        sync(path.parent)
    except OSError:
        aside.unlink(missing_ok=True)
        raise


def sync(folder: Path) -> None:
    """Flush a folder's list of names to disk, so that what was renamed in it outlives a power cut."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_json(path: Path, value: Any) -> None:
    """Write strict JSON (no nan: callers store null)."""
    write_aside(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def read_json(path: Path, missing: Any = None) -> Any:
    """Read JSON, or say which file is damaged; ``missing`` where there is none, unless that is None."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        if missing is not None:
            return missing
        raise RunDirectoryError(
            f"{path} must exist in a run directory, but does not: pass the folder of a run."
        ) from None
    except ValueError as error:
        raise RunDirectoryError(
            f"{path} must hold JSON, but is damaged ({error}): restore it, or start a new run."
        ) from None


def arrays_bytes(arrays: Mapping[str, np.ndarray]) -> bytes:
    """An .npz of arrays, the same bytes for the same arrays."""
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
