"""Search for step sizes: L-BFGS from several starts, for increasing numbers of steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from mesascope.errors import NumericalError
from mesascope.learners.tuning.minimisation import minimise, rescaled, standard_errors
from mesascope.learners.tuning.starts import Values, at_depth, depths, extended, padded, scattered
from mesascope.measurement import Measurement
from mesascope.shapes import Float, Tensor
from mesascope.streams import stream
from mesascope.tasks.calling import label

Losses = Callable[[Any, Values], Float[Tensor, " n"]]

_SPREAD = 2  # number of random starts around the learner's values
_SEARCH = 30  # iterations of L-BFGS on few tasks


class Problem(NamedTuple):
    """Losses of a learner on three sets of tasks: few (to compare starts), fit, and choice (to choose the result)."""

    few: Losses
    fit: Losses
    choice: Losses
    n: int
    """Pairs in a context."""


class Ends(NamedTuple):
    """Best result of a search, and the final losses of all starts on few tasks, lowest first."""

    values: Values
    starts: tuple[float, ...]


def trained(learner: nn.Module) -> dict[str, nn.Parameter]:
    """Trainable parameters by name."""
    return {name: value for name, value in learner.named_parameters() if value.requires_grad}


def climb(problem: Problem, learner: nn.Module, seed: int, warm: Mapping[int, Values] | None = None) -> list[Ends]:
    """Run a search at each number of steps in `depths`; ``warm`` contains an additional start for each number."""
    ends: list[Ends] = []
    for steps in depths(learner):
        shallower = at_depth(learner, steps)
        own = {name: value.detach().double() for name, value in trained(shallower).items()}
        free = [warm[steps]] if warm else []
        starts = [own, *scattered(own, _SPREAD, stream(seed, "tune-starts", steps)), *free]
        kept = [own, *free]
        if ends:
            kept.append(padded(ends[-1].values, own))
            starts += extended(ends[-1].values, own, problem.n)
        ends.append(_search(problem, shallower, starts, kept))
    return ends


def _search(problem: Problem, learner: nn.Module, starts: Sequence[Values], kept: Sequence[Values]) -> Ends:
    """Run L-BFGS from all starts on few tasks, then on all tasks from the best end; return it or one of ``kept``."""
    shape = starts[0]

    def on(losses: Losses) -> Callable[[Tensor], Tensor]:
        return lambda point: losses(learner, _named(point, shape))

    few, fit, choice = map(on, problem[:3])
    found = sorted((_minimised(few, _flat(start), shape, _SEARCH) for start in starts), key=lambda pair: pair[1])
    nearest, _ = found[0]
    polished, _ = _minimised(fit, nearest, shape, 60 + 2 * len(nearest))
    ends = []
    with torch.no_grad():
        for point in [polished, *map(_flat, kept)]:
            loss = choice(point).mean().item()
            ends.append((point, loss if math.isfinite(loss) else math.inf))
    point, loss = min(ends, key=lambda pair: pair[1])
    if loss == math.inf:
        raise NumericalError(
            f"tuning must end where the loss is finite on fresh tasks, but {label(learner)} diverges there: tune fewer "
            "steps or on more tasks."
        )
    return Ends(_named(point, shape), tuple(loss for _, loss in found))


def _minimised(
    losses: Callable[[Tensor], Tensor], start: Float[Tensor, " p"], shape: Values, iterations: int
) -> tuple[Tensor, float]:
    point = rescaled(losses, start)
    point = minimise(losses, point, _units(_named(point, shape)), iterations)
    with torch.no_grad():
        return point, losses(point).mean().item()


def measured_sizes(problem: Problem, learner: nn.Module, values: Values, n: int) -> dict[str, list[Measurement]]:
    """Values with their standard errors over the ``n`` fitted tasks."""

    def losses(point: Tensor) -> Tensor:
        return problem.fit(learner, _named(point, values))

    errors = _named(standard_errors(losses, _flat(values), _units(values)), values)
    return {
        name: [Measurement(*pair, n) for pair in zip(value.flatten().tolist(), of.flatten().tolist(), strict=True)]
        for (name, value), of in zip(values.items(), errors.values(), strict=True)
    }


def _flat(values: Values) -> Float[Tensor, " p"]:
    return torch.cat([value.flatten() for value in values.values()])


def _named(point: Float[Tensor, " p"], shape: Values) -> Values:
    parts = point.split([value.numel() for value in shape.values()])
    return {name: part.view(shape[name].shape) for name, part in zip(shape, parts, strict=True)}


def _units(values: Values) -> Float[Tensor, " p"]:
    """Scale of each number: the absolute value for step sizes, which differ widely; the RMS for a matrix."""
    units = []
    for value in values.values():
        typical = value.square().mean().sqrt() if value.any() else value.new_ones(())
        own = value.abs() if value.ndim < 2 else torch.zeros_like(value)
        units.append(torch.where(own > 0, own, typical).flatten())
    return torch.cat(units)
