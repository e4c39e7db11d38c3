"""A page of one file that opens from disk: one task that its own JavaScript computes, and the other panels as they are.

The payload holds each network's products and some tasks; `assets/learners.js` has the learners.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bokeh.document import Document
from bokeh.embed import file_html
from bokeh.events import DocumentReady
from bokeh.models import CustomJS
from bokeh.resources import INLINE

from mesascope.errors import refuse
from mesascope.explore import payload as payload_of
from mesascope.explore.controls import Controls
from mesascope.explore.drawing import Drawing
from mesascope.explore.files import asset
from mesascope.explore.inside import Inside
from mesascope.explore.later import Later
from mesascope.explore.one_task import OneTask
from mesascope.explore.page import SECTIONS, subjects, template, variables
from mesascope.explore.parting import Parting
from mesascope.explore.plots import SIGNS
from mesascope.explore.predicting import DISCS
from mesascope.explore.sequences import Sequences
from mesascope.explore.setup import LEAST_RIDGE, Setup
from mesascope.explore.subjects import Subject
from mesascope.files import write_aside

NOTE = "This page was saved: its points and sliders work without a server; the panels below are as they were measured."


def save(own: Mapping[str, Subject], path: Path) -> Path:
    """Write the page.

    Raises:
        ArgumentError: a learner cannot run in a browser, or the file cannot be written.
    """
    found = subjects(own)
    if path.is_dir() or not path.parent.is_dir():
        refuse("--save", "be a file in a folder that exists", str(path), "pass a path such as page.html")
    write_aside(path, page(found).encode())
    return path


def page(found: Mapping[str, Subject]) -> str:
    """HTML of the page."""
    doc, setup = Document(), Setup(found)
    payload = {
        "subjects": {name: payload_of.subject(setup, name) for name in found},
        "catalogue": {name: payload_of.spans(setup, name) for name in payload_of.LEARNERS},
        "least_ridge": LEAST_RIDGE, "signs": [SIGNS[True], SIGNS[False]], "discs": DISCS,
    }  # fmt: skip
    setup.choose(next(iter(found)))
    controls, drawing = Controls(setup), Drawing()
    controls.chosen.options = [*payload_of.LEARNERS]
    widgets = {"subject": controls.subject, "chosen": controls.chosen, "again": controls.again, **controls.sliders}
    widgets |= {name: getattr(drawing, name) for name in ("pair", "x", "y", "add", "delete")}
    for name, widget in widgets.items():
        told = CustomJS(code=f"window.mesascope.moved({name!r})")
        if "value" in widget.properties():
            widget.js_on_change("value", told)
        else:
            widget.js_on_event("button_click", told)
    task, parting = OneTask(setup), Parting(setup, doc)
    panels: tuple[Any, ...] = (controls, drawing, parting, Inside(setup, doc, task.episode), Sequences(doc))
    roots: dict[str, Any] = {}
    for panel in panels:
        for one in vars(panel).values():
            if isinstance(one, Later):
                one.now()
        roots |= panel.roots
    roots = {name: model for name, model in roots.items() if name not in DROPPED}
    with doc.models.freeze():
        for name, model in roots.items():
            model.name = name
            doc.add_root(model)
    parts = {"line": drawing.line, "legend": drawing.legend, "answer": drawing.answer, "figure": drawing.figure}
    args = {"parts": parts, "sources": drawing.sources, "controls": widgets, "payload": payload}
    doc.js_on_event(
        DocumentReady, CustomJS(args=args, code="window.mesascope.start(parts, sources, controls, payload)")
    )
    sections = [
        (anchor, title, text, [one for one in names if one not in LIVE], figures, layout)
        for anchor, title, text, names, figures, layout in SECTIONS[:-1]
    ]
    own = variables([*roots], sections, NOTE)
    own["page_js"] += asset("learners.js") + asset("saved.js")
    doc.title = "mesascope explore"
    return file_html(doc, INLINE, template=template(), template_variables=own, suppress_callback_warning=True)


# Controls that need a server.
LIVE = ("break", "angle", "system_noise", "start")
DROPPED = {f"control_{name}" for name in LIVE}
