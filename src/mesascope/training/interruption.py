"""Ctrl-C, and other signals that stop a command, between two steps rather than within one."""

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

    Every signal that Python answers by KeyboardInterrupt counts, SIGTERM on the command line; a program that handles a
    signal itself goes on doing so. Of several processes that wait for one another none can stop after a step of its
    own: there signals interrupt at once too.
    """
    heard: list[int] = []

    def note(number: int, frame: Any) -> None:
        if number == signal.SIGINT and number in heard:  # SIGTERM comes twice where a parent passes it on
            raise KeyboardInterrupt
        heard.append(number)

    main = threading.current_thread() is threading.main_thread()
    alone = not distributed.is_initialized()
    every = signal.valid_signals() if main and alone else ()
    answered = [one for one in every if signal.getsignal(one) is signal.default_int_handler]
    for number in answered:
        signal.signal(number, note)
    try:
        yield lambda: bool(heard)
    finally:
        for number in answered:
            signal.signal(number, signal.default_int_handler)
