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
from mesascope.explore.controls import Controls
from mesascope.explore.drawing import Drawing
from mesascope.explore.files import asset
from mesascope.explore.inside import Inside
from mesascope.explore.one_task import DISCS, OneTask
from mesascope.explore.page import SECTIONS, subjects, template, variables
from mesascope.explore.parting import Parting
from mesascope.explore.plots import SIGNS
from mesascope.explore.sequences import Sequences
from mesascope.explore.setup import LEAST_RIDGE, MOST_PAIRS, Setup
from mesascope.explore.subjects import Subject
from mesascope.files import write_aside
from mesascope.nets import Concatenated, InContextRegressor
from mesascope.tasks import LinearRegression

# Learners of the catalogue that the page computes itself.
LEARNERS = (
    "zero", "mean", "last label", "averaging", "gradient-descent", "gradient-descent-plus-plus",
    "centred gradient-descent", "ridge least-squares", "centred least-squares", "newton", "nearest-neighbours",
    *(f"{one} kernel-smoother" for one in ("gaussian", "laplace", "exponential")),
    *(f"{one} kernel-ridge" for one in ("gaussian", "laplace", "manhattan", "quadratic", "cubic")),
)  # fmt: skip
# Tasks of each network.
TASKS = 5
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
        "subjects": {name: _subject(setup, name) for name in found},
        "catalogue": {name: _spans(setup, name) for name in LEARNERS},
        "least_ridge": LEAST_RIDGE, "signs": [SIGNS[True], SIGNS[False]], "discs": DISCS,
    }  # fmt: skip
    setup.choose(next(iter(found)))
    controls, drawing = Controls(setup), Drawing()
    controls.chosen.options = [*LEARNERS]
    widgets = {"subject": controls.subject, "chosen": controls.chosen, "again": controls.again, **controls.sliders}
    widgets |= {name: getattr(drawing, name) for name in ("pair", "x", "y", "add", "delete")}
    for name, widget in widgets.items():
        told = CustomJS(code=f"window.mesascope.moved({name!r})")
        if "value" in widget.properties():
            widget.js_on_change("value", told)
        else:
            widget.js_on_event("button_click", told)
    task, parting = OneTask(setup), Parting(setup, doc)
    panels = (controls, drawing, parting, Inside(setup, doc, task.episode), Sequences(doc))
    roots: dict[str, Any] = {}
    for panel in panels:
        if hasattr(panel, "later"):
            panel.later.now()
        roots |= panel.roots
    roots = {name: model for name, model in roots.items() if name not in DROPPED}
    for name, model in roots.items():
        model.name = name
        doc.add_root(model)
    parts = {"line": drawing.line, "legend": drawing.legend, "answer": drawing.answer, "figure": drawing.figure}
    args = {"parts": parts, "sources": drawing.sources, "controls": widgets, "payload": payload}
    doc.js_on_event(DocumentReady, CustomJS(args=args, code="window.mesascope.start(parts, sources, controls, payload)"))
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


def _subject(setup: Setup, name: str) -> dict[str, Any]:
    """Weights, tasks and settings of a network, as JSON."""
    setup.choose(name)
    subject = setup.subject
    network, family = subject.learner, subject.family
    config = getattr(getattr(network, "config", None), "transformer", None)
    plain = isinstance(network, InContextRegressor) and isinstance(network.config.layout, Concatenated) and (
        config.mlp is None and not any(config.layer_norms) and len({*config.attentions}) == 1
        and config.token_clip is None and network.w0 is None and network.embedding is None
    )  # fmt: skip
    if not plain or not isinstance(family, LinearRegression):
        remedy = "leave LEARNER out, or serve the page"
        refuse("--save", "be used with linear or softmax layers trained on linear regression", subject.title, remedy)
    layers = [
        {"w_kq": one.w_kq.double().tolist(), "w_pv": (config.damping * one.w_pv.double()).tolist()}
        for one in network.products()
    ]
    looped = config.n_layers == 1 or config.shared
    values = {key: value for key, value in setup.values.items() if key != "free"}
    algorithm = "gradient-descent-plus-plus" if subject.has_gamma else "gradient-descent"
    if subject.is_centred:
        algorithm = "centred gradient-descent"
    return {
        "title": subject.title, "titles": setup.titles, "d": subject.d_in, "looped": looped,
        "layers": layers[:1] if looped else layers, "softmax": not network.linear, "algorithm": algorithm,
        "gamma": subject.has_gamma, "values": values, "tasks": [_task(setup, seed) for seed in range(TASKS)],
    }  # fmt: skip


def _task(setup: Setup, seed: int) -> dict[str, Any]:
    """Inputs, labels without noise, noise of size 1, and the query of a task, at scale 1."""
    setup.seed = seed
    setup.values |= {"scale": 1.0, "pairs": MOST_PAIRS, "noise": 0.0}
    (x, y), xq, _ = setup.task()
    setup.values["noise"] = 1.0
    noise = setup.task().context.y - y
    setup.seed = 0
    return {"x": x[0].tolist(), "y": y[0, :, 0].tolist(), "noise": noise[0, :, 0].tolist(), "xq": xq[0, 0].tolist()}


def _spans(setup: Setup, name: str) -> dict[str, Any]:
    free = setup.catalogue[name].free
    return {key: {"low": one.low, "high": one.high, "scale": one.scale} for key, one in free.items()}
