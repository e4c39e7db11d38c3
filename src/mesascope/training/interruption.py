"""Ctrl-C between two steps rather than within one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import distributed

__all__ = ["interruption"]


@contextmanager
def interruption() -> Iterator[Callable[[], bool]]:
    """Tells whether Ctrl-C was pressed since; who presses it twice does not want to wait, and interrupts at once.

    Only where Python's own answer to it holds: a program that handles the signal itself goes on doing so. Of several
    processes that wait for one another none can stop after a step of its own: there it interrupts at once too.
    """
    pressed: list[int] = []

    def note(number: int, frame: Any) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)

    main = threading.current_thread() is threading.main_thread()
    alone = not distributed.is_initialized()
    if not (main and alone) or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield lambda: False
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
