"""Agreement of two learners on the same tasks, and a table that compares one learner with several."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from mesascope.errors import refuse, require_count, require_instance
from mesascope.evidence.tables import Table, Tabular
from mesascope.lenses import access
from mesascope.lenses.needs import Tasks, access_of, require_access
from mesascope.measurement import Measurement
from mesascope.records import register
from mesascope.shapes import Tensor
from mesascope.streams import stream
from mesascope.tasks import Episode, Family, Learner, Predictor, SequenceFamily
from mesascope.tasks.calling import check_tasks, display_name, sample_tasks

_COLUMNS = {
    "mse_b": "mse",
    "mse_ratio": "loss ratio",
    "prediction_difference": "prediction difference",
    "sensitivity_cosine": "sensitivity cosine",
    "sensitivity_difference": "sensitivity difference",
}
# A sensitivity below this many rounding errors of the largest one counts as 0, as it is a difference of larger terms.
_ROUNDING = 100
# Plots have a logarithmic axis if the largest number exceeds the smallest by this factor.
_FAR = 100


@dataclass(frozen=True, repr=False)
class Agreement(Tabular):
    """Comparison of the predictions of learners a and b on the same tasks.

    ``prediction_difference`` is E |a - b|_2 over outputs. ``mse_difference`` and ``mse_ratio`` compare the mean squared
    errors of a and b task by task, which cancels the variation between tasks. The ratio is None if b's error is 0 on
    every task, for example if all labels are 0.
    """

    prediction_difference: Measurement
    mse_a: Measurement
    mse_b: Measurement
    mse_difference: Measurement
    mse_ratio: Measurement | None

    def table(self) -> Table:
        """One row for each quantity."""
        return Table(
            {"quantity": field.name, **found.to_dict()}
            for field in dataclasses.fields(self)
            if (found := getattr(self, field.name)) is not None
        )


@dataclass(frozen=True, repr=False)
class Alignment(Agreement):
    """`Agreement` plus a comparison of the sensitivities dy/dx_q: E cos, and E |dy_a/dx_q - dy_b/dx_q|_F."""

    sensitivity_cosine: Measurement
    sensitivity_difference: Measurement


@register("lens", "agreement", needs="prediction")
def agreement(a: Learner | Predictor, b: Learner | Predictor, tasks: Tasks) -> Agreement:
    """Compare the predictions of two learners on episodes, or of two predictors on sequences. Needs *prediction*."""
    check_tasks(tasks)
    for learner in (a, b):
        require_access("agreement", learner)
    found = _compared(access.seen(a, tasks), access.seen(b, tasks))
    access.require_causal([a, b], tasks)
    return found


@register("lens", "alignment", needs="gradient")
def alignment(a: Learner, b: Learner, episodes: Episode) -> Alignment:
    """Compare the predictions and sensitivities of two learners. Needs *gradient*.

    Standard errors are over tasks. If both sensitivities of a query are 0 up to rounding (relative to the largest), its
    cosine counts as 1; if only one is 0, as 0.

    Source: von Oswald et al. (2023), section 3, measures (1) to (3).

    >>> from mesascope.learners import GradientDescent
    >>> from mesascope.streams import stream
    >>> from mesascope.tasks import LinearRegression
    >>> episodes = LinearRegression().sample(100, stream(0, "doc"))
    >>> same = alignment(GradientDescent(1, 1.0), GradientDescent(1, 2.0), episodes)
    >>> f"{same.sensitivity_cosine.value:.3f}"
    '1.000'
    """
    require_instance("episodes", episodes, Episode)
    check_tasks(episodes)
    for learner in (a, b):
        require_access("alignment", learner, episodes)
    found = _compared(*(access.seen(learner, episodes, derived=True) for learner in (a, b)))
    assert isinstance(found, Alignment)
    return found


def _compared(one: access.Seen, other: access.Seen) -> Agreement:
    """Comparison of two learners; an `Alignment` if both have sensitivities."""
    a, b = one.error.double(), other.error.double()
    fields: dict[str, Any] = {
        "prediction_difference": Measurement.of((one.prediction - other.prediction).norm(dim=-1).mean(-1)),
        "mse_a": Measurement.of(a),
        "mse_b": Measurement.of(b),
        "mse_difference": Measurement.of(a - b),
        "mse_ratio": Measurement.ratio(a, b) if b.any() else None,
    }
    if one.sensitivity is None or other.sensitivity is None:
        return Agreement(**fields)
    found = compare_sensitivities(one.sensitivity, other.sensitivity)
    fields["sensitivity_cosine"] = Measurement.of(found["cosine"])
    return Alignment(**fields, sensitivity_difference=Measurement.of(found["sensitivity"]))


def compare_sensitivities(sa: Tensor, sb: Tensor) -> dict[str, Tensor]:
    """Means over queries: ``"cosine"`` of sensitivities ``(tasks, m, dy, dx)``, and the distance ``"sensitivity"``."""
    gone = _vanishes(sa), _vanishes(sb)
    sa, sb = sa.flatten(-2).double(), sb.flatten(-2).double()
    product = (sa.norm(dim=-1) * sb.norm(dim=-1)).clamp_min(1e-300)
    cosine = torch.where(gone[0] | gone[1], (gone[0] & gone[1]).double(), (sa * sb).sum(-1) / product)
    return {"cosine": cosine.mean(-1), "sensitivity": (sa - sb).norm(dim=-1).mean(-1)}


def _vanishes(sensitivity: Tensor) -> Tensor:
    """True for each query whose sensitivity is 0 up to rounding errors of the largest one, and so has no direction."""
    lengths = sensitivity.flatten(-2).double().norm(dim=-1)
    return lengths <= _ROUNDING * torch.finfo(sensitivity.dtype).eps * lengths.max()


@dataclass(frozen=True, repr=False)
class Comparison(Tabular):
    """Result of `compare`, with one row for each of the other learners."""

    learner: str
    rows: dict[str, Agreement]

    def table(self) -> Table:
        """Table with a row for each learner, and two columns for each measurement: its value and its standard error."""
        return Table({"learner": name, **_numbers(cells)} for name, cells in self._cells())

    def _shown(self) -> Table:
        own, *others = self._cells()
        titles = dict.fromkeys(title for _, cells in others for title in cells)
        rows = [{"learner": name} | dict.fromkeys(titles, "-") | cells for name, cells in others]
        return Table([{"learner": own[0], **own[1]}, *rows])

    def __repr__(self) -> str:
        return repr(self._shown())

    def _repr_html_(self) -> str:
        return self._shown()._repr_html_()

    def plot(self) -> Any:
        """Draw loss ratios and prediction differences, with standard errors; notebooks show the matplotlib figure."""
        from mesascope.reports import Figure, Level, drawn

        ratios = {name: row.mse_ratio for name, row in self.rows.items() if row.mse_ratio is not None}
        differences = {name: row.prediction_difference for name, row in self.rows.items()}
        panels = [_dots("prediction difference", differences)]
        if ratios:
            panels.insert(0, _dots("loss ratio", ratios, Level(1.0, "limit")))
        return drawn(Figure("comparison", "Bars: one standard error.", tuple(panels)), {})

    def _cells(self) -> list[tuple[str, dict[str, Measurement]]]:
        own = next(iter(self.rows.values())).mse_a
        others = [
            (name, {title: found for field, title in _COLUMNS.items() if (found := getattr(row, field, None))})
            for name, row in self.rows.items()
        ]
        return [(self.learner, {"mse": own}), *others]


def _dots(label: str, found: Mapping[str, Measurement], *levels: Any) -> Any:
    """Panel with a point and its standard error for each learner."""
    from mesascope.reports import Line, Lines

    values, errors = [one.value for one in found.values()], [one.stderr for one in found.values()]
    line = Line(range(len(found)), values, "trained", marks="o", error=errors)
    ticks = {"xticks": range(len(found)), "xticklabels": [*found], "xlim": (-0.5, len(found) - 0.5)}
    apart = min(values) > 0 and max(values) > _FAR * min(values)
    return Lines("", "", label, [line, *levels], "y" if apart else "", limits=ticks)


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

    Needs *prediction*: any callable ``(context, xq) -> prediction`` is a learner, including your own torch modules.
    First, a call on one task tests if torch can differentiate a learner by the queries; sensitivities are compared if
    both learners pass. Then each learner predicts all tasks once, in parts of 10,000.

    On a family of sequences, predictors ``sequence -> predictions`` are compared over all times. Two or three more
    calls, on four sequences, check that they do not look ahead.

    All numbers have standard errors over tasks. ``loss ratio`` is the mean squared error of ``learner`` divided by that
    of the other learner on the same tasks. It is missing if the other learner's error is 0.

    Args:
        name: name of ``learner`` in the table; the name of its class or function if None.

    Raises:
        ArgumentError: ``others`` is empty or contains the name of ``learner``; shapes disagree; numbers of the tasks
            are not finite; or a predictor looks ahead.
        NumericalError: a learner's predictions are not finite.

    >>> from mesascope.learners import GradientDescent, LeastSquares
    >>> from mesascope.tasks import LinearRegression
    >>> table = compare(GradientDescent(1, 1.5), {"least squares": LeastSquares()}, LinearRegression(n_context=20))
    >>> table.rows["least squares"].mse_ratio.value > 1e3
    True
    """
    tasks = require_count("tasks", tasks, least=2)
    if not isinstance(others, Mapping) or not others:
        rule = "be a dictionary of learners by name, with at least one"
        refuse("others", rule, others, "pass {'name': learner}, say")
    for other in others:
        require_instance("the name of a learner", other, str)
    for one in (learner, *others.values()):
        require_access("compare", one)
    if name is not None:
        require_instance("name", name, str)
    name = display_name(learner) if name is None else name
    if name in others:
        refuse("name", "differ from the names of the others", name, "pass name='mine', for example")
    drawn_tasks = sample_tasks(family, tasks, stream(seed, "compare", device=device))
    own, *given = ("gradient" in access_of(one, drawn_tasks) for one in (learner, *others.values()))
    derived = dict(zip(others, [own and one for one in given], strict=True))
    mine = access.seen(learner, drawn_tasks, derived=any(derived.values()))
    rows = {
        other: _compared(mine, access.seen(one, drawn_tasks, derived=derived[other])) for other, one in others.items()
    }
    access.require_causal([learner, *others.values()], drawn_tasks)
    return Comparison(name, rows)
