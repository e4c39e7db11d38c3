"""Panel Runs: a list of folders with verdicts, claims with figures and arrays, and curves of two trainings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from bokeh.document import Document
from bokeh.models import Button, Select

from mesascope.errors import MesascopeError
from mesascope.explore import run_text
from mesascope.explore.later import Later
from mesascope.explore.plots import LOOKS, alert, empty, helped, legend, plot, say, sentence, words
from mesascope.runs import Run, find_runs, open_run

NONE = "There is no folder of runs: pass some with --runs DIR, or make one by mesascope run one-step."
# Roles of the two curves in `LOOKS`.
CURVES = ("network", "algorithm")


class RunList:
    """Panel of ``folders``: runs, or folders of runs; nothing else on the disk is read."""

    def __init__(self, folders: Sequence[Path], doc: Document) -> None:
        self.folders, self.runs = [*folders], dict[str, Run]()
        self.error, self.mark = alert(), words("")
        self.table, self.claims, self.shown, self.arrays = (words("", html=True) for _ in range(4))
        names = {"run": "Run", "claim": "Claim", "stage": "Arrays", "first": "First curve", "second": "Second curve",
                 "metric": "Metric"}  # fmt: skip
        self.menus = {name: Select(title=title, name=f"menu_{name}", options=[]) for name, title in names.items()}
        self.again = Button(label="Read the folders again")
        self.sources = [empty("x", "y", "low", "high") for _ in CURVES]
        self.figure = self._figure()
        actions = (self._run, self._claim, self._stage, self._metrics, self._metrics, self._draw)
        for name, action in zip(names, actions, strict=True):
            self._on(name, action)
        self.later = Later(doc, lambda: self._read, self._put, self.mark, self.error)
        self.begin = self.later.request
        self.again.on_click(self.begin)

    def _on(self, name: str, action: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                say(self.error, "")
                action()
            except (MesascopeError, OSError, KeyError, ValueError) as error:
                say(self.error, sentence(error, "a run must be readable", "repair or remove it"))

        self.menus[name].on_change("value", lambda attr, old, new: guarded())

    def _figure(self) -> Any:
        found = plot("Logged while training: means over seeds, and their range", "step", "", height=300, visible=False)
        items = {}
        for role, source in zip(CURVES, self.sources, strict=True):
            colour, dash = LOOKS[role]
            items[role] = [
                found.line("x", "y", source=source, color=colour, line_dash=dash, line_width=2),
                found.varea("x", "low", "high", source=source, color=colour, alpha=0.2),
            ]
        self.legend = legend(found, items)
        return found

    def _read(self) -> tuple[dict[str, Run], str, list[tuple[str, str]]]:
        """Runs by name, their table as HTML, and their trainings as menu options."""
        found, unreadable = list[Run](), list[str]()
        for folder in self.folders:
            try:
                runs, left_out = find_runs([folder])
                found, unreadable = found + runs, unreadable + left_out
            except MesascopeError as error:
                unreadable.append(str(error))
        counts = Counter(run.path.name for run in found)
        runs = {run.path.name if counts[run.path.name] == 1 else str(run.path): run for run in found}
        named = [(name, one) for name, run in runs.items() for one in run_text.trainings(run)]
        trainings = [(f"{name} : {one}", f"{name}: {one}") for name, one in named]
        return runs, run_text.run_table(runs, unreadable) if runs or unreadable else NONE, trainings

    def _put(self, found: tuple[dict[str, Run], str, list[tuple[str, str]]]) -> None:
        self.runs, self.table.text, trainings = found
        for name in ("first", "second"):
            self.menus[name].options = [("", "none"), *trainings]
        self.menus["run"].options = ["", *self.runs]

    def _whole(self, name: str) -> Run | None:
        """The run of a name; raise if its claims or metrics were edited."""
        return open_run(self.runs[name].path) if name else None

    def _run(self) -> None:
        self._list([], [])
        if (run := self._whole(self.menus["run"].value)) is not None:
            self._list(run.claims, [*run.results])
            if run.config["kind"] == "identification":
                self.shown.text = run_text.report_frame(run)

    def _list(self, claims: Sequence[Any], stages: Sequence[str]) -> None:
        self.claims.text, self.shown.text, self.arrays.text = run_text.claim_table(claims), "", ""
        self.menus["claim"].update(options=["", *(one["id"] for one in claims)], value="")
        self.menus["stage"].update(options=["", *stages], value="")

    def _claim(self) -> None:
        run, name = self.runs.get(self.menus["run"].value), self.menus["claim"].value
        if run is not None and name:
            self.shown.text = run_text.claim_text(run, next(one for one in run.claims if one["id"] == name))

    def _stage(self) -> None:
        run, stage = self.runs.get(self.menus["run"].value), self.menus["stage"].value
        self.arrays.text = run_text.array_text(run, stage) if run is not None and stage else ""

    def _curves(self, name: str) -> Any:
        name, _, training = self.menus[name].value.rpartition(" : ")
        run = self._whole(name)
        return None if run is None else run.curves(training)

    def _metrics(self) -> None:
        found = [one for one in (self._curves("first"), self._curves("second")) if one is not None]
        shared = [name for name in (found[0] if found else []) if name not in ("step", "seed")]
        shared = [name for name in shared if all(name in one for one in found)]
        menu = self.menus["metric"]
        menu.update(options=shared, value=menu.value if menu.value in shared else (shared or [""])[0])
        self._draw()

    def _draw(self) -> None:
        metric = self.menus["metric"].value
        for name, source, item in zip(("first", "second"), self.sources, self.legend.items, strict=True):
            curves = self._curves(name) if metric else None
            y = None if curves is None else np.asarray(curves[metric], dtype=float)
            source.data = {
                "x": [] if curves is None else curves["step"], "y": [] if y is None else np.nanmean(y, 0),
                "low": [] if y is None else np.nanmin(y, 0), "high": [] if y is None else np.nanmax(y, 0),
            }  # fmt: skip
            item.label = {"value": self.menus[name].value or "none"}
        self.figure.yaxis.axis_label, self.figure.visible = metric, bool(metric)

    @property
    def roots(self) -> dict[str, Any]:
        helps = {
            "run": "The run whose claims are listed.", "claim": "The claim whose figure is shown.",
            "stage": "The arrays of the run that are shown.", "first": "A training, in blue.",
            "second": "A training, in orange.", "metric": "The logged metric to plot.",
        }  # fmt: skip
        menus = {f"control_{name}": helped(self.menus[name], text) for name, text in helps.items()}
        return {"runs_error": self.error, "runs_mark": self.mark, "runs_table": self.table, **menus,
                "control_read": helped(self.again, "Lists new runs."), "runs_claims": self.claims,
                "runs_shown": self.shown, "runs_arrays": self.arrays, "runs_curves": self.figure}  # fmt: skip
