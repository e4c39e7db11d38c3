"""A page in one file that opens from disk: JavaScript computes the panel One task; the other panels are fixed.

The payload holds each network's products and some tasks; `assets/learners.js` has the learners.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from bokeh.document import Document
from bokeh.embed import file_html
from bokeh.resources import INLINE

from mesascope.errors import refuse
from mesascope.explore import payload as payload_of
from mesascope.explore.first import SECTIONS, First
from mesascope.explore.inside import Inside
from mesascope.explore.later import Later
from mesascope.explore.one_task import OneTask
from mesascope.explore.page import controls_of, subjects
from mesascope.explore.parting import Parting
from mesascope.explore.sequences import Sequences
from mesascope.explore.setup import Setup
from mesascope.explore.subjects import Subject
from mesascope.files import write_aside

NOTE = "This page was saved: its points and sliders work without a server; the panels below are as they were measured."


def save(own: Mapping[str, Subject], path: Path) -> Path:
    """Write the page, and return its path.

    Raises:
        ArgumentError: a learner cannot run in a browser, or ``path`` cannot be a file.
    """
    found = subjects(own)
    path = Path(os.path.realpath(path))  # a link stays one
    if (path.exists() and not path.is_file()) or not path.parent.is_dir():
        refuse("--save", "be a file in a folder that exists", str(path), "pass a path such as page.html")
    write_aside(path, page(found).encode())
    return path


def page(found: Mapping[str, Subject]) -> str:
    doc, setup = Document(), Setup(found)
    payload = payload_of.payload(setup)
    setup.choose(next(iter(found)))
    controls = controls_of(setup)
    controls.chosen.options = [*payload["catalogue"]]
    first = First(controls, json.dumps(payload, separators=(",", ":")))
    task = OneTask(setup)
    for panel in (Parting(setup, doc), Inside(setup, doc, task.episode), Sequences(doc)):
        for one in vars(panel).values():
            if isinstance(one, Later):
                one.now()
        first.fill({name: model for name, model in panel.roots.items() if name not in LIVE})
    first.add_to(doc, SECTIONS[:-1], NOTE, saved=True)
    variables = doc.template_variables
    return file_html(doc, INLINE, template=doc.template, template_variables=variables, suppress_callback_warning=True)


# Controls that need a server.
LIVE = tuple(f"control_{name}" for name in ("break", "angle", "system_noise", "start"))
