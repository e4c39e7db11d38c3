"""Document of the page: panels in the order of the template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bokeh.core.templates import get_env
from bokeh.document import Document
from bokeh.events import DocumentReady, Event

from mesascope.explore.controls import SLIDERS, Controls
from mesascope.explore.files import asset
from mesascope.explore.inside import Inside
from mesascope.explore.later import Later
from mesascope.explore.one_task import OneTask
from mesascope.explore.parting import Parting
from mesascope.explore.plots import words
from mesascope.explore.run_list import RunList
from mesascope.explore.sequences import Sequences
from mesascope.explore.setup import TASKS, Setup
from mesascope.explore.shipped import REGRESSORS, shipped
from mesascope.explore.subjects import Subject

# Anchor, title, text, controls, figures and layout of each panel below the first.
SECTIONS = (
    ("parting", "Where they part",
     f"The same learners on {TASKS:,} fresh tasks, paired; bars are intervals of 99 %.",
     ("break",), ("parting_left", "parting_right", "parting_broken"), "halves"),
    ("inside", "Inside",
     "Weights of the network beside those of a network constructed to run the algorithm at the sliders' step sizes, "
     "the factor with which predictions take up each direction of the inputs, and the attention of softmax layers.",
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
NOTE = "Every change of a setting measures the panels in view anew."
CONTROLS = ("subject", "chosen", *SLIDERS, "again")


def subjects(own: Mapping[str, Subject] | None = None) -> dict[str, Subject]:
    """Own learners first, then the shipped networks."""
    return {**(own or {}), **{name: shipped(name) for name in REGRESSORS}}


def template() -> Any:
    return get_env().from_string(asset("page.html"))


def variables(known: Sequence[str], sections: Sequence[tuple[Any, ...]], note: str = "") -> dict[str, Any]:
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
    parting, inside = Parting(setup, doc), Inside(setup, doc, task.episode)
    sequences, runs = Sequences(doc), RunList(folders, doc)
    panels = (controls, task, parting, inside, sequences, runs)
    more = Later(doc, lambda: setup.extend, lambda _: controls.extended(), words(""), task.drawing.error, 1000)

    def begin(event: Event) -> None:
        """Compute the other panels' numbers once the browser shows the first panel."""
        for one in (parting.later.request, inside.later.request, sequences.move, runs.later.request, more.request):
            one()

    doc.on_event(DocumentReady, begin)
    roots: dict[str, Any] = {}
    for panel in panels:
        roots |= panel.roots
    with doc.models.freeze():  # or each root collects all models again
        for name, model in roots.items():
            model.name = name
            doc.add_root(model)
    doc.title = "mesascope explore"
    doc.template = template()
    doc.template_variables.update(variables([*roots], SECTIONS, NOTE))
