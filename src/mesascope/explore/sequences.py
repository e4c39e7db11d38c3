"""Panel Sequences: a linear system with adjustable rotation, predictions of its elements, and probes by layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from bokeh.document import Document
from bokeh.models import Button, ColumnDataSource, LegendItem

from mesascope import learners, lenses
from mesascope.evidence.numbers import nominal
from mesascope.explore.later import Later
from mesascope.explore.plots import alert, curve, empty, helped, legend, plot, slider, words
from mesascope.explore.shipped import PREDICTORS, shipped_predictor
from mesascope.lenses.needs import predict_in_eval
from mesascope.shapes import Float, Tensor
from mesascope.streams import stream
from mesascope.tasks import LinearDynamics

# Number of sequences for probes, and for errors by element.
PROBED, AVERAGED = 400, 200
TIMES = (4, 8, 16, 24)
ROLES: dict[str, str] = {"mesa": "network", "softmax": "chosen", "least squares": "ridge"}


class Sequences:
    """Panel of one two-dimensional sequence, and of errors over many sequences."""

    def __init__(self, doc: Document) -> None:
        named = dict(zip(ROLES, (shipped_predictor(name) for name in PREDICTORS), strict=False))
        self.family: LinearDynamics = named["mesa"][2]
        self.networks = {name: one[1] for name, one in named.items()}
        self.titles = {name: one[0] for name, one in named.items()} | {"least squares": "least squares"}
        self.predictors = self.networks | {"least squares": learners.RecursiveLeastSquares(ridge=1e-3)}
        self.seed, self.error, self.mark = 0, alert(), words("")
        self.angle = slider("Angle of the matrix (degrees)", 0, 180, 35, 1, name="angle")
        self.noise = slider("Noise of the system", 0.0, 0.5, self.family.noise, 0.01, name="system_noise")
        self.again = Button(label="New start", name="start")
        self.path, self.by_element = empty("t", "truth", *ROLES), empty("t", *ROLES)
        self.probes = {name: empty("layer", "y") for name in self.networks}
        self.left = self._lines("First entry, and its predictions", "element", self.path, "linear")
        truth = self.left.line("t", "truth", source=self.path, color="gray", line_width=6, line_alpha=0.35)
        self.left.legend.items.insert(0, LegendItem(label="the sequence", renderers=[truth]))
        title = f"Error, mean over {AVERAGED} sequences"
        self.right = self._lines(title, "known elements", self.by_element, "log")
        self.probe = self._probes()
        for one in (self.angle, self.noise):
            one.on_change("value", lambda attr, old, new: self.begin())
        self.again.on_click(self._start)
        self.one = Later(doc, self._predict, lambda columns: self.path.update(data=columns), words(""), self.error)
        self.later = Later(doc, self._work, self._show, self.mark, self.error, 250, unseen=False)

    def _lines(self, title: str, x: str, source: ColumnDataSource, scale: str) -> Any:
        y = "value" if scale == "linear" else "mean squared error"
        found = plot(title, x, y, height=300, y_axis_type=scale)
        legend(found, {self.titles[name]: curve(found, "t", name, source, role, 5) for name, role in ROLES.items()}, 3)
        return found

    def _probes(self) -> Any:
        found = plot("Linear probe of the next element", "layer (0 is before the first)", "mean squared error",
                     height=300, y_axis_type="log")  # fmt: skip
        found.xaxis.ticker = [0, 1, 2]
        items = {
            self.titles[name]: curve(found, "layer", "y", source, ROLES[name], 8)
            for name, source in self.probes.items()
        }
        legend(found, items, 3)
        return found

    def sequence(self) -> Float[Tensor, "1 t d"]:
        """The sequence at the sliders' positions; the seed determines its start and its noise."""
        angle, generator = torch.tensor(self.angle.value * torch.pi / 180), stream(self.seed, "explore-sequence")
        turn = torch.stack([torch.stack([angle.cos(), -angle.sin()]), torch.stack([angle.sin(), angle.cos()])])
        state, noise = torch.randn(2, generator=generator), torch.randn(self.family.length, 2, generator=generator)
        states = [state]
        for step in range(self.family.length - 1):
            states.append(turn @ states[-1] + self.noise.value * noise[step])
        return torch.stack(states)[None]

    def begin(self) -> None:
        """Request predictions of the sequence, and errors and probes over many sequences."""
        self.one.request()
        self.later.request()

    def _predict(self) -> Callable[[], Any]:
        own = self.sequence()

        def work() -> Any:
            columns: dict[str, Any] = {"t": np.arange(2, own.shape[1] + 1), "truth": own[0, 1:, 0].numpy()}
            with torch.no_grad():
                for name, predictor in self.predictors.items():
                    columns[name] = predict_in_eval(predictor, own[:, :-1])[0, :, 0].numpy()
            return columns

        return work

    def _start(self) -> None:
        self.seed += 1
        self.begin()

    def _work(self) -> Callable[[], Any]:
        family = replace(self.family, noise=self.noise.value)

        def work() -> Any:
            tasks = family.sample(PROBED, stream(0, "explore-sequences"))
            groups = {name: [one] for name, one in self.predictors.items()}
            errors = lenses.errors_by_time(groups, tasks[:AVERAGED])
            networks = {name: [one] for name, one in self.networks.items()}
            probed = lenses.probe(networks, tasks, times=TIMES, generator=stream(0, "explore-probe"))
            return errors, probed

        return work

    def _show(self, found: Any) -> None:
        errors, probed = found
        means = {name: nominal(errors["mse", name])[0] for name in self.predictors}
        self.by_element.data = {"t": errors.cases["t"], **means}
        last = probed.cases["t"] == TIMES[-1]
        for name, source in self.probes.items():
            source.data = {"layer": probed.cases["layer"][last], "y": nominal(probed["mse", name])[0][last]}

    @property
    def roots(self) -> dict[str, Any]:
        helps = {
            "angle": (self.angle, "Turns the matrix W of s(t+1) = W s(t), and with it the sequence."),
            "system_noise": (self.noise, "Standard deviation of the noise on each element."),
            "start": (self.again, "Draws another first element."),
        }  # fmt: skip
        controls = {f"control_{name}": helped(widget, text) for name, (widget, text) in helps.items()}
        return {"sequences_error": self.error, "sequences_mark": self.mark, **controls,
                "sequences_left": self.left, "sequences_right": self.right, "sequences_probe": self.probe}  # fmt: skip
