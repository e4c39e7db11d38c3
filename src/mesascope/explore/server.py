"""Server of the page on this machine."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import threading
import webbrowser
from collections.abc import Callable
from typing import Any

from bokeh.application import Application
from bokeh.application.handlers import FunctionHandler
from bokeh.core.templates import get_env
from bokeh.document import Document
from bokeh.server.server import Server
from tornado.web import RequestHandler

from mesascope.errors import ArgumentError, MesascopeError, one_line
from mesascope.explore.files import asset

LOOPBACK = "127.0.0.1"
Fill = Callable[[Document], None]


class Sessions:
    """Fills the document of each session; sessions wait on a page that reloads when ``load``, in a thread, has ended.

    Args:
        load: imports and reads the page's parts, and returns the function that fills a document.
    """

    def __init__(self, load: Callable[[], Fill]) -> None:
        self.load, self.fill, self.problem = load, None, ""
        self.ended = threading.Event()
        threading.Thread(target=self._load, daemon=True).start()

    def _load(self) -> None:
        try:
            self.fill: Fill | None = self.load()
        except Exception as error:
            self.problem = _sentence(error)
        self.ended.set()

    def __call__(self, doc: Document) -> None:
        try:
            if self.fill is not None:
                self.fill(doc)
                return
        except Exception as error:
            self.problem = _sentence(error)
            for root in [*doc.roots]:
                doc.remove_root(root)
        doc.title, doc.template = "mesascope explore", get_env().from_string(asset("wait.html"))
        doc.template_variables.update(page_css=asset("page.css"), problem=self.problem)


class _Loaded(RequestHandler):
    """Answers once the page's parts are loaded."""

    def initialize(self, ended: threading.Event) -> None:
        self.ended = ended

    async def get(self) -> None:
        while not self.ended.is_set():
            await asyncio.sleep(0.02)


def _sentence(error: Exception) -> str:
    return str(error) if isinstance(error, MesascopeError) else f"{type(error).__name__}: {one_line(error)}."


def serve(fill: Fill, host: str = LOOPBACK, port: int = 0) -> tuple[Server, str]:
    """Start a server of the page that ``fill`` puts into each session's document; return it and its address.

    Pages of other origins cannot connect to it.

    Args:
        host: address to bind to; only the loopback is open to this machine alone.
        port: 0 for a free one.

    Raises:
        ArgumentError: the port is in use, or the host is no address of this machine.
    """
    logging.getLogger("bokeh").setLevel(logging.ERROR)
    logging.getLogger("tornado.access").setLevel(logging.CRITICAL)
    _require_free(host, port)
    options: dict[str, Any] = {"unused_session_lifetime_milliseconds": 30_000}
    if isinstance(fill, Sessions):
        options["extra_patterns"] = [("/loaded", _Loaded, {"ended": fill.ended})]
    server = Server({"/": Application(FunctionHandler(fill))}, address=host, port=port, **options)
    names = {LOOPBACK, "localhost"} if host in (LOOPBACK, "localhost") else {host}
    origins = server._tornado.websocket_origins
    origins.clear()
    origins.update(f"{name}:{server.port}" for name in names)
    server.start()
    return server, f"http://{host}:{server.port}/"


def _require_free(host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen()
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                remedy = "pass another, or leave it out for a free one"
                raise ArgumentError(f"--port must be free, but {port} is in use: {remedy}.") from None
            if error.errno == errno.EACCES:
                raise ArgumentError(f"--port must be yours to open, but {port} is not: pass one above 1023.") from None
            raise ArgumentError(
                f"--host must be an address of this machine, but is {host!r} ({error.strerror}): leave it out."
            ) from None


def run(server: Server, address: str, *, opens: bool = False) -> None:
    """Serve until interrupted."""
    if opens:
        server.io_loop.add_callback(webbrowser.open, address)
    try:
        server.io_loop.start()
    finally:
        server.stop()
