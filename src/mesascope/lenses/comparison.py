"""Comparison of several learners on the same tasks, in one table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from mesascope.errors import ArgumentError, refuse, require_count, require_instance, shown
from mesascope.evidence.tables import Table, Tabular
from mesascope.lenses.access import require_causal
from mesascope.lenses.needs import access_of, require_access
from mesascope.lenses.pairs import Agreement, paired
from mesascope.measurement import Measurement
from mesascope.records import register
from mesascope.streams import stream
from mesascope.tasks import Family, Learner, Predictor, SequenceFamily
from mesascope.tasks.asking import drawn, named

__all__ = ["Comparison", "compare"]

_COLUMNS = {
    "mse_b": "mse",
    "mse_ratio": "loss ratio",
    "prediction_difference": "prediction difference",
    "sensitivity_cosine": "sensitivity cosine",
    "sensitivity_difference": "sensitivity difference",
}


@dataclass(frozen=True, repr=False)
class Comparison(Tabular):
    """Result of `compare`: one row for each other learner."""

    learner: str
    rows: dict[str, Agreement]

    def table(self) -> Table:
        """One row for each learner, and a column for each number and each standard error."""
        return Table({"learner": name, **_numbers(cells)} for name, cells in self._cells())

    def _shown(self) -> Table:
        """Table with each number and its error in one cell."""
        own, *others = self._cells()
        titles = dict.fromkeys(title for _, cells in others for title in cells)
        rows = [{"learner": name} | dict.fromkeys(titles, "-") | cells for name, cells in others]
        return Table([{"learner": own[0], **own[1]}, *rows])

    def __repr__(self) -> str:
        return repr(self._shown())

    def _repr_html_(self) -> str:
        return self._shown()._repr_html_()

    def _cells(self) -> list[tuple[str, dict[str, Measurement]]]:
        own = next(iter(self.rows.values())).mse_a
        others = [
            (name, {title: found for field, title in _COLUMNS.items() if (found := getattr(row, field, None))})
            for name, row in self.rows.items()
        ]
        return [(self.learner, {"mse": own}), *others]


def _numbers(cells: Mapping[str, Measurement]) -> dict[str, float]:
    named = ({title: cell.value, f"{title} stderr": cell.stderr} for title, cell in cells.items())
    return {title: number for pair in named for title, number in pair.items()}


@register("lens", "compare", needs="prediction")
def compare(
    learner: Learner | Predictor,
    others: Mapping[str, Learner] | Mapping[str, Predictor],
    family: Family | SequenceFamily,
    *,
    name: str | None = None,
    tasks: int = 10_000,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Comparison:
    """Compare ``learner`` with each of ``others`` on the same ``tasks`` fresh tasks of ``family``.

    Needs *prediction*: any callable ``(context, xq) -> prediction`` is a learner, your own torch modules included. Each
    predicts all tasks once, in parts of 10,000, after one task that checks if torch can differentiate it.
    Sensitivities are compared if torch can differentiate both learners by the queries. On a family of sequences,
    predictors ``sequence -> predictions`` are compared over all times, and called twice more, on four sequences, to
    check that they do not look ahead. All numbers have standard errors over tasks. ``loss ratio`` is the mean squared
    error of ``learner`` over the other's, paired; it is left out if the other makes no error, as on labels that are
    all 0.

    Args:
        name: name of ``learner`` in the table; that of its class or function if None.

    Raises:
        ArgumentError: no others, one named as ``learner`` is, shapes that disagree, numbers that are not finite, a
            predictor that looks ahead.
        NumericalError: a learner's predictions are not finite.

    >>> from mesascope.learners import GradientDescent, LeastSquares
    >>> from mesascope.tasks import LinearRegression
    >>> table = compare(GradientDescent(1, 1.5), {"least squares": LeastSquares()}, LinearRegression(n_context=20))
    >>> table.rows["least squares"].mse_ratio.value > 1e3
    True
    """
    tasks = require_count("tasks", tasks, least=2)
    if not isinstance(others, Mapping) or not others:
        raise ArgumentError(f"others must name at least one learner, but is {shown(others)}: pass {{'name': learner}}.")
    for other in others:
        require_instance("the name of a learner", other, str)
    for one in (learner, *others.values()):
        require_access("compare", one)
    if name is not None:
        require_instance("name", name, str)
    name = named(learner) if name is None else name
    if name in others:
        refuse("name", "differ from the names of the others", name, "pass name='mine', say")
    drawn_tasks = drawn(family, tasks, stream(seed, "compare", device=device))
    own, *derived = ("gradient" in access_of(one, drawn_tasks) for one in (learner, *others.values()))
    rows = paired(learner, list(others.values()), drawn_tasks, [own and one for one in derived])
    require_causal([learner, *others.values()], drawn_tasks)
    return Comparison(name, dict(zip(others, rows, strict=True)))
