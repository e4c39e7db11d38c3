"""Comparison of the nearest candidates with a learner's derivatives and linear maps, and with one another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from mesascope.errors import NumericalError
from mesascope.identification.answering import Answers, answers, sizes, squared_differences
from mesascope.identification.behaviour import implicit_weights
from mesascope.identification.verdict import FARTHEST, difference
from mesascope.lenses import access
from mesascope.lenses.needs import access_of
from mesascope.lenses.pairs import compare_sensitivities
from mesascope.measurement import Measurement
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Episode, Learner
from mesascope.tasks.calling import LearnerError

# Noise of a learner's answers, by condition and task.
Noise = Mapping[str, Float[Tensor, " tasks"]]


@dataclass(frozen=True)
class Likeness:
    """Similarity of a candidate to a learner beyond predictions, on the family's own tasks.

    Args:
        sensitivity_cosine: mean cosine of the two derivatives dy/dx_q; None if either has no derivative.
        sensitivity_difference: mean distance of the two derivatives.
        weight_distance: E |w_f - w_a|^2 / E |w_f|^2 for the linear maps w_f of the learner and w_a of the candidate.
    """

    candidate: str
    sensitivity_cosine: Measurement | None
    sensitivity_difference: Measurement | None
    weight_distance: Measurement | None


@dataclass(frozen=True)
class Apart:
    """Pairwise differences of the nearest candidates, a measure of the tasks' power to separate them.

    Args:
        differences: normalised squared differences, the largest over conditions.
        lows: lower confidence bounds of these differences, minus the learner's noise, at the result's level.
    """

    names: tuple[str, ...]
    differences: tuple[tuple[float, ...], ...]
    lows: tuple[tuple[float, ...], ...]


def likeness(
    learner: Learner, candidates: Mapping[str, Learner], tasks: Episode, queries: Float[Tensor, "tasks m dx"]
) -> tuple[Likeness, ...]:
    """Compare derivatives, if torch can compute them, and the least-squares linear maps of ``queries``.

    Args:
        tasks: tasks in the precision of ``learner``; candidates compute in float64.
    """
    double = tasks.to(torch.float64)
    own, maps = _sensitivity(learner, tasks), implicit_weights(learner, tasks, queries.to(tasks.xq.dtype))
    return tuple(
        Likeness(
            name,
            *_derivatives(own, _sensitivity(one, double)),
            _weight_distance(maps, implicit_weights(one, double, queries.double())),
        )
        for name, one in candidates.items()
    )


def _sensitivity(learner: Learner, tasks: Episode) -> Tensor | None:
    try:
        if "gradient" not in access_of(learner, tasks):
            return None
        return torch.cat([part[2] for part in access.sensitivities(learner, tasks)])
    except (LearnerError, NumericalError, RuntimeError):  # it does not answer or differentiate every task
        return None


def _derivatives(one: Tensor | None, other: Tensor | None) -> tuple[Measurement | None, Measurement | None]:
    if one is None or other is None:
        return None, None
    found = compare_sensitivities(one, other)
    return Measurement.of(found["cosine"]), Measurement.of(found["sensitivity"])


def _weight_distance(
    one: tuple[Tensor, Measurement] | None, other: tuple[Tensor, Measurement] | None
) -> Measurement | None:
    if one is None or other is None or not bool(one[0].square().any()):
        return None
    return Measurement.ratio((one[0] - other[0]).square().sum((-2, -1)), one[0].square().sum((-2, -1)))


def apart(candidates: Mapping[str, Learner], tasks: Mapping[str, Episode], noise: Noise, level: float) -> Apart:
    """Pairwise differences of candidates; a candidate that does not answer a condition has the maximum difference.

    Args:
        noise: noise of the learner.
    """
    said = {name: answers(one, tasks) for name, one in candidates.items()}
    scales = {name: sizes(tasks, one) for name, one in said.items()}
    pairs = {(a, b): _pair(said[a], said[b], scales[a], noise, level / len(tasks)) for a in said for b in said}
    means, lows = (tuple(tuple(pairs[a, b][part] for b in said) for a in said) for part in (0, 1))
    return Apart(tuple(said), means, lows)


def _pair(
    one: Answers, other: Answers, scales: Mapping[str, Tensor], noise: Noise, level: float
) -> tuple[float, float]:
    if one is other:
        return 0.0, 0.0
    found = []
    for name in noise:
        if (name in one) != (name in other):
            found.append((FARTHEST, FARTHEST))
        elif name in one:
            raw = squared_differences(one[name], other[name], scales[name])
            seen = difference(raw, noise[name], level)
            found.append((float(raw.mean()), max(seen.low, 0.0)))
    if not found:  # neither answers any condition
        return FARTHEST, FARTHEST
    return max(mean for mean, _ in found), max(low for _, low in found)
