"""Files that networks and states are written to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import safetensors

from mesascope.errors import ArgumentError, require_instance

__all__ = ["path_of", "written"]


def path_of(argument: str, value: str | Path) -> Path:
    """A path from a string or a path."""
    require_instance(argument, value, str | Path)
    return Path(value).expanduser()


@contextmanager
def written(argument: str, value: str | Path) -> Iterator[Path]:
    """The path, to be written to within this context; what hinders that is said in a sentence."""
    path = path_of(argument, value)
    try:
        yield path
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise ArgumentError(
            f"{argument} must be where one can write, but is {str(path)!r} "
            f"({' '.join(str(error).split())}): pass another."
        ) from None
