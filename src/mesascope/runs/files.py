"""Writing a file so that no kill leaves half of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from mesascope.errors import RunDirectoryError

__all__ = ["read_json", "write_aside", "write_json"]


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
    except OSError:
        aside.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write strict JSON (no nan: callers store null)."""
    write_aside(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """Read JSON, or say which file is missing or damaged."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise RunDirectoryError(
            f"{path} must exist in a run directory, but does not: pass the folder of a run."
        ) from None
    except ValueError as error:
        raise RunDirectoryError(
            f"{path} must hold JSON, but is damaged ({error}): restore it, or start a new run."
        ) from None
