"""The command line: ``list | run | sweep | identify | explore | language | report | ledger | verify | mutate``."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from typing import Any

from mesascope.errors import ArgumentError, MesascopeError

__all__ = ["main"]

# In narrower terminals, tyro's layout of the help text never terminates.
LEAST_COLUMNS = 40


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status.

    It is 0 on success, 2 on error, and 130 if interrupted. It is 1 if ``verify`` finds changes or damage, ``mutate``
    finds a bug that no claim detects, or the pipe is closed.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if sys.stderr is None:  # closed: occupy its file descriptor, so that no other file gets it
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if sys.stdout is None:
        return _refused("standard output must be open, but is closed: redirect it to a file, or to /dev/null.")
    _prepare()
    try:
        status = _run(arguments)
        sys.stdout.flush()
        return status
    except SystemExit as stop:  # tyro has printed help or an error, or another process has
        return int(stop.code or 0)
    except MesascopeError as error:
        return _refused(str(error))
    except BrokenPipeError:  # the reader, such as head, has closed the pipe
        _silence(sys.stdout)
        return 1
    except OSError as error:
        _silence(sys.stdout)
        return _refused(_os_sentence(error))
    except (MemoryError, OverflowError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        from mesascope.cli.parsing import memory_remedy

        remedies = [memory_remedy(arguments, training) for training in (True, False)]
        remedy = ", or ".join(filter(None, remedies)) or "pass fewer tasks, a smaller batch or fewer seeds"
        remedy = "pass smaller numbers" if isinstance(error, OverflowError) else remedy
        return _refused(f"settings must be computable on this machine, but are not ({_first(error)}): {remedy}.")
    except KeyboardInterrupt as stop:
        _refused(f"the command was interrupted{_advice(stop, ': ')}.")
        return 130


def _run(arguments: list[str]) -> int:
    # These imports take most of the time of a short command: an interrupt during them is told by `main`.
    from mesascope.cli.parsing import naming_flags, parsed
    from mesascope.cli.run import with_study

    if arguments == ["--version"]:
        from mesascope import __version__

        print(f"mesascope {__version__}")
        return 0
    with naming_flags(arguments):
        gc.disable()  # loading studies makes many objects, none of them garbage
        try:
            command = parsed(with_study(arguments))
        finally:
            gc.enable()
        try:
            return command() or 0
        except SystemExit as stop:
            if type(stop) is not SystemExit:  # one of mesascope's own
                raise
            raise ArgumentError(
                f"the code that the command runs must return, but calls sys.exit({stop.code!r}): remove the call, or "
                "raise an error."
            ) from stop


def _prepare() -> None:
    """Prepare signals, output streams and matplotlib's backend for any terminal.

    SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does.
    """
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            with contextlib.suppress(ValueError):  # not in the main thread
                signal.signal(number, signal.default_int_handler)
    os.environ.pop("MPLBACKEND", None)
    if shutil.get_terminal_size().columns < LEAST_COLUMNS:
        os.environ["COLUMNS"] = str(LEAST_COLUMNS)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):  # a replaced stream
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]


def _refused(sentence: str) -> int:
    line = "".join(mark if mark.isprintable() else repr(mark)[1:-1] for mark in sentence)
    try:
        print(f"mesascope: {line}", file=sys.stderr, flush=True)
    except OSError:
        _silence(sys.stderr)
    return 2


def _silence(stream: Any) -> None:
    """Redirect a stream to /dev/null, so that the flush at exit raises no error."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _os_sentence(error: OSError) -> str:
    if error.filename is None:
        return f"standard output must be writable, but is not ({error.strerror}): redirect it elsewhere."
    advice = _advice(error, ", and ")
    if error.errno == errno.ENOSPC:
        return f"{error.filename} must have room to be written, but its disk is full: free some space{advice}."
    return f"{error.filename} must be readable and writable, but is not ({error.strerror}): check the path{advice}."


def _advice(error: BaseException, joint: str) -> str:
    """Advice to continue the interrupted run, or "" if there is none."""
    return "".join(f"{joint}continue by {note}" for note in getattr(error, "__notes__", []))


def _first(error: BaseException) -> str:
    return str(error).splitlines()[0][:120].rstrip(".") if str(error) else type(error).__name__
