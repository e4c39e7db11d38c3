"""Many learners measured on the same episodes, with the joint errors of all the means."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from mesascope.errors import require_instance
from mesascope.evidence import Estimates
from mesascope.lenses import access
from mesascope.lenses.groups import in_pairs, numbers, require_against, require_groups
from mesascope.lenses.needs import require_access
from mesascope.lenses.pairs import compare_sensitivities
from mesascope.records import register
from mesascope.shapes import Tensor
from mesascope.tasks import Episode, Learner
from mesascope.tasks.asking import check_tasks

__all__ = ["measure_together"]

# Step of the difference quotients that derivatives are checked by, as a share of an input of the context.
_STEP = 0.05


class _Seen(NamedTuple):
    """What one learner does on all episodes: predictions and sensitivities, and its squared error a task."""

    prediction: Tensor
    sensitivity: Tensor
    error: Tensor


@register("lens", "measure_together", needs="gradient")
def measure_together(groups: Mapping[str, Sequence[Learner]], against: Sequence[str], episodes: Episode) -> Estimates:
    """Errors of learners, and how they agree with references, on the same tasks. Needs *gradient*.

    For each group: ``("mse", group)``, the mean squared error; ``("median", group)``, the median over tasks of it;
    ``("derivative", group)`` and ``("derivative-error", group)``, the mean change of the prediction, in size, as the
    query moves along the context's first input, and how far the derivative is from it. For each group and each other
    one in ``against``: ``("cosine", group, other)`` and ``("sensitivity-difference", group, other)`` of the
    sensitivities dy/dx_q, and ``("prediction-difference", group, other)``, each member with the other's member of its
    place, or with the only one.

    Args:
        groups: learners by name, one a replicate.
        against: names of the groups that the others are compared with.
    """
    require_groups(groups)
    require_against(against, groups)
    require_instance("episodes", episodes, Episode)
    check_tasks(episodes)
    for learner in itertools.chain.from_iterable(groups.values()):
        require_access("measure_together", learner, episodes)
    seen = {name: [_seen(learner, episodes) for learner in learners] for name, learners in groups.items()}
    tasks: dict[tuple[str, ...], list[np.ndarray]] = {}
    for name, members in seen.items():
        tasks["mse", name] = [numbers(member.error) for member in members]
        tasks["median", name] = [_median(member.error) for member in members]
        own = zip(groups[name], members, strict=True)
        checked = [_derivative(learner, member, episodes) for learner, member in own]
        tasks["derivative", name] = [size for size, _ in checked]
        tasks["derivative-error", name] = [error for _, error in checked]
    for name, other in itertools.product(seen, against):
        if name != other:
            pairs = in_pairs(seen[name], seen[other], f"{name} and {other}")
            for quantity, columns in _agreement(pairs).items():
                tasks[quantity, name, other] = columns
    return Estimates.of(tasks)


def _seen(learner: Learner, episodes: Episode) -> _Seen:
    parts = [
        (prediction, sensitivity, (prediction - answers).square().flatten(1).mean(1))
        for answers, prediction, sensitivity in access.sensitivities(learner, episodes)
    ]
    return _Seen(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _derivative(learner: Learner, seen: _Seen, episodes: Episode) -> tuple[np.ndarray, np.ndarray]:
    """|dy| of each task along the context's first input, by a difference quotient, and how far the derivative is."""
    direction = episodes.context.x[..., :1, :].expand_as(episodes.xq)
    sides = [episodes._replace(xq=episodes.xq + sign * _STEP * direction) for sign in (1, -1)]
    high, low = (torch.cat([p for _, p in access.predictions(learner, side)]) for side in sides)
    quotient = (high - low) / (2 * _STEP)
    slope = torch.einsum("tmyx,tmx->tmy", seen.sensitivity, direction)
    return tuple(numbers(part.norm(dim=-1).mean(-1)) for part in (quotient, quotient - slope))  # type: ignore[return-value]


def _agreement(pairs: Sequence[tuple[_Seen, _Seen]]) -> dict[str, list[np.ndarray]]:
    columns: dict[str, list[np.ndarray]] = {"prediction-difference": [], "cosine": [], "sensitivity-difference": []}
    for one, other in pairs:
        columns["prediction-difference"].append(numbers((one.prediction - other.prediction).norm(dim=-1).mean(-1)))
        compared = compare_sensitivities(one.sensitivity, other.sensitivity)
        columns["cosine"].append(numbers(compared["cosine"]))
        columns["sensitivity-difference"].append(numbers(compared["sensitivity"]))
    return columns


def _median(errors: Tensor) -> np.ndarray:
    """Numbers whose mean is the median, and whose spread over tasks gives its error: m + (1/2 - [e < m]) / density.

    The density at the median comes from the order statistics around it.
    """
    values = numbers(errors)
    reach = 0.5 * len(values) ** (-1 / 3)
    low, median, high = np.quantile(values, [max(0.5 - reach, 0.0), 0.5, min(0.5 + reach, 1.0)])
    below = values < median
    return median + (below.mean() - below) * (high - low) / (2 * reach)
