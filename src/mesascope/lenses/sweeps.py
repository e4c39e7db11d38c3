"""Errors of learners on variants of a family, and repeated application of one-step learners."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mesascope.errors import (
    ArgumentTypeError,
    refuse,
    require_choice,
    require_count,
    require_instance,
    require_number,
    shown,
)
from mesascope.evidence import Estimates
from mesascope.lenses.access import numbers, per_task_errors, require_groups
from mesascope.lenses.needs import HasRule, HasTrajectory, require_access
from mesascope.records import register
from mesascope.shapes import Tensor
from mesascope.streams import stream
from mesascope.tasks import Episode, Family, Learner
from mesascope.tasks.calling import check_answer, check_tasks, copied, predict, sample_tasks
from mesascope.training.modes import evaluating


@register("lens", "sweep", needs="prediction")
def sweep(
    learners: Mapping[str, Learner | Sequence[Learner]],
    family: Family,
    over: Mapping[str, Sequence[Any]],
    *,
    tasks: int = 10_000,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Estimates:
    """Errors ``("mse", name)`` on variants of ``family``, one case for each combination of the values in ``over``.

    Needs *prediction*. All learners are evaluated on the same tasks, and all cases use the same random draws.

    Args:
        learners: one learner for each name, or a list of them, such as one network for each seed.
        over: values of each field to vary.

    >>> from mesascope.learners import GradientDescent, Zero
    >>> from mesascope.tasks import LinearRegression
    >>> found = sweep({"zero": Zero(), "gd": GradientDescent(1, 0.5)}, LinearRegression(), {"x_scale": [0.5, 1.0]})
    >>> found.cases["x_scale"], found.ratio("gd", "zero").shape
    (array([0.5, 1. ]), (1, 2))
    """
    tasks = require_count("tasks", tasks, least=2)
    for name, mapping in (("learners", learners), ("over", over)):
        if not isinstance(mapping, Mapping) or not mapping:
            raise ArgumentTypeError(f"{name} must be a mapping by name, but is {shown(mapping)}: pass {{'name': ...}}.")
    if not (dataclasses.is_dataclass(family) and not isinstance(family, type)):
        raise ArgumentTypeError(
            f"family must be a dataclass to sweep its fields, but is {shown(family)}: write it as one."
        )
    for name, several in over.items():
        if isinstance(several, str) or not isinstance(several, Sequence) or not several:
            raise ArgumentTypeError(f"{name} must have a non-empty list of values, but has {shown(several)}: pass one.")
    groups: dict[str, Any] = {name: one if isinstance(one, list | tuple) else [one] for name, one in learners.items()}
    require_groups("sweep", groups)
    for name in over:
        require_choice("over", name, [field.name for field in dataclasses.fields(family)])
        if any(isinstance(value, Sequence) and not isinstance(value, str) for value in over[name]):
            rule = "name fields of single values, which become cases"
            refuse("over", rule, {name: over[name]}, "measure them one by one")
    places = list(itertools.product(*over.values()))
    points = []
    for place in places:
        changed = dataclasses.replace(family, **dict(zip(over, place, strict=True)))
        episodes = sample_tasks(changed, tasks, stream(seed, "sweep", device=device))
        each = {name: [numbers(per_task_errors(one, episodes)) for one in own] for name, own in groups.items()}
        points.append(Estimates.of({("mse", name): errors for name, errors in each.items()}))
    return Estimates.over(dict(zip(over, zip(*places, strict=True), strict=True)), points)


@register("lens", "rollout", needs="rule")
def rollout(learner: HasRule, steps: int, damping: float = 1.0) -> Any:
    """Learner that applies the step of a one-step learner ``steps`` times, with each update multiplied by ``damping``.

    Needs *rule*: a network of one layer (or one looped layer) or descent with one step size. The result's
    ``trajectory(context, xq)`` has the predictions after 0, 1, ... steps.

    Source: von Oswald et al. (2023), appendix A.6.
    """
    steps = require_count("steps", steps)
    damping = require_number("damping", damping)
    return require_access("rollout", learner).repeated(steps, damping)


@register("lens", "trajectory_errors", needs="trajectory")
def trajectory_errors(learner: HasTrajectory, episodes: Episode) -> Tensor:
    """Mean squared error of each task after 0, 1, ... steps of a learner, ``(steps + 1, tasks)``. Needs *trajectory*.

    Errors that are nan, such as after an overflow, count as infinite.
    """
    require_access("trajectory_errors", learner)
    require_instance("episodes", episodes, Episode)
    check_tasks(episodes)
    own = episodes.map(copied)
    with torch.no_grad(), evaluating(learner):
        predictions = predict(learner.trajectory, own.context, own.xq)
        steps = len(predictions) if isinstance(predictions, Tensor) and predictions.ndim else 0
        check_answer(learner, predictions, (steps, *episodes.yq.shape))
        errors = (predictions - episodes.yq).double().square().flatten(2).mean(2)
        return torch.where(errors.isnan(), torch.inf, errors)
