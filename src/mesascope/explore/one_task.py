"""Panel One task: points to drag, curves of the learners, and the weight of each label in the prediction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from mesascope.explore import predicting
from mesascope.explore.drawing import Drawing
from mesascope.explore.plots import clicked, say, sentence, shown
from mesascope.explore.setup import Setup
from mesascope.tasks import Context, Episode

POINTS = 81  # points of each curve
# Settings that draw the task anew.
_DRAWN = ("scale", "noise", "pairs")


class OneTask:
    """Panel of one task: horizontal drags move a point along the query's direction, vertical drags change its label.

    Args:
        drawing: Bokeh's objects of the panel; points that they already show keep their positions.
    """

    def __init__(self, setup: Setup, drawing: Drawing | None = None) -> None:
        self.setup, self.drawing, self._quiet, self._drawn = setup, drawing or Drawing(), False, None
        own = self.drawing
        if own.live.data["x"]:
            self._drawn, _ = self._key, self._placed()
        for model, what, action in (
            (own.live, "data", self._compute), (own.pair, "value", self._point),
            (own.x, "value", self._typed), (own.y, "value", self._typed),
        ):  # fmt: skip
            model.on_change(what, lambda attr, old, new, action=action: self._heard(action))
        clicked(own.add, self._added)
        clicked(own.delete, self._deleted)
        setup.listen(self.refresh)
        self.refresh()

    def _heard(self, action: Callable[[], None]) -> None:
        if not self._quiet:
            action()

    def refresh(self) -> None:
        """Draw the task anew if its settings changed; compute all curves."""
        try:
            if self._drawn != self._key:
                self._drawn = self._key
                self._put(self._placed())
            self._compute()
        except Exception as error:
            say(self.drawing.error, sentence(error))

    @property
    def _key(self) -> tuple[Any, ...]:
        """Settings that determine the task."""
        return self.setup.name, self.setup.seed, *(self.setup.values[name] for name in _DRAWN)

    def _placed(self) -> list[tuple[float, float, int]]:
        """Draw the task; return the positions of its query and pairs along the query's direction."""
        (x, y), xq, _ = self.setup.task()
        x, y, xq = x[0], y[0, :, 0], xq[0, 0]
        self._direction = xq / xq.norm() if len(xq) > 1 else torch.ones_like(xq)
        places = x @ self._direction
        self._rest = x - places[:, None] * self._direction
        self.drawing.figure.xaxis.axis_label = "input x" if len(xq) == 1 else "input along the query's direction"
        rows = zip(places.tolist(), y.tolist(), range(len(places)), strict=True)
        return [(float(xq @ self._direction), 0.0, -1), *rows]

    def _put(self, rows: Sequence[tuple[float, float, int]]) -> None:
        """Show the query (first row) and pairs."""
        self._quiet, own = True, self.drawing
        x, y, pair = (list(column) for column in zip(*rows, strict=True))
        own.live.data = {"x": [], "y": [], "pair": []}  # while it is empty, the browser sends no points
        own.query.data = {"x": x[:1], "y": y[:1]}
        own.points.data = {"x": x[1:], "y": y[1:], "pair": pair[1:]}
        own.live.data = {"x": x, "y": y, "pair": pair}
        self._quiet = False

    @property
    def _rows(self) -> list[tuple[float, float, int]]:
        """The query (first row) and the pairs on the page."""
        columns = (self.drawing.live.data[name] for name in ("x", "y", "pair"))
        return [(float(x), float(y), int(pair)) for x, y, pair in zip(*columns, strict=True)]

    def episode(self) -> Episode:
        """The task on the page."""
        (query, _, _), *pairs = self._rows
        none = torch.zeros_like(self._direction)
        rest = [self._rest[pair] if 0 <= pair < len(self._rest) else none for _, _, pair in pairs]
        x = [place * self._direction + own for (place, _, _), own in zip(pairs, rest, strict=True)]
        inputs = torch.stack(x) if x else self._direction.new_zeros(0, len(none))
        labels = torch.tensor([y for _, y, _ in pairs], dtype=torch.float64)[:, None]
        xq = query * self._direction
        return Episode(Context(inputs[None], labels[None]), xq[None, None], torch.zeros(1, 1, 1, dtype=torch.float64))

    def _compute(self) -> None:
        own, episode, rows = self.drawing, self.episode(), self._rows
        places = [row[0] for row in rows]
        reach = 1.15 * max(*map(abs, places), 1e-3)
        grid = torch.linspace(-reach, reach, POINTS, dtype=torch.float64)
        xq = torch.cat([torch.tensor(places[:1], dtype=torch.float64), grid])[None, :, None] * self._direction
        learners = self.setup.learners()
        found, failed = predicting.answers(learners, self.setup.titles, episode, xq)
        # Lists, since each array costs two more messages; curves first, since the browser paints between messages.
        own.curves.data = {"x": grid.tolist(), **{role: one[1:].tolist() for role, one in found.items()}}
        own.answers.data = {"x": places[:1], **{role: one[:1].tolist() for role, one in found.items()}}
        own.line.location = places[0]
        own.marks.data = predicting.marks(learners["network"], episode, [row[:2] for row in rows[1:]])
        own.name(self.setup.titles)
        own.said(predicting.said(self.setup.titles, {role: float(one[0]) for role, one in found.items()}))
        say(own.error, " ".join(dict.fromkeys(failed)))
        self._point()

    def _point(self) -> None:
        """Show the coordinates of the chosen point."""
        own, rows, quiet = self.drawing, self._rows, self._quiet
        options = ["query", *map(str, range(1, len(rows)))]
        self._quiet = True
        own.pair.update(options=options, value=own.pair.value if own.pair.value in options else "query")
        x, y, _ = rows[options.index(own.pair.value)]
        own.x.value, own.y.value, own.y.disabled = shown(x), shown(y), own.pair.value == "query"
        own.delete.disabled = own.pair.value == "query"
        self._quiet = quiet

    @property
    def _index(self) -> int:
        return 0 if self.drawing.pair.value == "query" else int(self.drawing.pair.value)

    def _typed(self) -> None:
        rows, own = self._rows, self.drawing
        x, y, pair = rows[self._index]
        x, y = (old if new == shown(old) else new or 0.0 for old, new in ((x, own.x.value), (y, own.y.value)))
        rows[self._index] = (x, y, pair)
        self._put(rows)
        self._compute()

    def _added(self) -> None:
        rows = self._rows
        self._put([*rows, (rows[0][0], 0.0, -1)])
        self._compute()
        self.drawing.pair.value = str(len(rows))

    def _deleted(self) -> None:
        if index := self._index:
            self._put([row for place, row in enumerate(self._rows) if place != index])
            self._compute()
