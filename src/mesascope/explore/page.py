"""Document of the page: panels in the order of the template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bokeh.core.templates import get_env
from bokeh.document import Document

from mesascope.explore.controls import SLIDERS, Controls
from mesascope.explore.files import asset
from mesascope.explore.inside import Inside
from mesascope.explore.one_task import OneTask
from mesascope.explore.parting import Parting
from mesascope.explore.sequences import Sequences
from mesascope.explore.setup import TASKS, Setup
from mesascope.explore.subjects import REGRESSORS, Subject, shipped

SECTIONS = (
    ("parting", "Where they part",
     f"The same learners on {TASKS:,} fresh tasks, paired; bars are intervals of 99 %. Every change above measures anew.",
     ("parting_error", "parting_mark", "parting_left", "parting_right", "parting_break", "parting_broken"), "halves"),
    ("inside", "Inside",
     "Weights of the network beside those of a network constructed to run the algorithm at the sliders' step sizes, the "
     "factor with which predictions take up each direction of the inputs, and the attention of softmax layers.",
     ("inside_error", "inside_mark", "inside_trained_kq", "inside_built_kq", "inside_trained_pv", "inside_built_pv",
      "inside_spectrum", "inside_attention", "inside_note"), "halves"),
    ("sequences", "Sequences",
     "Elements of a linear system, each predicted from those before it by a hybrid of softmax and mesa layers, two "
     "softmax layers, and least squares. A probe is a linear map from a layer's tokens to the next element.",
     ("sequences_error", "sequences_mark", "control_angle", "control_system_noise", "control_start", "sequences_left",
      "sequences_right", "sequences_probe"), "halves thirds"),
)  # fmt: skip
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
    panels = (controls, task, Parting(setup, doc), Inside(setup, doc, task.episode), Sequences(doc))
    roots: dict[str, Any] = {}
    for panel in panels:
        roots |= panel.roots
    for name, model in roots.items():
        model.name = name
        doc.add_root(model)
    doc.title = "mesascope explore"
    doc.template = template()
    doc.template_variables.update(variables([*roots], SECTIONS))
