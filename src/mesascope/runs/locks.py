"""Lock of a run's folder: only one process at a time writes to it."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from mesascope.errors import RunDirectoryError
from mesascope.progress import tell
from mesascope.runs.files import damaged

# Lock files in a folder, on file systems with locks and without.
LOCKS = (".lock", ".lock.soft")
# Errors of file systems without locks, such as NFS without its lock service.
_WITHOUT = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
_REMEDIES = dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free some space")


class BusyError(RunDirectoryError):
    """Another process writes to the folder."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes from writing to a folder.

    The operating system releases the lock of a killed process. On file systems without locks, a file that names the
    process and machine replaces the lock. Once that process has ended, the next one on its machine removes the file.
    """
    from filelock import FileLock, SoftFileLock, Timeout

    lock, hint = FileLock(folder / LOCKS[0], timeout=0), ""
    try:
        try:
            lock.acquire()
        except (OSError, NotImplementedError) as error:
            if getattr(error, "errno", errno.ENOSYS) not in _WITHOUT:
                raise
            tell(f"mesascope: {folder} has no file locks ({error}): the file {LOCKS[1]} is used.")
            lock = SoftFileLock(folder / LOCKS[1], timeout=1)
            hint = f" (if there is none, delete {folder / LOCKS[1]})"
            lock.acquire()
    except Timeout:
        raise BusyError(
            f"{folder} must be written by one process at a time, but another is writing: wait for that one{hint}, or "
            "use another folder."
        ) from None
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "check the folder and its permissions")
        rule, found = "be a file that can be written", f"is not ({error.strerror or error})"
        raise damaged(Path(error.filename or folder / LOCKS[0]), rule, found, remedy) from None
    try:
        yield
    finally:
        lock.release()
