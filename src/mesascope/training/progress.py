"""What a person sees while something takes more than a few seconds."""

from __future__ import annotations

import sys
import time

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from mesascope.shapes import Tensor
from mesascope.training.loop import Metrics

__all__ = ["ProgressBar", "at_a_terminal"]


class ProgressBar:
    """An observer of `fit`: a bar with loss and time left on a terminal, a line every few seconds elsewhere.

    Args:
        name: of what is trained.
        steps: of the whole training.
        every: seconds between two lines, or a tenth of that between two updates of the bar.
        per_step: tokens of a step, whose rate is told; None for what has none.
    """

    def __init__(self, name: str, steps: int, *, every: float = 5.0, per_step: int | None = None) -> None:
        self.name, self.steps, self.every, self.per_step = name, steps, every, per_step
        self._first: tuple[int, float] | None = None
        self._shown = time.monotonic()
        self._bar = _bar() if at_a_terminal() else None
        self._task = None

    def __enter__(self) -> ProgressBar:
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task(self.name, total=self.steps, loss="")
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, step: int, metrics: Metrics) -> None:
        now = time.monotonic()
        self._first = self._first or (step, now)
        due = self.every / 10 if self._bar is not None else self.every
        if now - self._shown < due and step < self.steps:
            return
        self._shown = now
        first, start = self._first
        pace = (now - start) / max(step - first, 1)
        loss = _said(metrics["loss"])
        if self.per_step is not None and pace > 0:
            loss += f", {self.per_step / pace:,.0f} tokens/s"
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=step, loss=loss)
            return
        left = pace * (self.steps - step)
        if sys.stderr is not None:  # as it is for a program without a console
            print(f"{self.name}: step {step}/{self.steps}, {loss}, {left:.0f} s left", file=sys.stderr, flush=True)


def at_a_terminal() -> bool:
    """True if a person can see what is printed to stderr, which a program without a console does not have."""
    return sys.stderr is not None and sys.stderr.isatty()


def _said(loss: Tensor | float) -> str:
    """The mean over the members that train, and how many do not."""
    losses = torch.as_tensor(loss).flatten()
    finite = losses[torch.isfinite(losses)]
    if len(finite) == len(losses):
        return f"loss {finite.mean().item():.4g}"
    diverged = f"{len(losses) - len(finite)} of {len(losses)} diverged"
    return f"loss {finite.mean().item():.4g} ({diverged})" if len(finite) else diverged


def _bar() -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TextColumn("{task.fields[loss]}"),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=Console(stderr=True))
