"""Best-fitting mixture of candidates: a convex combination of their predictions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from mesascope.identification.answering import answer, squared_differences
from mesascope.identification.candidate import Candidate
from mesascope.identification.comparing import Compared
from mesascope.identification.conditions import OWN
from mesascope.identification.fitting import fits
from mesascope.identification.residuals import Fit
from mesascope.identification.seen import Seen
from mesascope.identification.verdict import EXACT
from mesascope.measurement import Measurement
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Episode

# Maximum relative increase of the loss when a part is removed, and minimum weight of a part.
_RISE, _LEAST = 0.15, 0.02
# Smallest divisor, and smallest scale of an output relative to the largest one.
_TINY, _SMALLEST = 1e-150, 1e-6
# Maximum number of rounds of refitting, and minimum relative decrease of the loss per round.
_ROUNDS, _GAIN = 20, 0.01


@dataclass(frozen=True)
class Part:
    """A candidate in a mixture.

    Args:
        weight: weight of the candidate's predictions. The standard error is a jackknife over tasks at fixed
            ``parameters``. It is too small if a parameter, such as a ridge, has the same effect as the weight.
    """

    candidate: str
    family: str
    parameters: Mapping[str, Any]
    weight: Measurement


@dataclass(frozen=True)
class Mixture:
    """Convex combination of candidates that is nearest to the learner on the family's own tasks.

    Args:
        parts: candidates with nonnegative weights that sum to 1.
        unexplained: unexplained share of the variance of predictions, minus noise, on held-out tasks.
        gain: unexplained share of the nearest candidate alone, minus ``unexplained``.
    """

    parts: tuple[Part, ...]
    unexplained: Measurement
    gain: Measurement


class _Member(NamedTuple):
    """A candidate with parameters and predictions."""

    candidate: Candidate
    fit: Fit
    said: Float[Tensor, "tasks m dy"]


def mixture(nearest: Sequence[Compared], seen: Seen) -> Mixture | None:
    """Fit a mixture to the learner's predictions; None if no candidate answers all tasks.

    Backward elimination removes the least important candidate while the loss rises by at most 15 %. If the mixture
    explains no more than the nearest candidate, that candidate alone is returned.

    Args:
        nearest: candidates with their best fits, the nearest first.

    Source: Wurgaft et al., In-Context Learning Strategies Emerge Rationally (2025): a network predicts as a mixture of
    strategies, whose weights are a posterior that changes with training.
    """
    tasks, target = seen.tasks["fit"][OWN], seen.fit[OWN]
    members = [member for one in nearest if (member := _member(one.candidate, one.own, tasks))]
    if not members:
        return None
    parts = members[:1]
    if _mixed(parts, target).loss > EXACT:
        parts = _refitted(members, tasks, target)
    while len(parts) > 1:
        fewer = min(itertools.combinations(parts, len(parts) - 1), key=lambda some: _mixed(some, target).loss)
        fewer = _refitted(fewer, tasks, target)
        if _mixed(fewer, target).loss > (1 + _RISE) * max(_mixed(parts, target).loss, EXACT):
            break
        parts = fewer
    found = _tested(parts, members[0], seen) if len(parts) > 1 else None
    return found if found and found.gain.value > 0 else _tested(members[:1], members[0], seen)


def _member(candidate: Candidate, fit: Fit, tasks: Episode) -> _Member | None:
    said = answer(fit.learner, tasks)
    return None if said is None else _Member(candidate, fit, said)


def _refitted(parts: Sequence[_Member], tasks: Episode, target: Tensor) -> list[_Member]:
    """Refit the parameters of each part in turn to the residual of the other parts."""
    parts, last = [*parts], math.inf
    for _ in range(_ROUNDS):
        for index, (candidate, fit, said) in enumerate(parts):
            weights, left, _ = _mixed(parts, target)
            if candidate.free and weights[index] > _LEAST:
                (fit, *_) = fits(candidate, {OWN: tasks}, {OWN: said + left / weights[index]}, [fit], pooled=True)
                parts[index] = _member(candidate, fit, tasks) or parts[index]
        weights, _, loss = _mixed(parts, target)
        parts = [part for part, weight in zip(parts, weights, strict=True) if weight > _LEAST]
        if loss > (1 - _GAIN) * last:
            break
        last = loss
    return parts


def _tested(parts: Sequence[_Member], alone: _Member, seen: Seen) -> Mixture | None:
    """Test a mixture on held-out tasks."""
    residuals = _residuals(parts, seen.fit[OWN]) / _scale(seen.fit[OWN])
    n, weights = len(residuals), _weights(residuals)
    left_out = torch.stack([_weights(residuals[torch.arange(n) != task]) for task in range(n)])
    errors = ((n - 1) * (left_out - left_out.mean(0)).square().mean(0)).sqrt()
    tasks, target = seen.tasks["test"][OWN], seen.test[OWN]
    tested = [member for one in (alone, *parts) if (member := _member(one.candidate, one.fit, tasks))]
    if len(tested) <= len(parts):
        return None
    nearest, mixed = (
        squared_differences(left, torch.zeros_like(left), seen.size[OWN]) - seen.noise[OWN]
        for left in (target - tested[0].said, _residuals(tested[1:], target) @ weights)
    )
    return Mixture(
        tuple(
            Part(one.name, one.family, fit.parameters, Measurement(float(weight), float(error), n))
            for (one, fit, _), weight, error in zip(parts, weights, errors, strict=True)
        ),
        Measurement.of(mixed),
        Measurement.of(nearest - mixed),
    )


class _Mixed(NamedTuple):
    """Best weights of the parts, the residual of the mixture, and its mean square over the variance of each output."""

    weights: Float[Tensor, " parts"]
    left: Float[Tensor, "tasks m dy"]
    loss: float


def _mixed(parts: Sequence[_Member], target: Float[Tensor, "tasks m dy"]) -> _Mixed:
    residuals = _residuals(parts, target)
    scale = _scale(target)
    weights = _weights(residuals / scale)
    left = residuals @ weights
    return _Mixed(weights, left, float((left / scale[:, 0]).square().mean()))


def _scale(target: Float[Tensor, "tasks m dy"]) -> Float[Tensor, "dy 1"]:
    """Standard deviation of each output, so that all outputs count alike."""
    found = target.flatten(0, 1).std(0, correction=0)
    return found.clamp_min(_SMALLEST * float(found.max())).clamp_min(_TINY)[:, None]


def _residuals(parts: Sequence[_Member], target: Float[Tensor, "tasks m dy"]) -> Float[Tensor, "tasks m dy parts"]:
    return torch.stack([target - one.said for one in parts], -1)


def _weights(residuals: Float[Tensor, "tasks m dy parts"]) -> Float[Tensor, " parts"]:
    """Minimise |R w| over weights w >= 0 that sum to 1.

    Write u = s w. For fixed w, |R u|^2 + (1 - sum of u)^2 is minimal at s = 1 / (1 + |R w|^2), and this minimum
    increases with |R w|. So non-negative least squares for u gives w.
    """
    from scipy import optimize

    rows = residuals.flatten(0, -2)
    rows = rows / rows.square().sum(0).max().sqrt().clamp_min(_TINY)
    found, _ = optimize.nnls(torch.cat([rows, torch.ones_like(rows[:1])]).numpy(), np.r_[np.zeros(len(rows)), 1.0])
    return torch.from_numpy(found / found.sum())
