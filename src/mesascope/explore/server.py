"""Server of the page on this machine."""

from __future__ import annotations

import errno
import logging
import socket
import threading
import webbrowser
from collections.abc import Callable
from functools import partial

from bokeh.application import Application
from bokeh.application.handlers import FunctionHandler
from bokeh.document import Document
from bokeh.events import DocumentReady
from bokeh.server.server import Server
from bokeh.settings import settings

from mesascope.errors import ArgumentError
from mesascope.explore.first import First
from mesascope.explore.plots import say, sentence, words

LOOPBACK = "127.0.0.1"
PATIENCE = 5  # seconds that imports wait for a page to be opened, and again for it to be drawn
Fill = Callable[[Document], None]


class Sessions:
    """Fills each session's document: until ``load`` ends in its thread, by a page that needs no server.

    Args:
        load: imports and reads the page's parts; returns two functions, which fill a document and complete a page.
    """

    def __init__(self, load: Callable[[], tuple[Fill, Callable[[Document, First], None]]]) -> None:
        self.load, self.problem = load, ""
        self.fill: Fill | None = None
        self.waiting, self.lock = list[tuple[Document, First]](), threading.Lock()
        self.opened, self.drawn = threading.Event(), threading.Event()
        threading.Thread(target=self._load, daemon=True).start()

    def _load(self) -> None:
        if self.opened.wait(PATIENCE):  # imports would delay the page: Python runs one thread at a time
            self.drawn.wait(PATIENCE)
        try:
            fill, complete = self.load()
        except Exception as error:
            self.problem, fill = _said(error), None
            complete = lambda doc, first: say(first.drawing.error, self.problem)  # noqa: E731
        with self.lock:
            self.fill = fill
            for doc, first in self.waiting:
                doc.add_next_tick_callback(partial(self._complete, complete, doc, first))
            self.waiting.clear()

    def _complete(self, complete: Callable[[Document, First], None], doc: Document, first: First) -> None:
        try:
            complete(doc, first)
        except Exception as error:
            say(first.drawing.error, _said(error))

    def __call__(self, doc: Document) -> None:
        self.opened.set()
        with self.lock:
            fill = self.fill
            if fill is None:
                first = First.shipped()
                first.add_to(doc)
                doc.on_event(DocumentReady, lambda event: self.drawn.set())
                self.waiting.append((doc, first))
                say(first.drawing.error, self.problem)
        if fill is not None:
            fill(doc)


def _guarded(fill: Fill, doc: Document) -> None:
    """Fill a document; an error is shown in place of the page."""
    try:
        fill(doc)
    except Exception as error:
        doc.clear()
        doc.add_root(words(_said(error), "alert"))


def _said(error: Exception) -> str:
    return sentence(error, "the learners of the page must load", "restart mesascope explore")


def serve(fill: Fill, host: str = LOOPBACK, port: int = 0) -> tuple[Server, str]:
    """Start a server that fills the document of each session with ``fill``; return the server and its address.

    Pages of other origins cannot connect to it.

    Args:
        host: address to bind to; with the loopback address, only this machine can connect.
        port: 0 chooses a free port.

    Raises:
        ArgumentError: the port is not available, or the host is not one address of this machine.
    """
    logging.getLogger("bokeh").setLevel(logging.ERROR)
    for name in ("tornado.access", "bokeh.server.views.ws"):  # the latter recommends flags of another command
        logging.getLogger(name).setLevel(logging.CRITICAL)
    _require_free(host, port)
    settings.perform_document_validation = False  # validation takes a fifth of the time of a page request
    application = Application(FunctionHandler(partial(_guarded, fill)))
    server = Server({"/": application}, address=host, port=port, unused_session_lifetime_milliseconds=30_000)
    names = {LOOPBACK, "localhost"} if host in (LOOPBACK, "localhost") else {host}
    origins = server._tornado.websocket_origins
    origins.clear()
    origins.update(f"{name}:{server.port}" for name in names)
    server.start()
    return server, f"http://{host}:{server.port}/"


def _require_free(host: str, port: int) -> None:
    if host in ("", "0.0.0.0"):  # the server would not know the origins of its pages
        remedy = "pass the one that other machines use, or leave it out"
        raise ArgumentError(f"--host must be one address of this machine, but is {host!r}: {remedy}.")
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
                raise ArgumentError(f"--port must be permitted, but {port} is not: pass one above 1023.") from None
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
