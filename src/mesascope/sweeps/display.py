"""Progress of a sweep: a table on a terminal, lines in a log."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from mesascope.progress import duration, tell, tell_progress
from mesascope.text import counted

if TYPE_CHECKING:
    from mesascope.sweeps.crew import Crew
    from mesascope.sweeps.sweep import Sweep

# Minimum seconds between two lines of a log.
_EVERY = 5.0


@contextlib.contextmanager
def progress_of(sweep: Sweep) -> Iterator[Callable[[Crew], None]]:
    """Yield a function that shows the progress of a crew on standard error."""
    if not (sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")):
        yield _Lines(sweep)
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), refresh_per_second=4) as live:
        yield lambda crew: live.update(_table(sweep, crew))


class _Lines:
    """Print a line for every failure, and one when the counts have changed, at most every five seconds."""

    def __init__(self, sweep: Sweep) -> None:
        self.sweep, self.last, self.at, self.failed = sweep, "", 0.0, 0

    def __call__(self, crew: Crew) -> None:
        for key, sentence in list(crew.failed.items())[self.failed :]:
            tell(f"failed: {crew.tasks[key].label}: {sentence}")
        self.failed = len(crew.failed)
        line, ends = counts(self.sweep, crew), not (crew.waiting or crew.running)
        if line != self.last and (ends or time.monotonic() - self.at >= _EVERY):
            self.last, self.at = line, time.monotonic()
            tell_progress(line)


def counts(sweep: Sweep, crew: Crew) -> str:
    """Numbers of done, running, waiting and failed points, and the time left."""
    numbers = (
        f"{len(crew.done)} done, {len(crew.running)} running, {len(crew.waiting)} waiting, {len(crew.failed)} failed"
    )
    left = seconds_left(sweep, crew)
    return f"{sweep.name}: {numbers}" + (f", {duration(left)} left" if left else "")


def seconds_left(sweep: Sweep, crew: Crew) -> float | None:
    """Estimated seconds until all points are done, if running ones are half done; None if unknown."""
    times = sweep.seconds(crew.done)
    if not times or not crew.running:
        return None
    return sum(times) / len(times) * (len(crew.waiting) + 0.5 * len(crew.running)) / len(crew.running)


def _table(sweep: Sweep, crew: Crew) -> Any:
    from rich.table import Table

    left = seconds_left(sweep, crew)
    parts = {
        "done": len(crew.done), "running": len(crew.running), "waiting": len(crew.waiting), "failed": len(crew.failed),
        "time left": "" if left is None else duration(left),
    }  # fmt: skip
    table = Table(*parts, title=f"{sweep.name}: {counted(len(sweep.points), 'point')}", title_justify="left")
    table.add_row(*map(str, parts.values()))
    table.caption, table.caption_justify = "\n".join(crew.tasks[key].label for key in sorted(crew.running)), "left"
    return table
