"""The command line: ``mesascope list | run STUDY | report DIR | ledger [DIR...]``, one module a command."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Union

import tyro

from mesascope.cli.ledger import Ledger
from mesascope.cli.list_studies import ListStudies
from mesascope.cli.report import Report
from mesascope.cli.run import run_command
from mesascope.errors import MesascopeError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 0 if all went well, 2 (and one sentence) if not, 130 if interrupted."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments == ["--version"]:
        from mesascope import __version__

        print(f"mesascope {__version__}")
        return 0
    try:
        _parsed(arguments)()
        return 0
    except SystemExit as stop:  # tyro has printed its help, or what is wrong with the flags
        return int(stop.code or 0)
    except MesascopeError as error:
        print(f"mesascope: {error}", file=sys.stderr)
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        print(f"mesascope: {_os_sentence(error)}", file=sys.stderr)
    except KeyboardInterrupt:
        print("mesascope: interrupted; continue with the same command and --resume DIR.", file=sys.stderr)
        return 130
    return 2


def _parsed(arguments: list[str]) -> Callable[[], None]:
    """The command that the arguments spell, ready to be called; a value that settings refuse raises their error."""
    commands = (
        Annotated[run_command(arguments), tyro.conf.subcommand("run")],
        Annotated[ListStudies, tyro.conf.subcommand("list")],
        Annotated[Report, tyro.conf.subcommand("report")],
        Annotated[Ledger, tyro.conf.subcommand("ledger")],
    )
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(
                Union[commands],  # type: ignore[arg-type]  # noqa: UP007
                prog="mesascope",
                description="An instrument for the learning algorithms inside neural networks.",
                args=arguments or ["--help"],
                config=(tyro.conf.FlagConversionOff,),
            )
    except SystemExit as stop:
        refused: BaseException | None = stop
        while refused := refused.__context__:
            if isinstance(refused, MesascopeError):
                raise refused from None
        sys.stderr.write(said.getvalue())
        raise


def _os_sentence(error: OSError) -> str:
    where = error.filename or "the run directory"
    if error.errno == errno.ENOSPC:
        return f"{where} must have room to be written, but its disk is full: free some space, then --resume the run."
    return f"{where} must be readable and writable, but is not ({error.strerror or error}): check the path."
