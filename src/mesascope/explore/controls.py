"""Menus and sliders of the page; each has one sentence of help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bokeh.models import Button, Select

from mesascope.explore.plots import clicked, helped, slider
from mesascope.explore.ranges import CHOSEN, MOST_PAIRS, at_share

if TYPE_CHECKING:  # the page begins before torch is imported
    from mesascope.explore.setup import Setup

# Title, range, step and help text of each slider.
SLIDERS = {
    "scale": ("Input scale", 0.1, 4.0, 0.05, "Scale of the inputs relative to training; draws the task anew."),
    "noise": ("Noise", 0.0, 1.0, 0.02, "Standard deviation of the noise on the context's labels; draws the task anew."),
    "pairs": ("Pairs", 1, MOST_PAIRS, 1, "Number of pairs (x, y) in the context; draws the task anew."),
    "depth": ("Steps and depth", 1, 10, 1, "Steps of each descent, and applications of the network's layer."),
    "eta": ("Step size eta", 0.0, 12.0, 0.01, "Step size of each descent; initially that of the network's algorithm."),
    "gamma": ("Gamma", 0.0, 0.5, 0.001, "Strength with which GD++ shrinks the inputs after each step."),
    "free": ("Parameter", 0.0, 1.0, 0.01, "First parameter of the chosen learner that has no other slider."),
}  # fmt: skip


class Controls:
    """Controls of a page; ``roots`` are their Bokeh models by name.

    Args:
        subjects: titles of the learners in the first menu, by name; the first is the default.
        catalogue: names of the learners to compare with.
        values: positions of the sliders.
    """

    def __init__(self, subjects: Mapping[str, str], catalogue: Sequence[str], values: Mapping[str, float]) -> None:
        titles: list[Any] = [*subjects.items()]
        chosen = CHOSEN if CHOSEN in catalogue else catalogue[0]
        self.subject = Select(title="Network or learner", value=titles[0][0], options=titles, name="subject")
        self.chosen = Select(title="Compared with", value=chosen, options=[*catalogue], name="chosen")
        self.sliders = {
            name: slider(title, low, max(high, 2 * values.get(name, 0.5)), values.get(name, 0.5), step, name=name)
            for name, (title, low, high, step, _) in SLIDERS.items()
        }
        self.sliders["free"].show_value = False  # its title shows the parameter's value
        self.again = Button(label="New task", name="again")  # its tag is the seed of the task
        self._quiet = False

    @property
    def widgets(self) -> dict[str, Any]:
        return {"subject": self.subject, "chosen": self.chosen, **self.sliders, "again": self.again}

    @property
    def roots(self) -> dict[str, Any]:
        helps = {name: one[-1] for name, one in SLIDERS.items()} | {
            "subject": "The learner in blue: a trained network, or yours.",
            "chosen": "Any algorithm of the catalogue of identify, in green.",
            "again": "Draws another task from the same family.",
        }
        return {f"control_{name}": helped(widget, helps[name]) for name, widget in self.widgets.items()}

    def connect(self, setup: Setup) -> None:
        """Copy settings to ``setup``, now and after each change; a new subject sets the sliders."""
        self.setup = setup
        setup.choose(self.subject.value)
        setup.chosen, setup.seed = self.chosen.value, (self.again.tags or [0])[0]
        setup.values = {name: one.value for name, one in self.sliders.items()}
        self.chosen.options = [*setup.catalogue]
        self.subject.on_change("value", lambda attr, old, new: self._choose(new))
        self.chosen.on_change("value", lambda attr, old, new: self._compare(new))
        clicked(self.again, self._draw)
        for name, one in self.sliders.items():
            one.on_change("value", lambda attr, old, new, name=name: self._move(name, new))
        self._show()

    def extended(self) -> None:
        """Show the whole catalogue in the menu."""
        self._quiet = True
        self.chosen.options = [*self.setup.catalogue]
        self._quiet = False

    def _choose(self, name: str) -> None:
        self.setup.choose(name)
        self._quiet = True
        self.chosen.update(options=[*self.setup.catalogue], value=self.setup.chosen)
        for own, one in self.sliders.items():
            value = self.setup.values[own]
            end = self.setup.subject.most_pairs if own == "pairs" else max(SLIDERS[own][2], 2 * value)
            one.update(end=end, value=value)
        self._quiet = False
        self._show()
        self.setup.notify()

    def _compare(self, name: str) -> None:
        if not self._quiet:
            self.setup.chosen = name
            self._show()
            self.setup.notify()

    def _draw(self) -> None:
        self.setup.seed += 1
        self.setup.notify()

    def _move(self, name: str, value: float) -> None:
        if not self._quiet:
            self.setup.values[name] = value
            self._show()
            self.setup.notify()

    def _show(self) -> None:
        """Disable sliders without effect, and name the chosen learner's parameter with its value."""
        for name, has in self.setup.has.items():
            self.sliders[name].disabled = not has
        free, own = self.setup.free, self.sliders["free"]
        title = "Parameter: none"
        if free is not None:
            span = self.setup.catalogue[self.setup.chosen].free[free]
            title = f"Parameter {free} = {at_share(span, self.setup.values['free']):.3g}"
        own.title = title
