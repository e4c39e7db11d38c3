"""Figures of ``mesascope language inspect``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mesascope.language import losses_by_octave
from mesascope.measurement import Measurement
from mesascope.reports.figures import figure_files
from mesascope.reports.panels import Figure, Line, Lines, Matrices

_MOST = 128  # most tokens that are legible in an attention map


def draw_inspection(found: Any, folder: Path) -> None:
    """Write the attention maps of the first layer, and the loss by position, as SVG and PNG."""
    folder.mkdir(parents=True, exist_ok=True)
    for figure in (ATTENTION, LOSS):
        for suffix, content in figure_files(figure, found).items():
            (folder / f"{figure.name}.{suffix}").write_bytes(content)


def _maps(found: Any) -> dict[str, Any]:
    return {f"head {head}": own[:_MOST, :_MOST].numpy() for head, own in enumerate(found.maps)}


def _loss(found: Any) -> list[Line]:
    """Mean losses of tokens 1, 2 to 3, 4 to 7 and so on, as in `evaluate`, by the number of the first token."""
    parts = {first: Measurement.of(own) for first, own in losses_by_octave(found.losses).items()}
    error = [own.stderr for own in parts.values()] if len(found.losses) > 1 else None
    return [Line(list(parts), [own.value for own in parts.values()], "trained", marks="o-", error=error)]


ATTENTION = Figure(
    "attention",
    f"Attention of the first layer's heads on the first {_MOST} tokens of one window.",
    Matrices(_maps, x="token attended to", y="token that attends"),
)
LOSS = Figure(
    "loss",
    "Loss by tokens read.",
    (Lines("bars: one standard error over windows", "first of tokens 1, 2-3, 4-7, ...", "nats per token", _loss, "x"),),
    columns=1,
)
