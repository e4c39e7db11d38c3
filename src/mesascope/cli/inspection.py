"""Figures of ``mesascope language inspect``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mesascope.language import losses_by_octave
from mesascope.reports.figures import figure_files
from mesascope.reports.panels import Figure, Line, Lines, Matrices

__all__ = ["draw_inspection"]

_MOST = 128  # tokens of a map that can be told apart


def draw_inspection(found: Any, folder: Path) -> None:
    """Write the maps of the first layer, and the loss by the number of tokens read, as SVG and PNG."""
    folder.mkdir(parents=True, exist_ok=True)
    for figure in (ATTENTION, LOSS):
        for suffix, content in figure_files(figure, found).items():
            (folder / f"{figure.name}.{suffix}").write_bytes(content)


def _maps(found: Any) -> dict[str, np.ndarray]:
    return {f"head {head}": own[:_MOST, :_MOST].numpy() for head, own in enumerate(found.maps)}


def _loss(found: Any) -> list[Line]:
    """Means over tokens 1, 2 to 3, 4 to 7 and so on, each at its middle, with two standard errors over windows."""
    parts = losses_by_octave(found.losses)
    middles, n = [first * 2**0.5 for first in parts], len(found.losses)
    error = [2 * float(own.std()) / n**0.5 for own in parts.values()] if n > 1 else None
    return [Line(middles, [float(own.mean()) for own in parts.values()], "trained", marks="o-", error=error)]


ATTENTION = Figure("attention", f"Attention of the first layer, of the first {_MOST} tokens.", Matrices(_maps))
LOSS = Figure("loss", "Loss by tokens read.", (Lines("", "tokens read", "nats a token", _loss, "x"),), columns=1)
