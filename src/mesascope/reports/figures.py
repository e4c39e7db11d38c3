"""Drawing of declared figures to files."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from mesascope.errors import RunDirectoryError, require_choice
from mesascope.progress import tell
from mesascope.reports.panels import Figure, Matrices
from mesascope.runs import Run

STYLE: dict[Any, Any] = {
    "figure.dpi": 100,
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.formatter.useoffset": False,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.5,
    "svg.fonttype": "path",
    "svg.hashsalt": "mesascope",
    "figure.constrained_layout.use": True,
}


def draw_figures(run: Run, figures: Sequence[Figure], results: Any = None) -> None:
    """Draw figures into a run's folder, from its results or from ``results`` if given.

    A figure that cannot be drawn is left out with a message; errors of the run directory or file system are raised.
    """
    for figure in figures:
        try:
            files = figure_files(figure, run.results if results is None else results)
        except (RunDirectoryError, OSError):
            raise
        except Exception as error:
            said = f"{type(error).__name__}: {' '.join(str(error).split())}"
            tell(f"mesascope: figure {figure.name} is left out, as it raises {said}")
            continue
        run.save_figure(figure.name, figure.caption, files)


def own_style() -> AbstractContextManager[None]:
    """Context in which matplotlib uses its defaults and our style, and ignores the user's matplotlibrc."""
    from matplotlib import rc_context, rcParamsDefault

    defaults: dict[Any, Any] = {name: value for name, value in rcParamsDefault.items() if "backend" not in name}
    return rc_context(defaults | STYLE)


def drawn(figure: Figure, results: Any) -> Any:
    """Draw a figure as a matplotlib ``Figure``, which notebooks display; pyplot is not used."""
    from matplotlib.figure import Figure as Canvas

    class Drawing(Canvas):
        def _repr_png_(self) -> bytes:
            png = io.BytesIO()
            with own_style():
                self.savefig(png, format="png", dpi=150)
            return png.getvalue()

    with own_style():
        canvas = Drawing()
        draw = _draw_matrices if isinstance(figure.panels, Matrices) else _draw_panels
        draw(canvas, figure, results)
    return canvas


def plotted(figures: Sequence[Figure], name: str | None, results: Any) -> Any:
    """Draw the figure called ``name``, or the first figure if None."""
    known = {one.name: one for one in figures}
    name = next(iter(known)) if name is None else name
    require_choice("figure", name, known)
    return drawn(known[name], results)


def figure_files(figure: Figure, results: Any) -> dict[str, bytes]:
    """SVG and PNG of a figure, byte-identical for the same results."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    svg, png = io.BytesIO(), io.BytesIO()
    canvas = drawn(figure, results)
    with own_style():
        # Compute the layout once for both formats; savefig would draw twice.
        canvas.get_layout_engine().execute(canvas)  # type: ignore[union-attr]
        canvas.set_layout_engine("none")
        # Without date and version, files are reproducible.
        FigureCanvasSVG(canvas).print_svg(svg, metadata={"Date": None})
        canvas.set_dpi(200)
        FigureCanvasAgg(canvas).print_png(png, metadata={"Software": None})
    return {"svg": svg.getvalue(), "png": png.getvalue()}


def _draw_panels(canvas: Any, figure: Figure, results: Any) -> None:
    assert isinstance(figure.panels, tuple)
    columns = min(figure.columns, len(figure.panels))
    rows = math.ceil(len(figure.panels) / columns)
    canvas.set_size_inches(figure.size or (5 if columns == 1 else 9.5, 2.9 * rows))
    places = canvas.subplots(rows, columns, squeeze=False, sharey=figure.share_y).ravel()
    named = {}
    for panel, axes in zip(figure.panels, places, strict=False):
        panel.draw(axes, results)
        if figure.share_y and axes is not places[0]:
            axes.set_ylabel("")
        if figure.shared_legend:
            handles, labels = axes.get_legend_handles_labels()
            named |= dict(zip(labels, handles, strict=True))
            axes.get_legend().remove()
    for axes in places[len(figure.panels) :]:
        axes.remove()
    if named:
        canvas.legend(named.values(), named.keys(), loc="outside lower center", ncols=4)


def _draw_matrices(canvas: Any, figure: Figure, results: Any) -> None:
    assert isinstance(figure.panels, Matrices)
    shown = figure.panels.read(results)
    limit = figure.panels.bound or max(float(np.abs(matrix).max()) for matrix in shown.values())
    image, rows = None, figure.panels.rows
    canvas.set_size_inches(figure.size or (9, 2 * rows + 0.6))
    places = canvas.subplots(rows, math.ceil(len(shown) / rows), squeeze=False).ravel()
    for axes in places[len(shown) :]:
        axes.remove()
    for axes, (title, matrix) in zip(places, shown.items(), strict=False):
        image = axes.imshow(matrix, cmap="RdBu", vmin=-limit, vmax=limit)
        axes.set_title(title)
        axes.grid(False)
        axes.set(xticks=[], yticks=[], xlabel=figure.panels.x, ylabel=figure.panels.y)
    canvas.colorbar(image, ax=canvas.axes, shrink=0.8)
