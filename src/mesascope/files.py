"""Atomic writes (a killed process leaves at most an incomplete temporary file), and appends."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["append", "naming", "replacing", "sync", "write_aside"]


def write_aside(path: Path, content: bytes) -> None:
    """Write to a temporary file beside ``path``, flush it to disk, and rename it to ``path``."""
    with replacing(path) as aside:
        _flushed(aside, "wb", content)
    sync(path.parent)


@contextlib.contextmanager
def replacing(path: Path, suffix: str = "aside") -> Iterator[Path]:
    """Yield a temporary path beside ``path``; rename its file to ``path`` at the end, or remove it on an error.

    Args:
        suffix: ending of the temporary name. Pass the process id if several processes may write ``path``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{suffix}")
    try:
        yield aside
        os.replace(aside, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            aside.unlink()
        if isinstance(error, OSError) and error.filename == str(aside):
            error.filename = str(path)
        raise


def append(path: Path, content: bytes) -> None:
    """Write at the end of ``path``, and flush to disk."""
    _flushed(path, "ab", content)


def _flushed(path: Path, mode: str, content: bytes) -> None:
    with naming(path), open(path, mode) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Add the path to an OSError that has none, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
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
