"""Losses of learners away from where they were trained, and repeated application of what they do once."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mesascope.errors import ArgumentError, ArgumentTypeError, require_choice, require_count, require_number
from mesascope.lenses.access import per_task_errors
from mesascope.lenses.needs import HasRule, HasTrajectory, evaluating, require_access
from mesascope.measurement import Measurement
from mesascope.records import register
from mesascope.shapes import Tensor
from mesascope.streams import stream
from mesascope.tasks import Episode, Family, Learner, check_episode

__all__ = ["SweepPoint", "rollout", "sweep", "trajectory_errors"]


@dataclass(frozen=True)
class SweepPoint:
    """One setting of a sweep: each learner's mean squared error, and its paired ratio to the first learner's."""

    setting: dict[str, Any]
    mse: dict[str, Measurement]
    ratio: dict[str, Measurement]


@register("lens", "sweep", needs="prediction")
def sweep(
    learners: Mapping[str, Learner],
    family: Family,
    over: Mapping[str, Sequence[Any]],
    *,
    tasks: int = 10_000,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> list[SweepPoint]:
    """Losses on the families that ``family`` becomes when the fields in ``over`` take each of their values.

    Needs *prediction*. Several fields give every combination. All learners see the same tasks, and all settings the
    same underlying draws.

    >>> from mesascope.learners import GradientDescent, Zero
    >>> from mesascope.tasks import LinearRegression
    >>> points = sweep({"zero": Zero(), "gd": GradientDescent(1, 1.5)}, LinearRegression(), {"x_scale": [0.5, 1.0]})
    >>> [point.setting for point in points]
    [{'x_scale': 0.5}, {'x_scale': 1.0}]
    """
    require_count("tasks", tasks, least=2)
    if not learners or not over:
        raise ArgumentError(
            f"learners and over must not be empty, but are {dict(learners)} and {dict(over)}: name some."
        )
    if not (dataclasses.is_dataclass(family) and not isinstance(family, type)):
        raise ArgumentTypeError(f"family must be a dataclass to sweep its fields, but is {family!r}: write it as one.")
    for learner in learners.values():
        require_access("sweep", learner)
    fields = [field.name for field in dataclasses.fields(family)]
    for name in over:
        require_choice("over", name, fields)
    points = []
    for values in itertools.product(*over.values()):
        setting = dict(zip(over, values, strict=True))
        episodes = dataclasses.replace(family, **setting).sample(tasks, stream(seed, "sweep", device=device))
        errors = {name: per_task_errors(learner, episodes) for name, learner in learners.items()}
        first = next(iter(errors.values()))
        points.append(
            SweepPoint(
                setting,
                {name: Measurement.of(error) for name, error in errors.items()},
                {name: Measurement.ratio(error, first) for name, error in errors.items()},
            )
        )
    return points


@register("lens", "rollout", needs="rule")
def rollout(learner: HasRule, steps: int, damping: float = 1.0) -> Any:
    """The learner whose rule is applied ``steps`` times, each change multiplied by ``damping``: appendix A.6.

    Needs *rule*: a learner that does one thing, as a network of one layer (or one looped layer) or descent with one
    step size. What it predicts after each step is its ``trajectory(context, xq)``.
    """
    require_count("steps", steps, least=0)
    require_number("damping", damping)
    return require_access("rollout", learner).repeated(steps, damping)


@register("lens", "trajectory_errors", needs="trajectory")
def trajectory_errors(learner: HasTrajectory, episodes: Episode) -> Tensor:
    """Squared error of each task after 0, 1, ... steps of a learner, ``(steps + 1, tasks)``. Needs *trajectory*.

    A roll-out that diverges overflows, and what is then not a number counts as an infinite error.
    """
    require_access("trajectory_errors", learner)
    check_episode(episodes)
    with torch.no_grad(), evaluating(learner):
        predictions = learner.trajectory(episodes.context, episodes.xq)
    errors = (predictions - episodes.yq).double().square().flatten(2).mean(2)
    return torch.where(errors.isnan(), torch.inf, errors)
