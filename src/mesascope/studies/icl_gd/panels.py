"""Panels that the studies' figures are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mesascope.reports import COLOURS, STYLE

__all__ = ["band", "captioned", "contrast_figures", "heat_maps", "ratios"]

Arrays = Mapping[str, np.ndarray]

NAMES = {"gd": "gradient descent", "gd++": "GD++", "centred": "centred descent"}


def captioned(figures: Mapping[str, tuple[Figure, str]]) -> dict[str, Figure]:
    """Figures with their captions as labels."""
    for figure, caption in figures.values():
        figure.set_label(caption)
    return {name: figure for name, (figure, _) in figures.items()}


def band(axes: Axes, x: np.ndarray, runs: np.ndarray, role: str, label: str, **style) -> None:
    """The mean over seeds, and the range that they span."""
    colour = COLOURS[role]
    axes.plot(x, runs.mean(0), color=colour, label=label, **style)
    axes.fill_between(x, runs.min(0), runs.max(0), color=colour, alpha=0.2, lw=0)


def ratios(axes: Axes, x: np.ndarray, values: np.ndarray, role: str = "trained", label: str | None = None) -> None:
    """One line a seed, beside the ratio 1."""
    axes.axhline(1.0, color=COLOURS["limit"], lw=1)
    axes.plot(x, values.T, ".-", color=COLOURS[role], lw=0.8, alpha=0.7)
    axes.plot([], [], ".-", color=COLOURS[role], label=label)
    axes.ticklabel_format(axis="y", useOffset=False)


def contrast_figures(
    results: Mapping[str, Arrays], name: str, title: str, references: Sequence[str], *, source: str, log: bool = False
) -> dict[str, tuple[Figure, str]]:
    """The two figures of one `contrast`: while training, and on inputs of other scales."""
    with matplotlib.rc_context(STYLE):
        return {
            name: (
                _training(results[name], title, references, log),
                f"{title} on held-out tasks while training; line and band: mean and range over seeds. {source}.",
            ),
            f"{name}-input-scale": (
                _input_scale(results[f"{name}-input-scale"], title, references),
                f"{title} and references where inputs are scaled away from the 0.5 of training. {source}.",
            ),
        }


def heat_maps(panels: Sequence[tuple[str, np.ndarray]], bound: float | None = None) -> Figure:
    """Matrices side by side on one colour scale, from -bound to bound; the largest |entry| if None."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9, 2.6))
        limit = bound or max(float(np.abs(matrix).max()) for _, matrix in panels)
        for axes, (title, matrix) in zip(figure.subplots(1, len(panels)), panels, strict=True):
            image = axes.imshow(matrix, cmap="RdBu", vmin=-limit, vmax=limit)
            axes.set_title(title)
            axes.grid(False)
            axes.set(xticks=[], yticks=[])
        figure.colorbar(image, ax=figure.axes, shrink=0.8)
    return figure


def _training(run: Arrays, title: str, references: Sequence[str], log: bool) -> Figure:
    figure = Figure(figsize=(9, 3))
    loss, cosine, difference = figure.subplots(1, 3)
    band(loss, run["step"], run["mse"] / 2, "trained", title)
    for name in references:
        loss.axhline(float(run[f"{name}_mse"].mean()) / 2, color=COLOURS[name], label=NAMES[name])
        band(cosine, run["step"], run[f"{name}_sensitivity_cosine"], name, f"to {NAMES[name]}")
        band(difference, run["step"], run[f"{name}_prediction_difference"], name, f"to {NAMES[name]}")
    loss.set(title="Loss", xlabel="training step", ylabel="half mean squared error", yscale="log" if log else "linear")
    cosine.set(title="Cosine of sensitivities", xlabel="training step", ylim=(None, 1.02))
    difference.set(title="Mean difference of predictions", xlabel="training step", yscale="log")
    for axes in (loss, cosine, difference):
        axes.legend()
    return figure


def _input_scale(swept: Arrays, title: str, references: Sequence[str]) -> Figure:
    figure = Figure(figsize=(9, 3))
    left, right = figure.subplots(1, 2)
    band(left, swept["x_scale"], swept["trained"] / 2, "trained", title)
    for name in references:
        left.plot(swept["x_scale"], swept[name] / 2, "o", color=COLOURS[name], mfc="none", label=NAMES[name])
        ratios(right, swept["x_scale"], swept[f"{name}_ratio"], name, f"to {NAMES[name]}")
    left.set(title="Loss by input scale", xlabel="input scale", ylabel="half mean squared error", yscale="log")
    right.set(title="Loss ratio, each seed", xlabel="input scale", ylabel="trained / reference", yscale="log")
    for axes in (left, right):
        axes.legend()
    return figure
