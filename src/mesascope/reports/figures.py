"""The look of mesascope's figures, and their files."""

from __future__ import annotations

import io
from typing import Any

import matplotlib
from matplotlib.figure import Figure

__all__ = ["COLOURS", "STYLE", "figure_files"]

# Colour-blind safe (Okabe-Ito), one colour for each role in every figure.
COLOURS = {
    "trained": "#0072B2",
    "gd": "#D55E00",
    "gd++": "#CC79A7",
    "centred": "#E69F00",
    "interpolated": "#009E73",
    "limit": "#555555",
    "other": "#56B4E9",
}

STYLE: dict[Any, Any] = {
    "figure.dpi": 100,
    "savefig.dpi": 200,
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.5,
    "svg.fonttype": "path",
    "svg.hashsalt": "mesascope",
    "figure.constrained_layout.use": True,
}


def figure_files(figure: Figure) -> dict[str, bytes]:
    """SVG and PNG of a figure, the same bytes for the same figure."""
    files = {}
    with matplotlib.rc_context(STYLE):
        for suffix, metadata in (("svg", {"Date": None}), ("png", {"Software": None})):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=suffix, metadata=metadata)
            files[suffix] = buffer.getvalue()
    return files
