"""Errors of predictors along sequences, with the joint errors of all the means."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from mesascope.errors import ArgumentTypeError, refuse, require_choice, require_count, shown
from mesascope.evidence import Estimates
from mesascope.lenses import access
from mesascope.lenses.needs import require_access
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Predictor
from mesascope.tasks.asking import check_tasks

__all__ = ["errors_by_time", "measure_predictors"]

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

    Source: thesis, section 3.5.1; its loss sums over entries and halves, and so is d/2 times as large.
    """
    answers, seen = _asked("measure_predictors", groups, sequences)
    for name in against:
        require_choice("against", name, groups)
    tasks: dict[tuple[str, ...], list[np.ndarray]] = {
        ("mse", name): [_numbers((one - answers).square().mean((1, 2))) for one in members]
        for name, members in seen.items()
    }
    for name, other in itertools.product(seen, against):
        if name != other:
            pairs = _pairs(name, seen[name], other, seen[other])
            tasks["prediction-difference", name, other] = [
                _numbers((one - two).norm(dim=-1).mean(1)) for one, two in pairs
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
    chosen = list(range(1, answers.shape[1] + 1)) if times is None else list(times)
    for time in chosen:
        require_count("times", time)
        if time > answers.shape[1]:
            refuse("times", f"be at most {answers.shape[1]}, one less than the elements", time, "draw longer sequences")
    squares = {
        name: [(one - answers).square().mean(2)[:, [time - 1 for time in chosen]] for one in members]
        for name, members in seen.items()
    }
    points = [
        Estimates.of({("mse", name): [_numbers(one[:, at]) for one in members] for name, members in squares.items()})
        for at in range(len(chosen))
    ]
    return Estimates.over({"t": chosen}, points)


def _asked(lens: str, groups: Groups, sequences: Tensor) -> tuple[Tensor, dict[str, list[Tensor]]]:
    """The next elements, and what each predictor says of them."""
    if not isinstance(groups, Mapping) or not groups:
        raise ArgumentTypeError(f"groups must map names to lists of predictors, but is {shown(groups)}: pass some.")
    if not isinstance(sequences, Tensor):
        raise ArgumentTypeError(
            f"{lens} must be given sequences (tasks, t, d), but is given {shown(sequences)}: draw some."
        )
    check_tasks(sequences)
    for name, members in groups.items():
        if not isinstance(members, Sequence) or not members:
            raise ArgumentTypeError(f"{name} must be a list of some predictors, but is {shown(members)}: pass [net].")
        for one in members:
            require_access(lens, one)
    seen = {
        name: [torch.cat([prediction for _, prediction in access.predictions(one, sequences)]) for one in members]
        for name, members in groups.items()
    }
    return sequences[:, 1:], seen


def _pairs(name: str, members: list[Tensor], other: str, others: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Each with the one of its place, or with the only one."""
    count = max(len(members), len(others))
    if {len(members), len(others)} - {1, count}:
        refuse(
            f"groups[{other!r}]", f"have one member, or as many as {name!r}, {len(members)}", len(others),
            "pass one for each",
        )  # fmt: skip
    return list(zip(members * (count // len(members)), others * (count // len(others)), strict=True))


def _numbers(tensor: Tensor) -> np.ndarray:
    return tensor.detach().double().cpu().numpy()
