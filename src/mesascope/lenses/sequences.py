"""Errors of predictors along sequences, with the joint errors of all the means."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from mesascope.errors import ArgumentTypeError, refuse, require_count, shown
from mesascope.evidence import Estimates
from mesascope.lenses import access
from mesascope.lenses.groups import in_pairs, numbers, require_against, require_groups
from mesascope.lenses.needs import require_access
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Predictor
from mesascope.tasks.asking import check_tasks

__all__ = ["chosen_times", "errors_by_time", "measure_predictors", "require_sequences"]

Groups = Mapping[str, Sequence[Predictor]]


@register("lens", "measure_predictors", needs="prediction", of="predictor")
def measure_predictors(groups: Groups, against: Sequence[str], sequences: Float[Tensor, "tasks t d"]) -> Estimates:
    """Errors of predictors over whole sequences, and how they differ from references. Needs *prediction*.

    ``("mse", group)`` is the mean squared error of all next elements; for each group and each other one in ``against``,
    ``("prediction-difference", group, other)`` is the mean of |difference|_2 of their predictions, each member with the
    other's member of its place, or with the only one.

    Args:
        groups: predictors by name, one a replicate.
        against: names of the groups that the others are compared with.

    Source: thesis, section 3.5.1; its loss sums over times and entries and halves: (T - 1) d/2 times as much.
    """
    answers, seen = _asked("measure_predictors", groups, sequences)
    require_against(against, groups)
    tasks: dict[tuple[str, ...], list[np.ndarray]] = {
        ("mse", name): [numbers((one - answers).square().mean((1, 2))) for one in members]
        for name, members in seen.items()
    }
    for name, other in itertools.product(seen, against):
        if name != other:
            pairs = in_pairs(seen[name], seen[other], f"{name} and {other}")
            tasks["prediction-difference", name, other] = [
                numbers((one - two).norm(dim=-1).mean(1)) for one, two in pairs
            ]
    return Estimates.of(tasks)


@register("lens", "errors_by_time", needs="prediction", of="predictor")
def errors_by_time(
    groups: Groups, sequences: Float[Tensor, "tasks t d"], times: Sequence[int] | None = None
) -> Estimates:
    """``("mse", group)`` of what follows t elements, a case for each t. Needs *prediction*.

    Args:
        groups: predictors by name, one a replicate.
        times: numbers of elements known, from 1 to one less than a sequence has; all if None.
    """
    answers, seen = _asked("errors_by_time", groups, sequences)
    chosen = chosen_times(times, sequences)
    squares = {
        name: [(one - answers).square().mean(2)[:, [time - 1 for time in chosen]] for one in members]
        for name, members in seen.items()
    }
    points = [
        Estimates.of({("mse", name): [numbers(one[:, at]) for one in members] for name, members in squares.items()})
        for at in range(len(chosen))
    ]
    return Estimates.over({"t": chosen}, points)


def require_sequences(lens: str, sequences: Any) -> None:
    """Refuse what are no finite sequences ``(tasks, t, d)``."""
    if not isinstance(sequences, Tensor):
        raise ArgumentTypeError(
            f"{lens} must be given sequences (tasks, t, d), but is given {shown(sequences)}: draw some."
        )
    check_tasks(sequences)


def chosen_times(times: Sequence[int] | None, sequences: Float[Tensor, "tasks t d"]) -> list[int]:
    """Numbers of elements known, from 1 to one less than a sequence has; all if None."""
    known = sequences.shape[1] - 1
    chosen = list(range(1, known + 1)) if times is None else list(times)
    for time in chosen:
        require_count("times", time)
        if time > known:
            refuse("times", f"be at most {known}, one less than the elements", time, "draw longer sequences")
    return chosen


def _asked(lens: str, groups: Groups, sequences: Tensor) -> tuple[Tensor, dict[str, list[Tensor]]]:
    """The next elements, and what each predictor says of them."""
    require_groups(groups)
    require_sequences(lens, sequences)
    for one in itertools.chain.from_iterable(groups.values()):
        require_access(lens, one)
    seen = {
        name: [torch.cat([prediction for _, prediction in access.predictions(one, sequences)]) for one in members]
        for name, members in groups.items()
    }
    access.require_causal(itertools.chain.from_iterable(groups.values()), sequences)
    return sequences[:, 1:], seen
