"""Panels of the page and their learners."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bokeh.document import Document
from bokeh.events import DocumentReady

from mesascope.explore.controls import Controls
from mesascope.explore.first import First
from mesascope.explore.inside import Inside
from mesascope.explore.later import Later
from mesascope.explore.one_task import OneTask
from mesascope.explore.parting import Parting
from mesascope.explore.plots import words
from mesascope.explore.run_list import RunList
from mesascope.explore.sequences import Sequences
from mesascope.explore.setup import Setup
from mesascope.explore.shipped import REGRESSORS, shipped
from mesascope.explore.subjects import Subject


def subjects(own: Mapping[str, Subject] | None = None) -> dict[str, Subject]:
    """The user's learners, followed by the shipped networks."""
    return {**(own or {}), **{name: shipped(name) for name in REGRESSORS}}


def controls_of(setup: Setup) -> Controls:
    """Controls that show and change the settings."""
    titles = {name: one.title for name, one in setup.subjects.items()}
    found = Controls(titles, [*setup.catalogue], setup.values)
    found.connect(setup)
    return found


def fill(doc: Document, found: Mapping[str, Subject], folders: Sequence[Path] = ()) -> None:
    """Put the page into a session's document."""
    setup = Setup(found)
    first = First(controls_of(setup))
    steps = [*_steps(doc, first, setup, folders)]
    for step in steps[:-1]:
        step()
    first.add_to(doc)
    doc.on_event(DocumentReady, lambda event: steps[-1]())  # once the browser shows the first panel


def complete(doc: Document, first: First, found: Mapping[str, Subject], folders: Sequence[Path] = ()) -> None:
    """Take over a page that is already open, and add its other panels one after another."""
    setup = Setup(found)
    first.controls.connect(setup)
    for step in _steps(doc, first, setup, folders):
        doc.add_next_tick_callback(step)


def _steps(doc: Document, first: First, setup: Setup, folders: Sequence[Path]) -> Sequence[Callable[[], None]]:
    """Functions that add one panel each; the last one starts the computations of all panels."""
    own = first.drawing
    task, begin = OneTask(setup, own), list[Callable[[], None]]()
    own.answer.tags = ["server"]
    more = Later(doc, lambda: setup.extend, lambda _: first.controls.extended(), words(""), own.error, 1000)

    def put(make: Callable[[], Any]) -> None:
        panel = make()
        first.fill(panel.roots)
        begin.append(panel.begin)

    def end() -> None:
        own.answer.tags = ["server", "complete"]
        for one in (*begin, more.request):
            one()

    makers: tuple[Callable[[], Any], ...] = (
        lambda: Parting(setup, doc), lambda: Inside(setup, doc, task.episode), lambda: Sequences(doc),
        lambda: RunList(folders, doc),
    )  # fmt: skip
    return (*(lambda make=make: put(make) for make in makers), end)
