"""Progress of long tasks on standard error: a bar on a terminal, lines in a notebook or a log."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from time import monotonic
from typing import Any, TypeVar
from weakref import WeakSet

__all__ = ["STOP", "Progress", "duration", "part_of", "tell", "tell_progress", "tracked"]

P = TypeVar("P", bound="Progress")
T = TypeVar("T")

# Seconds before progress is shown, and between two updates of a bar.
_QUIET, _EVERY = 3.0, 0.5

# The `Progress` that is shown, at most one at a time.
_SHOWN: WeakSet[Progress] = WeakSet()
# Once this event is set, long tasks of this process end at their next checkpoint, as after Ctrl-C.
STOP = threading.Event()
# Names of the enclosing tasks.
_PART_OF: list[str] = []


class Progress:
    """Progress of one task, with an estimate of the time left.

    A terminal shows a bar. A notebook, file or pipe gets a line at each tenth of the total or, if that is unknown, when
    the duration has doubled. The first line or bar appears after 3 seconds, if the task will take at least 3 more.
    Nothing is shown while other progress is shown, in processes of rank 1 or higher, or if the environment variable
    MESASCOPE_PROGRESS is 0.

    Args:
        total: number of items; None if unknown.
        unit: printed before the count, such as "step ".
        stays: leave the finished bar on the terminal.
    """

    def __init__(self, name: str, total: int | None = None, *, unit: str = "", stays: bool = False) -> None:
        self.name, self.total, self.unit, self.stays = ": ".join([*_PART_OF, name]), total, unit, stays
        self.pace: float | None = None  # seconds per item
        self._last, self._tenth = 0.0, 0
        self._bar: Any = None
        self.begin()

    def __enter__(self: P) -> P:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        _SHOWN.discard(self)

    def begin(self, done: int = 0) -> None:
        """Restart the clock with ``done`` items done; the time left is estimated from the pace after this call."""
        self._start, self._first = monotonic(), done

    def update(self, done: int, note: Callable[[], str] | None = None) -> None:
        """Show the number of items that are done, and the text ``note()``, which is called only if it is shown."""
        elapsed, tenth = monotonic() - self._start, 10 * done // (self.total or sys.maxsize)
        if elapsed < _QUIET or len(_SHOWN) > (self in _SHOWN) or _is_silent():
            return
        terminal = sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
        if terminal:
            due = elapsed - self._last >= _EVERY or done == self.total
        else:
            due = tenth > self._tenth or not self._last or (self.total is None and elapsed >= 2 * self._last)
        pace = elapsed / (done - self._first) if done > self._first else None
        ends = self.total is not None and (pace or _QUIET) * (self.total - done) < _QUIET
        if not due or (ends and not self._last):  # do not start to show progress at the end
            return
        _SHOWN.add(self)
        self._last, self._tenth, self.pace = elapsed, tenth, pace
        text = self._text(done, elapsed, note() if note else "")
        if terminal:
            self._draw(done, text)
        else:
            tell(f"{self.name}: {text}")

    def _text(self, done: int, elapsed: float, note: str) -> str:
        parts = [f"{self.unit}{done:,}" + (f" of {self.total:,}" if self.total else ""), *filter(None, [note])]
        if done == self.total:
            parts.append(f"took {duration(elapsed)}")
        elif self.total and self.pace:
            parts.append(f"{duration(self.pace * (self.total - done))} left")
        return ", ".join(parts)

    def _draw(self, done: int, text: str) -> None:
        if self._bar is None:
            # Imported here, as they would slow start-up by a fifth.
            from rich.console import Console
            from rich.progress import BarColumn, Progress as Bar, TextColumn

            name, state = (TextColumn(f"{{task.{part}}}", markup=False) for part in ("description", "fields[text]"))
            self._bar = Bar(name, BarColumn(), state, console=Console(stderr=True), transient=not self.stays)
            self._bar.add_task(self.name, total=self.total, text=text)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=done, text=text)


def tracked(items: Iterable[T], name: str, total: int | None = None) -> Iterator[T]:
    """Yield the items, and show `Progress`.

    Args:
        total: number of items, if ``items`` has no length.
    """
    if total is None and hasattr(items, "__len__"):
        total = len(items)  # type: ignore[arg-type]
    with Progress(name, total) as progress:
        for done, item in enumerate(items, 1):
            yield item
            progress.update(done)


@contextlib.contextmanager
def part_of(work: str) -> Iterator[None]:
    """Prefix ``work`` to the name of each `Progress` that is created in this context."""
    _PART_OF.append(work)
    try:
        yield
    finally:
        _PART_OF.pop()


def tell(line: str) -> None:
    """Print a line on standard error."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):  # the reader has closed the stream, or its disk is full
            print(line, file=sys.stderr, flush=True)


def tell_progress(line: str) -> None:
    """Print a line about progress, unless progress is silent."""
    if not _is_silent():
        tell(line)


def _is_silent() -> bool:
    return (
        sys.stderr is None
        or os.environ.get("MESASCOPE_PROGRESS") == "0"
        or os.environ.get("RANK", "0") != "0"  # torchrun sets RANK
    )


def duration(seconds: float) -> str:
    """Duration in at most two units, rounded up; seconds are shown below ten minutes.

    >>> duration(0.2), duration(60), duration(86), duration(901), duration(3700)
    ('1 s', '1 min', '1 min 26 s', '16 min', '1 h 2 min')
    """
    whole = math.ceil(seconds)
    minutes = whole // 60 if whole < 600 else math.ceil(whole / 60)
    counts = {"h": minutes // 60, "min": minutes % 60, "s": whole % 60 if whole < 600 else 0}
    return " ".join(f"{count} {unit}" for unit, count in counts.items() if count) or "1 s"
