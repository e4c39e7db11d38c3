"""Declared figures: panels of lines, matrices and histograms, read from the results of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mesascope.errors import require_choice
from mesascope.evidence import Claim, Reading, StageReading
from mesascope.evidence.numbers import nominal

Results = Mapping[str, Any]
# Role (key of its colour) and label of a line.
Shown = tuple[str | float, str]

# Colours for each role, distinguishable by colour-blind readers (Okabe-Ito). Numbers as roles are shades of viridis.
COLOURS = {
    "trained": "#0072B2",
    "gd": "#D55E00",
    "gd++": "#CC79A7",
    "centred": "#009E73",
    "interpolated": "#009E73",
    "limit": "#555555",
    "other": "#56B4E9",
}
# Lines without marks also differ in dash style, for prints without colour.
_DASHES = (0, (4, 1, 1, 1, 1, 1))
# Number of letters of the longest name that a legend shows inside its panel: longer ones would cover lines.
LONGEST_INSIDE = 48
# Largest number of rows or columns of a grid whose values are written into its cells.
MOST_WRITTEN = 12
STYLES: dict[Any, Any] = {"gd": "--", "gd++": "-.", "centred": _DASHES, "interpolated": _DASHES, "limit": ":"}


@dataclass(frozen=True)
class Line:
    """A curve ``y``, ``(points,)`` or ``(replicates, points)``, over ``x``; both are arrays or readings.

    Standard errors in ``y`` are not drawn: pass ``error``.

    Args:
        role: key of `COLOURS` for the curve's colour; a number from 0 to 1 is a shade.
        each: draw every replicate; if False, their mean and range.
        marks: matplotlib's format, such as ``"o"`` for points without a line.
        error: half the length of error bars, or two rows: lengths below and lengths above the points.
    """

    x: Any
    y: Any
    role: str | float
    label: str | None = None
    each: bool = False
    marks: str = "-"
    width: float = 1.5
    error: Any = None


@dataclass(frozen=True)
class Level:
    """A horizontal line at a number, or at the mean of a reading."""

    y: Any
    role: str
    label: str | None = None


@dataclass(frozen=True)
class Grid:
    """A heat map of ``values (rows, columns)``, also shown as text, with a name for each row and column.

    Args:
        label: name of the numbers, beside the colour bar.
    """

    values: np.ndarray
    rows: Sequence[str]
    columns: Sequence[str]
    label: str = ""


@dataclass(frozen=True)
class Lines:
    """A panel of curves, horizontal lines, or a heat map.

    Args:
        read: `Line`, `Level` (horizontal) or `Grid` (heat map) objects, or a function of results that returns them.
        log: axes on a logarithmic scale: ``""``, ``"x"``, ``"y"`` or ``"xy"``.
        limits: arguments of matplotlib's ``Axes.set``, such as ``{"ylim": (0, 1)}``.
    """

    title: str
    x: str
    y: str
    read: Callable[[Results], Sequence[Line | Level | Grid]] | Sequence[Line | Level | Grid]
    log: str = ""
    limits: Mapping[str, Any] = field(default_factory=dict)

    def draw(self, axes: Any, results: Results) -> None:
        items = [_read(item, results) for item in (self.read(results) if callable(self.read) else self.read)]
        if all(float(x).is_integer() for item in items if isinstance(item, Line) for x in item.x):
            axes.locator_params(axis="x", integer=True)
        for item in items:
            if isinstance(item, Level):
                axes.axhline(item.y, color=COLOURS[item.role], ls=STYLES.get(item.role, "-"), lw=1, label=item.label)
            elif isinstance(item, Grid):
                _draw_grid(axes, item)
            else:
                _draw_line(axes, item)
        scales = {f"{axis}scale": "log" for axis in self.log}
        axes.set(title=self.title, xlabel=self.x, ylabel=self.y, **scales, **self.limits)
        for axis, span in (("x", 1000), ("y", 20)):
            if axis in self.log:
                _plain_ticks(getattr(axes, f"{axis}axis"), span)
        if named := axes.get_legend_handles_labels()[1]:
            long = max(map(len, named)) > LONGEST_INSIDE
            axes.legend(**{"loc": "upper center", "bbox_to_anchor": (0.5, -0.2)} if long else {})


@dataclass(frozen=True)
class Matrices:
    """Panels of matrices in ``rows`` rows, on one colour scale from -bound to bound (the largest |entry| if None).

    Args:
        x, y: labels of columns and of rows.
    """

    read: Callable[[Results], Mapping[str, np.ndarray]]
    bound: float | None = None
    rows: int = 1
    x: str = ""
    y: str = ""


@dataclass(frozen=True)
class Histogram:
    """A panel of histograms on a logarithmic axis; ``read`` returns values by label."""

    title: str
    x: str
    y: str
    read: Callable[[Results], Mapping[str, np.ndarray]]
    bins: np.ndarray

    def draw(self, axes: Any, results: Results) -> None:
        for label, values in self.read(results).items():
            axes.hist(np.clip(values, self.bins[0], self.bins[-1]), bins=self.bins, histtype="step", label=label)
        axes.set(title=self.title, xlabel=self.x, ylabel=self.y, xscale="log")
        axes.legend()


@dataclass(frozen=True)
class Figure:
    """A figure of a study.

    Args:
        name: name of its files.
        panels: panels in reading order, ``columns`` in each row; or one `Matrices`.
        size: width and height in inches; chosen from the number of panels if None.
        share_y: one y axis for all panels.
        shared_legend: one legend for all panels, below them.
    """

    name: str
    caption: str
    panels: tuple[Lines | Histogram, ...] | Matrices
    columns: int = 3
    size: tuple[float, float] | None = None
    share_y: bool = False
    shared_legend: bool = False
    claims: tuple[Claim, ...] = ()


def curves(
    stage: StageReading, columns: Mapping[str, Shown], y: str, levels: Sequence[Level] = (), *, title: str = "",
    factor: float = 1.0, log: str = "", each: bool = False,
) -> Lines:  # fmt: skip
    """Columns of a training's log over its steps.

    Args:
        each: draw every replicate; if False, their mean and range.
    """
    lines = [Line(stage["step"], factor * stage[column], *how, each) for column, how in columns.items()]
    return Lines(title, "training step", y, [*lines, *levels], log)


def sweep(
    x: str, y: str, case: Reading, lines: Mapping[Reading, Shown], levels: Sequence[Level] = (), *, title: str = "",
    each: bool = False, marks: str = "-", log: str = "y",
) -> Lines:  # fmt: skip
    """Curves of readings ``(replicates, cases)`` over the swept values ``case``."""
    shown = [Line(case, reading, role, label, each, marks) for reading, (role, label) in lines.items()]
    return Lines(title, x, y, [*levels, *shown], log)


def strip(y: str, names: Mapping[str, str], read: Callable[[Any], Mapping[str, Mapping[str, Any]]]) -> Lines:
    """One mark per replicate above the name of each method; ``read`` returns numbers by label and method.

    Marks of different labels are side by side. A method has marks only if no label lacks it.
    """

    def lines(results: Any) -> list[Line]:
        groups = read(results)
        beside = 0.14 * (np.arange(len(groups)) - (len(groups) - 1) / 2)
        known = [index for index, name in enumerate(names) if all(name in one for one in groups.values())]
        shown = [list(names)[index] for index in known]
        return [
            Line(np.array(known) + beside[place], np.stack([one[name] for name in shown], axis=1),
                 place / (len(groups) - 1) if len(groups) > 1 else "trained", label, each=True, marks="o")
            for place, (label, one) in enumerate(groups.items())
        ]  # fmt: skip

    return Lines("", "", y, lines, limits={"xticks": range(len(names)), "xticklabels": list(names.values())})


def _read(item: Line | Level | Grid, results: Results) -> Any:
    """The item with its readings replaced by arrays."""
    if isinstance(item, Grid):
        return item
    read = {name: nominal(value(results) if callable(value := getattr(item, name)) else value)
            for name in ("x", "y") if hasattr(item, name)}  # fmt: skip
    return replace(item, **read) if isinstance(item, Line) else replace(item, y=float(np.mean(read["y"])))


def _plain_ticks(axis: Any, span: float) -> None:
    """Label a logarithmic axis with plain numbers rather than powers of ten, if they fit."""
    low, high = axis.get_view_interval()
    if high < span * low:
        from matplotlib.ticker import LogLocator

        if high > 4 * low:  # labels at all of 1, 2, ..., 9 would overlap
            axis.set_minor_locator(LogLocator(subs=(2.0, 5.0)))
        for place in (axis.set_major_formatter, axis.set_minor_formatter):
            place("{x:g}")


def _draw_line(axes: Any, line: Line) -> None:
    y, look = np.asarray(line.y), dict[str, Any](color=_colour(line.role))
    if line.marks == "o":
        look["mfc"] = "none"
    marks = [line.marks]
    if line.marks == "-" and line.role in STYLES:
        marks, look["ls"] = [], STYLES[line.role]
    if line.error is not None:
        axes.errorbar(line.x, y, line.error, fmt=line.marks, capsize=3, label=line.label, **look)
    elif y.ndim == 1:
        alone = np.isfinite(y).sum() == 1 and line.marks in ("-", "--", "-.", ":")  # a line needs two points
        axes.plot(line.x, y, *(["o"] if alone else marks), lw=line.width, label=line.label, **look)
    elif line.each:
        axes.plot(line.x, y.T, *marks, lw=0.8, alpha=0.7, **look)
        axes.plot([], [], *marks, label=line.label, **look)
    else:
        axes.plot(line.x, y.mean(0), *marks, lw=line.width, label=line.label, **look)
        axes.fill_between(line.x, y.min(0), y.max(0), color=look["color"], alpha=0.2, lw=0)


def _draw_grid(axes: Any, grid: Grid) -> None:
    image = axes.imshow(grid.values, cmap="viridis", aspect="auto")
    axes.set_xticks(range(len(grid.columns)), grid.columns, rotation=40, ha="right")
    axes.set_yticks(range(len(grid.rows)), grid.rows)
    axes.grid(False)
    axes.spines[:].set_visible(False)
    for (row, column), value in np.ndenumerate(grid.values):
        if np.isfinite(value) and max(grid.values.shape) <= MOST_WRITTEN:
            ink = "kw"[int(image.norm(value) < 0.5)]
            axes.text(column, row, f"{value:.3g}", ha="center", va="center", fontsize=7, color=ink)
    axes.figure.colorbar(image, ax=axes, shrink=0.8, label=grid.label)


def _colour(role: str | float) -> Any:
    if isinstance(role, str):
        require_choice("the role of a line", role, COLOURS)
        return COLOURS[role]
    import matplotlib

    return matplotlib.colormaps["viridis"](0.1 + 0.75 * role)
