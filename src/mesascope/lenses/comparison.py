"""Learners side by side in one paired table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from mesascope.errors import ArgumentError, ArgumentTypeError, require_count
from mesascope.lenses.access import access_of
from mesascope.lenses.alignment import Agreement, Alignment, agreement, alignment
from mesascope.streams import stream
from mesascope.tasks import Episode, Family, Learner

__all__ = ["Comparison", "compare"]

_COLUMNS = {
    "mse_b": "mse",
    "mse_ratio": "loss ratio",
    "prediction_difference": "prediction difference",
    "sensitivity_cosine": "sensitivity cosine",
    "sensitivity_difference": "sensitivity difference",
}


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`: one row for each other learner, printed as a table by ``print``."""

    learner: str
    rows: dict[str, Agreement]

    def __str__(self) -> str:
        return "\n".join(_aligned([["learner", *_COLUMNS.values()], *self._cells()]))

    def _cells(self) -> list[list[str]]:
        own = next(iter(self.rows.values())).mse_a
        lines = [[self.learner, f"{own}", *[""] * (len(_COLUMNS) - 1)]]
        for name, row in self.rows.items():
            lines.append([name, *(f"{getattr(row, field)}" if hasattr(row, field) else "-" for field in _COLUMNS)])
        return lines


def compare(
    learner: Learner,
    others: Mapping[str, Learner],
    family: Family,
    *,
    tasks: int = 10_000,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Comparison:
    """Compare ``learner`` with each of ``others`` on the same ``tasks`` fresh tasks of ``family``.

    Any callable ``(context, xq) -> prediction`` is a learner, a torch module of your own included. Sensitivities are
    compared where torch can differentiate both learners by the queries. All numbers carry the standard error over
    tasks; ``loss ratio`` is the mean squared error of ``learner`` over the other's, paired.

    Raises:
        ArgumentError: no others, shapes that disagree, numbers that are not finite.
        NumericalError: a learner's predictions are not finite.

    >>> from mesascope.learners import GradientDescent, LeastSquares
    >>> from mesascope.tasks import LinearRegression
    >>> table = compare(GradientDescent(1, 1.5), {"least squares": LeastSquares()}, LinearRegression(n_context=20))
    >>> table.rows["least squares"].mse_ratio.value > 1e3
    True
    """
    require_count("tasks", tasks, least=2)
    if not isinstance(others, Mapping) or not others:
        raise ArgumentError(f"others must name at least one learner, but is {others!r}: pass {{'name': learner}}.")
    if not isinstance(family, Family):
        raise ArgumentTypeError(
            f"family must have a method sample(batch, generator), but is {family!r}: pass LinearRegression(), say."
        )
    episodes = family.sample(tasks, stream(seed, "compare", device=device))
    rows = {name: _row(learner, other, episodes) for name, other in others.items()}
    return Comparison(_label(learner), rows)


def _row(learner: Learner, other: Learner, episodes: Episode) -> Agreement | Alignment:
    differentiable = all(access_of(one, episodes) != "prediction" for one in (learner, other))
    return (alignment if differentiable else agreement)(learner, other, episodes)


def _label(learner: Learner) -> str:
    return getattr(learner, "__name__", type(learner).__name__)


def _aligned(lines: list[list[str]]) -> list[str]:
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
