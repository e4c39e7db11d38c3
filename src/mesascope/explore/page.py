"""Document of the page: panels in the order of the template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bokeh.core.templates import get_env
from bokeh.document import Document

from mesascope.explore.controls import SLIDERS, Controls
from mesascope.explore.files import asset
from mesascope.explore.one_task import OneTask
from mesascope.explore.setup import Setup
from mesascope.explore.subjects import REGRESSORS, Subject, shipped

CONTROLS = ("subject", "chosen", *SLIDERS, "again")


def subjects(own: Mapping[str, Subject] | None = None) -> dict[str, Subject]:
    """Own learners first, then the shipped networks."""
    return {**(own or {}), **{name: shipped(name) for name in REGRESSORS}}


def template() -> Any:
    return get_env().from_string(asset("page.html"))


def variables(
    known: Sequence[str], sections: Sequence[tuple[str, str, str, Sequence[str], str]], note: str = ""
) -> dict[str, Any]:
    """Variables of the template; ``known`` are names of roots."""
    panels = [("task", "One task"), *((anchor, title) for anchor, title, *_ in sections)]
    return {
        "page_css": asset("page.css"), "page_js": asset("page.js"), "controls": CONTROLS, "panels": panels,
        "sections": sections, "note": note, "known": list(known),
    }  # fmt: skip


def fill(doc: Document, found: Mapping[str, Subject], folders: Sequence[Path] = ()) -> None:
    """Put the page into a document of a session."""
    setup = Setup(found)
    controls, task = Controls(setup), OneTask(setup)
    roots = controls.roots | task.roots
    for name, model in roots.items():
        model.name = name
        doc.add_root(model)
    doc.title = "mesascope explore"
    doc.template = template()
    doc.template_variables.update(variables([*roots], []))
