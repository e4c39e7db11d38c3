"""Handling of Ctrl-C and other signals: training stops between two steps rather than within one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import distributed


@contextmanager
def interruption() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns True once Ctrl-C was pressed; a second Ctrl-C interrupts at once.

    This applies to every signal that Python turns into KeyboardInterrupt, including SIGTERM on the command line. A
    program's own signal handlers are kept. In distributed training, signals interrupt at once, as processes wait for
    one another and cannot stop at different steps.
    """
    heard: list[int] = []

    def note(number: int, frame: Any) -> None:
        if number == signal.SIGINT and number in heard:  # SIGTERM arrives twice if a parent process forwards it
            raise KeyboardInterrupt
        heard.append(number)

    handles = threading.current_thread() is threading.main_thread() and not distributed.is_initialized()
    every = signal.valid_signals() if handles else ()
    answered = [one for one in every if signal.getsignal(one) is signal.default_int_handler]
    for number in answered:
        signal.signal(number, note)
    try:
        yield lambda: bool(heard)
    finally:
        for number in answered:
            signal.signal(number, signal.default_int_handler)
