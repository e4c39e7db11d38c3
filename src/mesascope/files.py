"""Atomic writes: no kill leaves half of a file."""

from __future__ import annotations

import errno
import os
from pathlib import Path

__all__ = ["append", "sync", "write_aside"]


def write_aside(path: Path, content: bytes) -> None:
    """Write beside ``path``, flush to disk, and rename over it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.aside")
    try:
        _flushed(aside, "wb", content)
        os.replace(aside, path)
        sync(path.parent)
    except OSError:
        aside.unlink(missing_ok=True)
        raise


def append(path: Path, content: bytes) -> None:
    """Write at the end of ``path``, and flush to disk."""
    _flushed(path, "ab", content)


def _flushed(path: Path, mode: str, content: bytes) -> None:
    try:
        with open(path, mode) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        error.filename = error.filename or str(path)  # a full disk does not say which file it was
        raise


def sync(folder: Path) -> None:
    """Flush a folder's list of names to disk, so that what was renamed in it outlives a power cut."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that flush no folders, such as SMB's
                raise
        finally:
            os.close(descriptor)
