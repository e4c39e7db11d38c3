"""Server of the page on this machine."""

from __future__ import annotations

import errno
import webbrowser
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bokeh.application import Application
from bokeh.application.handlers import FunctionHandler
from bokeh.server.server import Server

from mesascope.errors import ArgumentError

LOOPBACK = "127.0.0.1"


def serve(fill: Callable[[Any], None], host: str = LOOPBACK, port: int = 0) -> tuple[Server, str]:
    """Start a server of the page that ``fill`` puts into each session's document; return it and its address.

    Pages of other origins cannot connect to it.

    Args:
        host: address to bind to; only the loopback is open to this machine alone.
        port: 0 for a free one.

    Raises:
        ArgumentError: the port is in use, or the host is no address of this machine.
    """
    named = ["localhost", LOOPBACK, host] if host == LOOPBACK else [host]
    try:
        server = Server(
            {"/": Application(FunctionHandler(fill))}, address=host, port=port, allow_websocket_origin=["placeholder"],
            keep_alive_milliseconds=10_000, check_unused_sessions_milliseconds=5_000,
            unused_session_lifetime_milliseconds=30_000,
        )  # fmt: skip
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ArgumentError(f"--port must be free, but {port} is in use: pass another, or none for a free one.") from None
        raise ArgumentError(
            f"--host must be an address of this machine, but is {host!r} ({error.strerror}): leave it out."
        ) from None
    allowed = {f"{one}:{server.port}" for one in named}
    server._tornado.websocket_origins.clear()
    server._tornado.websocket_origins.update(allowed)
    server.start()
    return server, f"http://{host}:{server.port}/"


def run(server: Server, address: str, *, opens: bool = False) -> None:
    """Serve until interrupted."""
    if opens:
        server.io_loop.add_callback(webbrowser.open, address)
    try:
        server.io_loop.start()
    finally:
        server.stop()


__all__ = ["run", "serve", "Mapping", "Path", "Sequence"]
