"""Models of the one-task panel: sources, figure and controls. The live and the saved page share them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bokeh.models import (
    Button,
    ColumnDataSource,
    CustomJS,
    HoverTool,
    LabelSet,
    Line,
    PointDrawTool,
    Scatter,
    Select,
    Span,
    Spinner,
)

from mesascope.explore.plots import LOOKS, MARKS, ROLES, alert, empty, helped, legend, plot, words


@dataclass
class Drawing:
    """Sources, figure and controls of the panel.

    The user drags ``points``, the pairs of the context, and ``query``. ``live`` always has the current positions of the
    query (first row) and the pairs. ``curves`` are predictions along a line of inputs, ``answers`` those at the query,
    and ``marks`` the weight of each label.
    """

    points: ColumnDataSource = field(default_factory=lambda: empty("x", "y", "pair"))
    query: ColumnDataSource = field(default_factory=lambda: empty("x", "y"))
    live: ColumnDataSource = field(default_factory=lambda: empty("x", "y", "pair"))
    curves: ColumnDataSource = field(default_factory=lambda: empty("x", *ROLES))
    answers: ColumnDataSource = field(default_factory=lambda: empty("x", *ROLES))
    marks: ColumnDataSource = field(default_factory=lambda: empty("x", "y", "size", "colour", "weight", "text"))

    def __post_init__(self) -> None:
        self.line = Span(dimension="height", line_color="gray", line_dash="dotted", location=0)
        self.figure = self._figure()
        self.error, self.answer, self._text = alert(), words("", name="answer"), ""
        self.pair = Select(title="Point", value="query", options=["query"], name="pair")
        self.x, self.y = Spinner(title="x", step=0.05, name="x"), Spinner(title="y", step=0.05, name="y")
        self.add, self.delete = Button(label="Add a pair", name="add"), Button(label="Delete it", name="delete")
        watch = CustomJS(args={"drawing": self.sources}, code="window.mesascope.dragged(drawing)")
        self.points.js_on_change("change", watch)
        self.query.js_on_change("change", watch)

    @property
    def sources(self) -> dict[str, ColumnDataSource]:
        names = ("points", "query", "live", "curves", "answers", "marks")
        return {name: getattr(self, name) for name in names}

    @property
    def widgets(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("pair", "x", "y", "add", "delete")}

    @property
    def roots(self) -> dict[str, Any]:
        helps = {
            "pair": "The point that x and y below belong to, for use without a mouse.",
            "x": "Its input, or its place on the slice.", "y": "Its label.",
            "add": "Adds a pair at the query.", "delete": "Deletes the chosen pair.",
        }  # fmt: skip
        points = {f"control_{name}": helped(widget, helps[name]) for name, widget in self.widgets.items()}
        return {"task_figure": self.figure, "task_error": self.error, "task_answer": self.answer, **points}

    def _figure(self) -> Any:
        found = plot("One task", "input x", "label y", height=420, name="task")
        found.add_layout(self.line)
        # `add_glyph` rather than `figure.scatter`, which makes four copies of each glyph and slows the page.
        marks = found.add_glyph(
            self.marks, Scatter(size="size", fill_color="colour", line_color=None, fill_alpha=0.35), name="marks"
        )
        lines = {}
        for role, (colour, dash) in LOOKS.items():
            curve = Line(y=role, line_color=colour, line_dash=dash, line_width=2.5)
            answer = Scatter(y=role, fill_color=colour, line_color=colour, marker=MARKS[role], size=9)
            lines[role] = [
                found.add_glyph(self.curves, curve, name=f"curve_{role}"), found.add_glyph(self.answers, answer)
            ]  # fmt: skip
        look: dict[str, Any] = {"marker": "inverted_triangle", "fill_color": "#E69F00", "line_color": "black"}
        points = Scatter(size=12, fill_color="white", line_color="black", line_width=2)
        found.add_glyph(self.points, points, name="points")
        found.add_glyph(self.query, Scatter(size=17, **look), name="query")
        found.add_layout(LabelSet(x="x", y="y", text="text", source=self.marks, x_offset=9, y_offset=5,
                                  text_font_size="11px", text_color="gray"))  # fmt: skip
        # A drag begins after five pixels, so the invisible discs that receive it are larger than the points.
        disc = Scatter(size=20, fill_alpha=0, line_alpha=0)
        held = [found.add_glyph(source, disc) for source in (self.points, self.query)]
        draw = PointDrawTool(renderers=held, empty_value=-1)
        found.add_tools(draw, HoverTool(renderers=[marks], tooltips="weight @weight{0.000}"))
        found.toolbar.active_drag, found.toolbar.active_tap = draw, draw
        self.legend = legend(found, lines)
        return found

    def said(self, text: str) -> None:
        """Show the answers as text; a served page waits 200 ms, as each new text makes the browser lay out the page."""
        doc, waits, self._text = self.answer.document, bool(self._text), text
        if doc is None or doc.session_context is None:
            self._say()
        elif not waits:
            doc.add_timeout_callback(self._say, 200)

    def _say(self) -> None:
        self.answer.text, self._text = self._text, ""

    def name(self, titles: dict[str, str]) -> None:
        """Set the legend's names."""
        for item, role in zip(self.legend.items, LOOKS, strict=True):
            if item.label != {"value": titles[role]}:
                item.label = {"value": titles[role]}
