"""A bar and the time left for what takes long, where somebody is watching."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import track

__all__ = ["tracked"]


T = TypeVar("T")


def tracked(items: Sequence[T], what: str) -> Iterable[T]:
    """The items, with a bar on a terminal's standard error or in a notebook, which goes when they end."""
    screen = Console(stderr=True)
    return track(items, what, console=screen, transient=True, disable=not (screen.is_terminal or screen.is_jupyter))
