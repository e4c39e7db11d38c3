"""Panel Inside: weights of the network beside those of the construction, spectral filters, and attention maps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from bokeh.document import Document
from bokeh.models import BasicTicker, ColorBar, LinearColorMapper
from bokeh.palettes import interp_palette

from mesascope.explore import reading
from mesascope.explore.later import Later
from mesascope.explore.plots import LOOKS, alert, curve, empty, legend, plot, whisker, words
from mesascope.explore.setup import Setup
from mesascope.tasks import Episode

# Orange for negative and blue for positive numbers, as for the discs of weights; white for 0.
PALETTE = ("#D55E00", "#E68D4D", "#F3BE9A", "#F4F4F4", "#A9CFE7", "#5BA4D1", "#0072B2")
# Number of tasks for the spectral filter, which needs one prediction for each pair of a task.
FILTER_TASKS = 200
FILTERED = ("network", "algorithm", "ridge")
MAPS = {
    "trained_kq": "W_KQ, network", "trained_pv": "W_PV, network", "built_kq": "W_KQ, constructed",
    "built_pv": "W_PV, constructed",
}  # fmt: skip


class Inside:
    """Panel of weights, spectra and attention."""

    def __init__(self, setup: Setup, doc: Document, episode: Callable[[], Episode]) -> None:
        self.setup, self.episode = setup, episode
        self.error, self.mark, self.note = alert(), words(""), words("")
        self.maps = {name: _heat(title) for name, title in MAPS.items()}
        self.attention = _heat("Attention to pairs (columns), heads side by side; last row: query")
        self.filters = {role: empty("x", "y", "low", "high") for role in FILTERED}
        self.eigenvalues = empty("x", "y")
        self.spectrum = self._spectrum()
        self.later = Later(doc, self._work, self._show, self.mark, self.error, 250, unseen=False)
        self.begin = self.later.request
        setup.listen(self.begin)

    def _spectrum(self) -> Any:
        found = plot("Spectral filter", "eigenvalue of X'X / n", "filter h", height=300)
        items = {}
        for role, source in self.filters.items():
            items[role] = curve(found, "x", "y", source, role, 7)
            found.add_layout(whisker(LOOKS[role][0], base="x", source=source))
        ticks = found.scatter("x", "y", source=self.eigenvalues, marker="dash", angle=np.pi / 2, size=16, color="gray")
        own = [one for role in FILTERED if role != "ridge" for one in items[role]]
        found.y_range.renderers = [*own, ticks]  # not ridge regression: its factors are unbounded at small eigenvalues
        self.legend = legend(found, {**items, "eigenvalues of the task above": [ticks]})
        return found

    def _work(self) -> Callable[[], Any]:
        setup, task = self.setup, self.episode()
        learners, titles, values = setup.learners(), setup.titles, dict(setup.values)
        network = setup.subject.learner
        d_in, has_gamma = setup.subject.d_in, setup.subject.has_gamma

        def work() -> Any:
            tasks = setup.tasks().part(0, FILTER_TASKS)
            curves = {role: reading.spectral(learners[role], tasks) for role in FILTERED}
            x = task.context.x
            spectrum = torch.linalg.eigvalsh(x.mT @ x / max(x.shape[-2], 1))[0]
            built = reading.built(d_in, values, has_gamma, x.shape[-2])
            return (
                titles,
                curves,
                spectrum.numpy(),
                reading.products(network),
                reading.products(built),
                reading.attention(network, task),
            )

        return work

    def _show(self, found: Any) -> None:
        titles, curves, spectrum, own, built, attention = found
        for role, rows in curves.items():
            self.filters[role].data = rows
        for item, role in zip(self.legend.items, FILTERED, strict=False):
            item.label = {"value": titles[role]}
        self.eigenvalues.data = {"x": spectrum, "y": np.zeros(len(spectrum))}
        for name, one in zip(MAPS, (*(own or (None, None)), *(built or (None, None))), strict=True):
            _put(self.maps[name], one)
        _put(self.attention, attention)
        lacks = f"{titles['network']} has no weights to read. " if own is None else ""
        self.note.text = lacks + NOTE

    @property
    def roots(self) -> dict[str, Any]:
        maps = {f"inside_{name}": one for name, one in self.maps.items()}
        return {
            "inside_error": self.error, "inside_mark": self.mark, "inside_note": self.note, **maps,
            "inside_spectrum": self.spectrum, "inside_attention": self.attention,
        }  # fmt: skip


NOTE = (
    "Products of the first layer; heads are drawn side by side, rows and columns are the inputs and then the label. "
    "Products of linear layers are scaled so that W_KQ has a mean diagonal of 1 on the inputs."
)


def _heat(title: str) -> Any:
    found = plot(title, "", "", height=230, visible=False)
    mapper = LinearColorMapper(palette=interp_palette(PALETTE, 63), low=-1, high=1)
    source = empty("image", "w", "h")
    found.image("image", x=0, y=0, dw="w", dh="h", source=source, color_mapper=mapper, name="image")
    ticks = BasicTicker(desired_num_ticks=4)
    found.add_layout(ColorBar(color_mapper=mapper, width=8, background_fill_alpha=0, ticker=ticks), "right")
    found.axis.visible = found.grid.visible = False
    found.y_range.flipped = True
    return found


def _put(found: Any, matrix: np.ndarray | None) -> None:
    """Show a matrix with its first row on top; its colour scale is symmetric around 0."""
    found.visible = matrix is not None
    if matrix is not None:
        image = found.select_one({"name": "image"})
        bound = float(np.abs(matrix).max(initial=1e-9))
        image.glyph.color_mapper.update(low=-bound, high=bound)
        image.data_source.data = {"image": [matrix], "w": [matrix.shape[1]], "h": [matrix.shape[0]]}
