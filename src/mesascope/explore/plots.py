"""Figures and controls of the page, with the palette of mesascope's figures."""

from __future__ import annotations

import functools
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

from bokeh.layouts import column
from bokeh.models import Button, Column, ColumnDataSource, Div, Legend, LegendItem, Slider, TeeHead, Whisker, Widget
from bokeh.plotting import figure

from mesascope.errors import MesascopeError, raised
from mesascope.reports.panels import COLOURS

# Colour and dash of each role; `MARKS` differ, so that colour is never the only difference.
LOOKS: dict[str, tuple[str, str]] = {
    "network": (COLOURS["trained"], "solid"), "algorithm": (COLOURS["gd"], "dashed"),
    "ridge": (COLOURS["gd++"], "dotdash"), "chosen": (COLOURS["centred"], "dotted"),
}  # fmt: skip
ROLES = tuple(LOOKS)  # in the order of legends
MARKS = {"network": "circle", "algorithm": "diamond", "ridge": "square", "chosen": "triangle"}
_ANSWERS = "a learner must answer the tasks of the page"
# Standard errors on each side of an interval of 99 %.
WIDTH = 2.58
SIGNS = {True: COLOURS["trained"], False: COLOURS["gd"]}


@functools.cache
def asset(name: str) -> str:
    """Text of a style sheet, script or template of the page."""
    return (Path(__file__).parent / "assets" / name).read_text(encoding="utf-8")


def plot(title: str, x: str, y: str, height: int = 360, tools: str = "", **options: Any) -> Any:
    """A plain figure that fills the width of its container; screen readers read its title."""
    found = figure(
        height=height, sizing_mode="stretch_width", x_axis_label=x, y_axis_label=y, tools=tools, toolbar_location=None,
        background_fill_color=None, border_fill_color=None, outline_line_color=None, min_border=6,
        title=title, **options,
    )  # fmt: skip
    found.grid.grid_line_alpha = 0.25
    return found


def curve(found: Any, x: str, y: str, source: ColumnDataSource, role: str, size: int) -> list[Any]:
    """Add a line with marks, in the look of a role."""
    colour, dash = LOOKS[role]
    return [
        found.line(x, y, source=source, color=colour, line_dash=dash, line_width=2),
        found.scatter(x, y, source=source, color=colour, marker=MARKS[role], size=size),
    ]


def empty(*columns: str) -> ColumnDataSource:
    """Source with empty columns."""
    return ColumnDataSource({column: [] for column in columns})


def legend(found: Any, items: dict[str, list[Any]], columns: int = 2) -> Any:
    """Put a legend below a figure; a click on an entry hides its line."""
    look: dict[str, Any] = {"background_fill_alpha": 0, "border_line_color": None, "padding": 0, "spacing": 8}
    labels = [LegendItem(label=name, renderers=renderers) for name, renderers in items.items()]
    own = Legend(
        items=labels, ncols=columns, click_policy="hide", location="top_left", label_text_font_size="12px", **look
    )
    found.add_layout(own, "below")
    return own


def whisker(colour: str = "gray", **options: Any) -> Whisker:
    """Error bars from column ``low`` to column ``high``."""
    heads = {name: TeeHead(size=8, line_color=colour) for name in ("lower_head", "upper_head")}
    return Whisker(lower="low", upper="high", line_color=colour, **heads, **options)


def clicked(button: Button, action: Callable[[], None]) -> None:
    """Call ``action`` when a button is pressed, also if its page is shown already: Bokeh subscribes only new ones."""
    button.on_click(action)
    if button.document is not None:
        button.document.callbacks.subscribe("button_click", button)


def shown(number: float) -> float:
    """A coordinate with the digits that its field shows."""
    return float(f"{number:.4g}")


def helped(widget: Widget, text: str) -> Column:
    """A control with one sentence of help below it."""
    widget.stylesheets = [asset("widgets.css")]
    widget.sizing_mode = "stretch_width"
    return column(widget, words(text, "help"), sizing_mode="stretch_width", spacing=0)


def slider(title: str, low: float, high: float, value: float, step: float, **options: Any) -> Slider:
    return Slider(title=title, start=low, end=high, value=min(max(value, low), high), step=step, **options)


def words(text: str, kind: str = "", *, html: bool = False, **options: Any) -> Div:
    """A text of CSS class ``kind``, escaped unless it is HTML."""
    inner = text if html else escape(text)
    look: dict[str, Any] = {"stylesheets": [asset("widgets.css")], "css_classes": [kind] if kind else []}
    return Div(text=inner, sizing_mode="stretch_width", **look, **options)


def sentence(error: Exception, rule: str = _ANSWERS, remedy: str = "correct it") -> str:
    """Error message for the page; ``rule`` and ``remedy`` complete errors of other packages."""
    return str(error) if isinstance(error, MesascopeError) else f"{rule}, but raised {raised(error)}: {remedy}."


def say(place: Div, sentence: str) -> None:
    """Show an error message in ``place``; hide ``place`` if the message is empty."""
    place.text = f'<span role="alert">{escape(sentence)}</span>' if sentence else ""
    place.visible = bool(sentence)


def alert() -> Div:
    """Element for error messages."""
    return words("", "alert", visible=False)
