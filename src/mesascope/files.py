"""Atomic writes: a killed process leaves no incomplete file."""

from __future__ import annotations

import errno
import os
from pathlib import Path

__all__ = ["append", "sync", "write_aside"]


def write_aside(path: Path, content: bytes) -> None:
    """Write to a temporary file beside ``path``, flush it to disk, and rename it to ``path``."""
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
        error.filename = error.filename or str(path)  # errors of a full disk do not name the file
        raise


def sync(folder: Path) -> None:
    """Flush a folder's entries to disk, so that renamed files survive a power cut."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems, such as SMB, cannot flush folders
                raise
        finally:
            os.close(descriptor)
