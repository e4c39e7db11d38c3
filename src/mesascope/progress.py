"""A bar and the time left for what takes long, where somebody is watching."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from rich.console import Console
from rich.progress import track

__all__ = ["tracked"]


T = TypeVar("T")


def tracked(items: Iterable[T], what: str, total: int | None = None) -> Iterable[T]:
    """The items, with a bar on a terminal's standard error or in a notebook, which goes when they end.

    Args:
        total: how many there are, where they do not tell.
    """
    screen = Console(stderr=True)
    hidden = not (screen.is_terminal or screen.is_jupyter)
    return track(items, what, total=total, console=screen, transient=True, disable=hidden)
