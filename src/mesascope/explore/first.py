"""The page as it opens: one task with its controls, and empty places for the other panels. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bokeh.core.templates import get_env
from bokeh.document import Document
from bokeh.events import DocumentReady
from bokeh.models import CustomJS

from mesascope.explore.controls import SLIDERS, Controls
from mesascope.explore.drawing import Drawing
from mesascope.explore.plots import asset
from mesascope.explore.ranges import TASKS

# Anchor, title, text, controls, figures and layout of each panel below the first.
SECTIONS = (
    ("parting", "Where they part",
     f"The same learners on {TASKS:,} fresh tasks (on fewer if one is slow), paired. Bars are intervals of 99 %, "
     "numbers are means and standard errors.",
     ("break",), ("parting_left", "parting_right", "parting_broken"), "halves"),
    ("inside", "Inside",
     "Weights of the network beside those of a network constructed to run the algorithm at the sliders' step sizes (on "
     "centred inputs, if it centres them), "
     "the spectral filter h of predictions x_q' h(X'X / n) X'y / n, and the attention of the first softmax layer.",
     (), ("inside_trained_kq", "inside_built_kq", "inside_trained_pv", "inside_built_pv", "inside_spectrum",
          "inside_attention"), "quarters"),
    ("sequences", "Sequences",
     "Elements of a linear system, each predicted from those before it by a hybrid of softmax and mesa layers, two "
     "softmax layers, and least squares. A probe is a linear map from a layer's tokens to the next element.",
     ("angle", "system_noise", "start"), ("sequences_left", "sequences_right", "sequences_probe"), "thirds"),
    ("runs", "Runs",
     "Folders of runs with their verdicts. A claim is judged by its interval, drawn against the shaded range that its "
     "bound allows.",
     ("run", "claim", "stage", "first", "second", "metric", "read"),
     ("runs_table", "runs_curves", "runs_claims", "runs_shown", "runs_arrays"), "halves"),
)  # fmt: skip
NOTE = "After each change of a setting, the panels in view are measured again."
CONTROLS = ("subject", "chosen", *SLIDERS, "again")


class First:
    """Bokeh models of the page.

    Args:
        payload: networks, tasks and learners as JSON, from which the page's own JavaScript computes predictions until
            the server sets tags on `Drawing.answer` to take over. If empty, the server computes all predictions.
    """

    def __init__(self, controls: Controls, payload: str = "") -> None:
        self.controls, self.drawing, self.payload = controls, Drawing(), payload
        self.panels = dict[str, Any]()
        self.doc: Document | None = None
        handed = CustomJS(code="window.mesascope.handed(cb_obj.tags)")
        self.drawing.answer.js_on_change("tags", handed)

    @classmethod
    def shipped(cls) -> First:
        """The page of the shipped networks, whose predictions its own JavaScript computes."""
        payload = asset("first.json")
        found = json.loads(payload)
        titles = {name: one["title"] for name, one in found["subjects"].items()}
        return cls(Controls(titles, [*found["catalogue"]], next(iter(found["subjects"].values()))["values"]), payload)

    def fill(self, roots: Mapping[str, Any]) -> None:
        """Add parts of panels; a page that is already open puts them into their places."""
        self.panels |= roots
        if self.doc is not None:
            _add(self.doc, roots)

    def add_to(self, doc: Document, sections: Any = SECTIONS, note: str = NOTE, *, saved: bool = False) -> None:
        """Put the page into a document.

        Args:
            sections: panels below the first.
            saved: True for a page without a server.
        """
        if self.payload:
            self._start(doc)
        roots = self.controls.roots | self.drawing.roots | self.panels
        _add(doc, roots)
        self.doc = doc
        doc.title, doc.template = "mesascope explore", get_env().from_string(asset("page.html"))
        panels = [("task", "One task"), *((anchor, title) for anchor, title, *_ in sections)]
        script = "".join(map(asset, ("page.js", "learners.js", "task.js")))
        doc.template_variables.update({
            "page_css": asset("page.css"), "page_js": script, "controls": CONTROLS, "panels": panels, "note": note,
            "sections": sections, "known": [*roots], "saved": saved, "waits": self.payload and not saved,
        })  # fmt: skip

    def _start(self, doc: Document) -> None:
        own = self.drawing
        widgets = self.controls.widgets | own.widgets
        for name, widget in widgets.items():
            moved = CustomJS(code=f"window.mesascope.moved({name!r})")
            if "value" in widget.properties():
                widget.js_on_change("value", moved)
            else:
                widget.js_on_event("button_click", moved)
        parts = {"line": own.line, "legend": own.legend, "answer": own.answer, "figure": own.figure}
        args = {"parts": parts, "sources": own.sources, "controls": widgets, "payload": self.payload}
        start = CustomJS(args=args, code="window.mesascope.start(parts, sources, controls, JSON.parse(payload))")
        doc.js_on_event(DocumentReady, start)


def _add(doc: Document, roots: Mapping[str, Any]) -> None:
    with doc.models.freeze():  # otherwise the document collects all its models again after each root
        for name, model in roots.items():
            model.name = name
            doc.add_root(model)
