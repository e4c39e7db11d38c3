"""Paired comparisons of the learners on 1,000 tasks, and on changed tasks that may break the agreement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bokeh.core.properties import value
from bokeh.document import Document
from bokeh.models import Button, ColumnDataSource, LabelSet, NoOverlap

from mesascope import lenses
from mesascope.explore import plots
from mesascope.explore.later import Later
from mesascope.explore.ranges import TASKS
from mesascope.explore.setup import Setup
from mesascope.identification import CONDITIONS
from mesascope.measurement import Measurement
from mesascope.streams import stream
from mesascope.tasks import Episode

# On the logarithmic axes, smaller values are drawn at this one.
NOTHING = 1e-9
# Conditions of "Break it", with their names on the page; the unchanged tasks (`OWN`) come first.
BREAKS = {
    "inputs twice as large": "inputs x 2", "half of the pairs": "half the pairs", "an outlier": "an outlier",
    "shifted inputs": "inputs shifted",
}  # fmt: skip
OWN = "as it is"
ERRORS, DIFFERENCES = "Error of each learner", "Difference from the network"
COLUMNS = ("name", "value", "low", "high", "colour", "mark", "text")


class Parting:
    """Panel of paired comparisons; the button adds changed tasks."""

    def __init__(self, setup: Setup, doc: Document) -> None:
        self.setup = setup
        self.error, self.mark, self.breaks = plots.alert(), plots.words(""), False
        self.button = Button(label="Break it", name="break")
        self.button.on_click(self._break)
        self.errors, self.differences, self.broken = (plots.empty(*COLUMNS) for _ in range(3))
        self.left = _dots(ERRORS, "mean squared error", self.errors)
        self.right = _dots(DIFFERENCES, "mean distance of predictions", self.differences)
        title = "Difference from the network on changed tasks"
        self.figure = _dots(title, "mean distance of predictions", self.broken, 260, named=False)
        self.figure.visible = False
        self.later = Later(doc, self._work, self._show, self.mark, self.error, unseen=False)
        self.begin = self.later.request
        setup.listen(self.begin)

    def _break(self) -> None:
        self.breaks = not self.breaks
        self.button.label = "Stop breaking it" if self.breaks else "Break it"
        self.later.request()

    def _work(self) -> Callable[[], Any]:
        setup, learners, titles, breaks = self.setup, self.setup.learners(), self.setup.titles, self.breaks
        most = setup.catalogue[setup.chosen].most_tasks
        return lambda: (titles, *_measured(learners, setup.tasks(), breaks, most))

    def _show(self, found: Any) -> None:
        titles, errors, differences, broken, failed, count = found
        few = f", on {count:,} tasks" if count < TASKS else ""
        self.left.title.text, self.right.title.text = ERRORS + few, DIFFERENCES + few
        for source, figure, own in (
            (self.errors, self.left, errors), (self.differences, self.right, differences),
        ):  # fmt: skip
            names = [titles[role] for role in own]
            _rows(figure, names[::-1])
            _put(source, names, [*own.values()], [*own])
            figure.visible = bool(own)
        if broken or self.figure.visible:
            self.figure.visible = bool(broken)
            _rows(self.figure, list(dict.fromkeys(name for name, _ in reversed(broken))))
            _put(self.broken, [name for name, _ in broken], [*broken.values()], [role for _, role in broken])
        plots.say(self.error, failed)

    @property
    def roots(self) -> dict[str, Any]:
        button = plots.helped(self.button, f"Compares the learners again on changed tasks: {', '.join(BREAKS)}.")
        return {
            "parting_error": self.error, "parting_mark": self.mark, "parting_left": self.left,
            "parting_right": self.right, "control_break": button, "parting_broken": self.figure,
        }  # fmt: skip


def _measured(learners: dict[str, Any], tasks: Episode, breaks: bool, most: int | None = None) -> tuple[Any, ...]:
    """Errors and differences from the network by role, differences by condition if ``breaks``, and error messages.

    Args:
        most: largest number of tasks, if the chosen learner is slow; all learners are compared on the same ones.
    """
    few = tasks if most is None else tasks.part(0, most)
    errors, differences, broken, failed = {}, {}, {}, []
    for role in plots.ROLES[1:]:
        try:
            found = lenses.agreement(learners["network"], learners[role], few)
        except Exception as error:
            failed.append(plots.sentence(error))
            continue
        errors.setdefault("network", found.mse_a)
        errors[role], differences[role] = found.mse_b, found.prediction_difference
    conditions = {OWN: tasks}
    for index, (name, title) in enumerate(BREAKS.items() if breaks else ()):
        changed = CONDITIONS[name](tasks, stream(0, "explore-break", index))
        if changed is not None:
            conditions[title] = changed
    for title, episode in conditions.items() if breaks else ():
        for role in ("algorithm", "ridge"):
            found = lenses.agreement(learners["network"], learners[role], episode)
            broken[title, role] = found.prediction_difference
    return errors, differences, broken, " ".join(dict.fromkeys(failed)), len(few.xq)


def _rows(figure: Any, names: list[str]) -> None:
    if figure.y_range.factors != names:  # setting them again would lay them out again
        figure.y_range.factors = names


def _put(source: ColumnDataSource, names: list[str], found: list[Measurement], roles: list[str]) -> None:
    ends = [(one.value - plots.WIDTH * one.stderr, one.value, one.value + plots.WIDTH * one.stderr) for one in found]
    low, value, high = (
        ([max(end, NOTHING) for end in column] for column in zip(*ends, strict=True)) if ends else ([],) * 3
    )
    source.data = {
        "name": names, "value": value, "low": low, "high": high,
        "colour": [plots.LOOKS[role][0] for role in roles], "mark": [plots.MARKS[role] for role in roles],
        "text": [str(one) for one in found],
    }  # fmt: skip


def _dots(title: str, x: str, source: ColumnDataSource, height: int = 190, *, named: bool = True) -> Any:
    """Figure with one row for each learner: value and interval."""
    found = plots.plot(title, x, "", height=height, y_range=["-"], x_axis_type="log")
    found.add_layout(plots.whisker(base="name", source=source, dimension="width"))
    found.scatter("value", "name", marker="mark", color="colour", size=11, source=source)
    if named:
        found.add_layout(
            LabelSet(
                x=value(4), x_units="screen", y="name", text="text", source=source, y_offset=7, text_font_size="11px"
            )
        )
    found.x_range.range_padding = 0.5
    found.xaxis.major_label_policy = NoOverlap()
    found.y_range.range_padding = 0.2
    return found
