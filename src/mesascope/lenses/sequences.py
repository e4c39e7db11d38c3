"""Errors of predictors along sequences, with the joint errors of all the means."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mesascope.errors import ArgumentTypeError, refuse, require_count, shown
from mesascope.evidence import Estimates
from mesascope.lenses import access
from mesascope.lenses.groups import against_others, numbers, require_groups
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Predictor
from mesascope.tasks.asking import check_tasks

__all__ = ["chosen_times", "errors_by_time", "measure_predictors", "require_sequences"]

Groups = Mapping[str, Sequence[Predictor]]


@register("lens", "measure_predictors", needs="prediction", of="predictor")
def measure_predictors(groups: Groups, against: Sequence[str], sequences: Float[Tensor, "tasks t d"]) -> Estimates:
    """Errors of predictors over whole sequences, and their differences from references. Needs *prediction*.

    ``("mse", group)`` is the mean squared error of all next elements; for each group and each other one in ``against``,
    ``("prediction-difference", group, other)`` is the mean of |difference|_2 of their predictions, of members in the
    same place, or with the only member.

    Args:
        groups: predictors by name, one for each replicate.
        against: names of the groups to compare the others with.

    Source: thesis, section 3.5.1; its loss sums over times and entries and halves: (T - 1) d/2 times as much.
    """
    seen = _seen("measure_predictors", groups, sequences, against)
    tasks: dict[tuple[str, ...], list[np.ndarray]] = {
        ("mse", name): [numbers((one - sequences[:, 1:]).square().mean((1, 2))) for one in members]
        for name, members in seen.items()
    }
    for name, other, pairs in against_others(seen, against):
        distances = [numbers((one - two).norm(dim=-1).mean(1)) for one, two in pairs]
        tasks["prediction-difference", name, other] = distances
    return Estimates.of(tasks)


@register("lens", "errors_by_time", needs="prediction", of="predictor")
def errors_by_time(
    groups: Groups, sequences: Float[Tensor, "tasks t d"], times: Sequence[int] | None = None
) -> Estimates:
    """Mean squared error ``("mse", group)`` of the element after t known ones, a case for each t. Needs *prediction*.

    Args:
        groups: predictors by name, one for each replicate.
        times: numbers of known elements, from 1 to one less than a sequence has; all if None.
    """
    seen = _seen("errors_by_time", groups, sequences)
    chosen = chosen_times(times, sequences)
    squares = {
        name: [(one - sequences[:, 1:]).square().mean(2)[:, [time - 1 for time in chosen]] for one in members]
        for name, members in seen.items()
    }
    points = [
        Estimates.of({("mse", name): [numbers(one[:, at]) for one in members] for name, members in squares.items()})
        for at in range(len(chosen))
    ]
    return Estimates.over({"t": chosen}, points)


def require_sequences(lens: str, sequences: Any) -> None:
    """Refuse anything but finite sequences ``(tasks, t, d)``."""
    if not isinstance(sequences, Tensor):
        raise ArgumentTypeError(
            f"{lens} must be given sequences (tasks, t, d), but is given {shown(sequences)}: draw some."
        )
    check_tasks(sequences)


def chosen_times(times: Sequence[int] | None, sequences: Float[Tensor, "tasks t d"]) -> list[int]:
    """Numbers of known elements, from 1 to one less than a sequence has; all if None."""
    known = sequences.shape[1] - 1
    chosen = list(range(1, known + 1)) if times is None else list(times)
    for time in chosen:
        require_count("times", time)
        if time > known:
            refuse("times", f"be at most {known}, one less than the elements", time, "draw longer sequences")
    return chosen


def _seen(lens: str, groups: Groups, sequences: Tensor, against: Sequence[str] = ()) -> dict[str, list[Tensor]]:
    """Each member's predictions of the next elements."""
    require_sequences(lens, sequences)
    require_groups(lens, groups, against)
    found = {name: [access.seen(one, sequences).prediction for one in own] for name, own in groups.items()}
    access.require_causal(itertools.chain.from_iterable(groups.values()), sequences)
    return found
