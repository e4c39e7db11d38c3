"""Losses of learners away from where they were trained, and repeated application of what they do once."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mesascope.errors import ArgumentTypeError, require_choice, require_count, require_instance, require_number, shown
from mesascope.evidence import Estimates
from mesascope.lenses.access import per_task_errors
from mesascope.lenses.needs import HasRule, HasTrajectory, require_access
from mesascope.records import register
from mesascope.shapes import Tensor
from mesascope.streams import stream
from mesascope.tasks import Episode, Family, Learner
from mesascope.tasks.asking import asked, check_answer, check_tasks, copied, drawn
from mesascope.training.modes import evaluating

__all__ = ["rollout", "sweep", "trajectory_errors"]


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
    """``("mse", name)`` on the families that ``family`` becomes when the fields in ``over`` take each of their values.

    Needs *prediction*. Several fields give every combination; each is a case. All learners see the same tasks, and all
    cases the same underlying draws.

    Args:
        learners: by name, one each, or several, such as the seeds of a network.

    >>> from mesascope.learners import GradientDescent, Zero
    >>> from mesascope.tasks import LinearRegression
    >>> found = sweep({"zero": Zero(), "gd": GradientDescent(1, 0.5)}, LinearRegression(), {"x_scale": [0.5, 1.0]})
    >>> found.cases["x_scale"], found.ratio("gd", "zero").shape
    (array([0.5, 1. ]), (1, 2))
    """
    tasks = require_count("tasks", tasks, least=2)
    for name, mapping in (("learners", learners), ("over", over)):
        if not isinstance(mapping, Mapping) or not mapping:
            raise ArgumentTypeError(f"{name} must map some names, but is {shown(mapping)}: pass {{'name': ...}}.")
    if not (dataclasses.is_dataclass(family) and not isinstance(family, type)):
        raise ArgumentTypeError(
            f"family must be a dataclass to sweep its fields, but is {shown(family)}: write it as one."
        )
    groups: dict[str, Sequence[Any]] = {
        name: one if isinstance(one, list | tuple) else [one] for name, one in learners.items()
    }
    for name, several in {**groups, **over}.items():
        if isinstance(several, str) or not isinstance(several, Sequence) or not several:
            raise ArgumentTypeError(f"{name} must have a list of some values, but has {shown(several)}: pass one.")
    for learner in itertools.chain.from_iterable(groups.values()):
        require_access("sweep", learner)
    for name in over:
        require_choice("over", name, [field.name for field in dataclasses.fields(family)])
    places = list(itertools.product(*over.values()))
    points = []
    for place in places:
        changed = dataclasses.replace(family, **dict(zip(over, place, strict=True)))
        episodes = drawn(changed, tasks, stream(seed, "sweep", device=device))
        errors = {
            ("mse", name): [per_task_errors(one, episodes).double().cpu().numpy() for one in members]
            for name, members in groups.items()
        }
        points.append(Estimates.of(errors))
    return Estimates.over(dict(zip(over, zip(*places, strict=True), strict=True)), points)


@register("lens", "rollout", needs="rule")
def rollout(learner: HasRule, steps: int, damping: float = 1.0) -> Any:
    """The learner whose rule is applied ``steps`` times, each change multiplied by ``damping``: appendix A.6.

    Needs *rule*: a learner that does one thing, as a network of one layer (or one looped layer) or descent with one
    step size. What it predicts after each step is its ``trajectory(context, xq)``.
    """
    steps = require_count("steps", steps, least=0)
    damping = require_number("damping", damping)
    return require_access("rollout", learner).repeated(steps, damping)


@register("lens", "trajectory_errors", needs="trajectory")
def trajectory_errors(learner: HasTrajectory, episodes: Episode) -> Tensor:
    """Squared error of each task after 0, 1, ... steps of a learner, ``(steps + 1, tasks)``. Needs *trajectory*.

    A roll-out that diverges overflows, and what is then not a number counts as an infinite error.
    """
    require_access("trajectory_errors", learner)
    require_instance("episodes", episodes, Episode)
    check_tasks(episodes)
    own = episodes.map(copied)
    with torch.no_grad(), evaluating(learner):
        predictions = asked(learner.trajectory, own.context, own.xq)
    steps = len(predictions) if isinstance(predictions, Tensor) and predictions.ndim else 0
    check_answer(learner, predictions, (steps, *episodes.yq.shape))
    errors = (predictions - episodes.yq).double().square().flatten(2).mean(2)
    return torch.where(errors.isnan(), torch.inf, errors)
