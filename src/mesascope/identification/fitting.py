"""Fits of a candidate's parameters to the predictions of a learner."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import nn

from mesascope.identification.answering import Answers
from mesascope.identification.candidate import OWN_FAMILY, Candidate
from mesascope.identification.residuals import Fit, Residuals, is_filter
from mesascope.identification.verdict import EXACT
from mesascope.learners import LabelCopying, Range
from mesascope.learners.tuning.starts import depths
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Episode, Learner

# Grid points per parameter, by number of parameters.
_POINTS = {0: 1, 1: 16, 2: 8}
# Number of grid points that the search starts from, by number of parameters; for descents with two, whose losses are
# rugged and quick to compute, more.
_STARTS, _OF_DESCENTS = {2: 3}, 8
# Initial sizes run from 1 + spread to 1 - spread times the common size. GD++ tries both signs, as order matters.
_SPREADS = (0.5, -0.5)
# Number of step orders to try for GD++, and the range of losses per condition (near, but not exact) for which to try
# them.
_ORDERS, _SAME, _WITHIN = 16, EXACT / 100, 0.01
# Maximum number of evaluations in a least-squares search, and relative tolerance of the parameters.
MOST_STEPS, _LAST = 100, 1e-12
# The same for costly candidates, such as estimators that stop at tolerances of their own.
_COSTLY_STEPS, _COSTLY_LAST = 10, 1e-6
# Number of rounds of `_zoomed`, for predictions that are discontinuous in the parameters.
_ZOOMS = 6
# Factor by which fits of the catalogue may leave a range on a log scale, number of times that ranges of integers are
# doubled, and loss per condition above which they are not.
_FACTOR, _WIDENINGS, _POOR = 1e4, 3, 0.75
# Number of times that a grid moves by two decades, up to `_FACTOR`.
_SHIFTS = 2
# Minimum relative decrease of the loss per step; steps towards an exact fit decrease it far more.
_GAIN = 1e-4
# Maximum number of fits, with different integer parameters, that are kept for fits to more tasks.
KEPT = 4
# Maximum ratio of the loss of a kept fit to the lowest loss.
_NEAR = 4.0
# Step of finite differences, relative to max(1, |parameter|): the square root of the machine precision.
_STEP = 1.5e-8
# The same for algorithms without step sizes, such as estimators that stop at tolerances of their own.
_FAR_STEP = 1e-2


def fits(
    candidate: Candidate, tasks: Mapping[str, Episode], seen: Answers, near: Sequence[Fit] = (), anew: bool = True,
    pooled: bool = False,
) -> list[Fit]:  # fmt: skip
    """Fit the candidate's parameters by least squares: a grid search, then a local search from the best points.

    All conditions have the same weight. Residuals are differences of predictions, divided by the root of `sizes`.

    Args:
        near: fits to other tasks, as additional starts.
        anew: also try the grid, and integer parameters (such as numbers of steps) that no fit in ``near`` has.
        pooled: see `size`.

    Returns:
        The best fit for each choice of integer parameters, sorted by Akaike's criterion, the best first. There are at
        most four, none with a loss above four times the lowest.
    """
    whole = {name: one for name, one in candidate.free.items() if one.scale == "integer"}
    real = {name: one for name, one in candidate.free.items() if name not in whole}
    if len(near) == 1 and not anew and not real:  # nothing to fit
        return list(near)
    residuals = Residuals(tasks, seen, pooled)
    if candidate.formula:
        parameters = candidate.formula(seen)
        return [residuals.fit(parameters, candidate.learner(parameters))]
    grid = _grid(whole)
    further = [{name: one.parameters[name] for name in whole} for one in near]
    found = []
    for counts in [*grid, *(one for one in further if one not in grid)]:
        known = [one for one in near if all(one.parameters[name] == count for name, count in counts.items())]
        refined = [_near(candidate, one, real, residuals) for one in known]
        if anew or not (whole or known):
            refined.append(_best(candidate, counts, real, residuals))
        found += [min(refined, key=lambda one: one.loss)] if refined else []
    if anew and _widened(candidate):
        found += _beyond(candidate, found, whole, real, residuals)
    losses = [max(one.loss, EXACT * len(seen)) for one in found]
    numbers = [sum(np.size(value) for name, value in one.parameters.items() if name not in whole) for one in found]
    criteria = [residuals.count * np.log(loss) + 2 * number for loss, number in zip(losses, numbers, strict=True)]
    order = sorted(range(len(found)), key=lambda index: criteria[index])
    return [found[index] for index in order if losses[index] <= _NEAR * min(losses)][:KEPT]


def _widened(candidate: Candidate) -> bool:
    """True if fits may leave the ranges: those of the catalogue's own algorithms are only where the search begins."""
    return candidate.family != OWN_FAMILY and not (candidate.costly or candidate.own_sizes or candidate.draws)


def _beyond(
    candidate: Candidate, found: list[Fit], whole: Mapping[str, Range], real: Mapping[str, Range], residuals: Residuals
) -> list[Fit]:
    """Fits with larger integer parameters, as long as the best fit has the largest number tried, and is not poor."""
    most, further = {name: int(one.high) for name, one in whole.items()}, list[Fit]()
    for _ in range(_WIDENINGS):
        best = min([*found, *further], key=lambda one: one.loss)
        ends = [name for name, end in most.items() if best.parameters[name] == end]
        if not ends or not EXACT**2 < best.loss / len(residuals.seen) < _POOR:
            break
        for name in ends:
            own = {other: best.parameters[other] for other in whole}
            for count in range(most[name] + 1, 2 * most[name] + 1):
                further.append(_best(candidate, {**own, name: count}, real, residuals))
            most[name] *= 2
    return further


def _grid(free: Mapping[str, Range]) -> list[dict[str, Any]]:
    points = _POINTS.get(len(free), 4)
    axes = [_axis(one, points) for one in free.values()]
    return [dict(zip(free, values, strict=True)) for values in itertools.product(*axes)]


def _axis(one: Range, points: int) -> list[Any]:
    if one.scale == "integer":
        return list(range(int(one.low), int(one.high) + 1))
    make = np.geomspace if one.scale == "log" else np.linspace
    return make(one.low, one.high, points + 2)[1:-1].tolist()


def _starts(
    candidate: Candidate, counts: Mapping[str, int], real: Mapping[str, Range], residuals: Residuals
) -> list[Fit]:
    """Best points of a grid over the real parameters, which moves as long as its best point is poor or at an edge."""
    found, ranges = list[Fit](), dict(real)
    for _ in range(1 + _SHIFTS * _widened(candidate)):
        found += _fits_at([{**counts, **rest} for rest in _grid(ranges)], candidate, real, residuals)
        best, before = min(found, key=lambda one: one.loss), ranges
        loss = best.loss / len(residuals.seen)
        ranges = {name: _moved(one, best.parameters[name], len(real), loss > _POOR) for name, one in before.items()}
        if ranges == before or loss < _WITHIN:
            break
    rugged = len(real) > 1 and _has_sizes(best.learner, real) and is_filter(best.learner)
    most = _OF_DESCENTS if rugged else _STARTS.get(len(real), 1)
    ordered = sorted(found, key=lambda one: one.loss)
    equal = [one for one in ordered if one.loss == ordered[0].loss]
    middle = equal[len(equal) // 2]  # other tasks may tell values at the ends of the range apart
    return [middle, *(one for one in ordered if one is not middle)][:most]


def _fits_at(
    points: Sequence[dict[str, Any]], candidate: Candidate, real: Mapping[str, Range], residuals: Residuals
) -> list[Fit]:
    """Fits with given parameters; step sizes are tried together."""
    made = [candidate.learner(point) for point in points]
    if not _has_sizes(made[0], real):
        return [residuals.fit(point, one) for point, one in zip(points, made, strict=True)]
    values = torch.tensor([[point[name] for name in real] for point in points], dtype=torch.float64)
    losses = residuals.of_sizes(made[0], _by_parameter(made[0], real, values)).square().sum(1).tolist()
    return [Fit(*parts) for parts in zip(points, made, losses, strict=True)]


def _moved(one: Range, value: float, count: int, poor: bool) -> Range:
    """The range times 100 if ``value`` is last in a grid of ``count`` parameters, divided by 100 if first or poor."""
    first, *_, last = _axis(one, _POINTS.get(count, 4))
    factor = 1.0 if one.scale != "log" else 100.0 if value >= last else 0.01 if poor or value <= first else 1.0
    return dataclasses.replace(one, low=factor * one.low, high=factor * one.high)


def _has_sizes(learner: Learner, real: Mapping[str, Range]) -> TypeGuard[nn.Module]:
    """True if the learner's parameters are exactly the candidate's real ones, each a scalar, such as a step size."""
    if not isinstance(learner, nn.Module) or not real:
        return False
    parameters = {name.rpartition(".")[2]: value for name, value in learner.named_parameters()}
    return set(parameters) == set(real) and not any(value.ndim for value in parameters.values())


def _by_parameter(
    learner: nn.Module, real: Mapping[str, Range], values: Float[Tensor, "several real"]
) -> dict[str, Float[Tensor, "*steps several"]]:
    """Values of each parameter of the learner, one column per point, repeated for all steps of a descent."""
    columns, steps = dict(zip(real, values.T, strict=True)), depths(learner)[-1]
    named = {name: columns[name.rpartition(".")[2]] for name, _ in learner.named_parameters()}
    return {name: one.expand(steps, -1) for name, one in named.items()} if steps else named


def _best(candidate: Candidate, counts: Mapping[str, int], real: Mapping[str, Range], residuals: Residuals) -> Fit:
    """Best local optimum from the best grid points; with ``own_sizes``, each step then gets its own size."""
    starts = _starts(candidate, counts, real, residuals)
    if candidate.own_sizes:
        alike = _descended(_Single(candidate, starts[0], real), residuals)
        optima = [_descended(_Each(alike, spread), residuals) for spread in _SPREADS[: len(real)]]
        if len(real) == 1 and isinstance(alike.learner, nn.Module) and is_filter(alike.learner):
            sizes = {"eta": residuals.step_sizes(alike.learner)}
            optima.append(_descended(_Each(residuals.fit(sizes, candidate.learner(sizes))), residuals))
    else:
        optima = [_descended(_Single(candidate, one, real), residuals) for one in starts] if real else starts
    best = min(optima, key=lambda one: one.loss)
    return _reordered(candidate, best, residuals) if candidate.own_sizes and len(real) > 1 else best


def _reordered(candidate: Candidate, best: Fit, residuals: Residuals) -> Fit:
    """Best local optimum after reordering steps: a poor fit often has the right sizes in the wrong order."""
    draw, conditions = np.random.default_rng(0), len(residuals.seen)
    for _ in range(_ORDERS):
        if not _SAME < best.loss / conditions < _WITHIN:
            break
        order = draw.permutation(len(next(iter(best.parameters.values()))))
        sizes = {name: np.asarray(one)[order].tolist() for name, one in best.parameters.items()}
        other = _descended(_Each(residuals.fit(sizes, candidate.learner(sizes))), residuals)
        best = min(best, other, key=lambda one: one.loss)
    return best


def _near(candidate: Candidate, start: Fit, real: Mapping[str, Range], residuals: Residuals) -> Fit:
    """Local optimum near a fit to other tasks."""
    same = residuals.fit(start.parameters, start.learner)
    if not real or same.loss < EXACT**2:
        return same
    return _descended(_Each(start) if candidate.own_sizes else _Single(candidate, start, real), residuals)


class _Single:
    """Search space with one coordinate per parameter, logarithmic for ranges on a log scale."""

    def __init__(self, candidate: Candidate, near: Fit, real: Mapping[str, Range]) -> None:
        self.near, self.candidate, self.parameters, self.real = near, candidate, near.parameters, real
        logs = [one.scale == "log" for one in real.values()]
        self.into = [np.log if log else float for log in logs]
        self.out = [np.exp if log else float for log in logs]
        self.bounds = [[f(getattr(one, end)) for f, one in zip(self.into, real.values(), strict=True)]
                       for end in ("low", "high")]  # fmt: skip
        if _widened(candidate):
            for place, (name, one) in enumerate(real.items()):
                if one.scale == "log":  # any positive number may be fitted
                    self.bounds[0][place] = np.log(min(one.low / _FACTOR, near.parameters[name]))
                    self.bounds[1][place] = np.log(max(one.high * _FACTOR, near.parameters[name]))

    def start(self) -> list[float]:
        return [float(f(self.parameters[name])) for f, name in zip(self.into, self.real, strict=True)]

    def functions(self, residuals: Residuals) -> tuple[Callable, Callable]:
        """Functions for the residuals at a point and for their derivatives."""
        learner = self.candidate.learner(self.parameters)
        if not _has_sizes(learner, self.real):
            return _by_differences(_one_by_one(self, residuals), _FAR_STEP, self.bounds[1])

        def of(points: np.ndarray) -> Tensor:
            values = [[f(value) for f, value in zip(self.out, point, strict=True)] for point in points]
            sizes = _by_parameter(learner, self.real, torch.tensor(values, dtype=torch.float64))
            return residuals.of_sizes(learner, sizes)

        return _by_differences(of)

    def at(self, point: np.ndarray) -> tuple[dict[str, Any], Learner]:
        own = {name: float(f(value)) for f, name, value in zip(self.out, self.real, point, strict=True)}
        parameters = {**self.parameters, **own}
        return parameters, self.candidate.learner(parameters)


class _Each:
    """Search space with one coordinate per number in a learner's parameters: each step's size, or each matrix entry.

    With a ``spread``, initial sizes run from 1 + spread to 1 - spread times the common size: equal sizes are a saddle
    point and would stay equal.
    """

    bounds = (-np.inf, np.inf)

    def __init__(self, near: Fit, spread: float = 0.0) -> None:
        assert isinstance(near.learner, nn.Module)
        steps = max(depths(near.learner)[-1], 1)
        self.near, self.module, self.spread = near, near.learner, spread
        self.shapes = {
            name: (steps,) if value.ndim == 0 else tuple(value.shape) for name, value in self.module.named_parameters()
        }

    def start(self) -> list[float]:
        values = dict(self.module.named_parameters())
        spread = {name: values[name].detach() * self._slope(shape) for name, shape in self.shapes.items()}
        return torch.cat([value.flatten() for value in spread.values()]).tolist()

    def _slope(self, shape: tuple[int, ...]) -> Tensor:
        ends = (1 + self.spread, 1 - self.spread)
        return torch.linspace(*ends, shape[0], dtype=torch.float64) if len(shape) == 1 else torch.ones(shape)

    def functions(self, residuals: Residuals) -> tuple[Callable, Callable]:
        """Functions for the residuals at a point and for their derivatives."""
        if any(len(shape) > 1 for shape in self.shapes.values()):
            return _by_differences(_one_by_one(self, residuals))

        def of(points: np.ndarray) -> Tensor:
            parts = torch.as_tensor(points).T.split([steps for (steps,) in self.shapes.values()])
            return residuals.of_sizes(self.module, dict(zip(self.shapes, parts, strict=True)))

        return _by_differences(of)

    def at(self, point: np.ndarray) -> tuple[dict[str, Any], Learner]:
        learner, found = copy.deepcopy(self.module), {}
        parts = torch.as_tensor(point.copy()).split([int(np.prod(shape)) for shape in self.shapes.values()])
        for (name, shape), part in zip(self.shapes.items(), parts, strict=True):
            home, _, own = name.rpartition(".")
            setattr(learner.get_submodule(home), own, nn.Parameter(part.reshape(shape)))
            found[own] = part.reshape(shape).tolist()
        whole = {name: value for name, value in self.near.parameters.items() if isinstance(value, int)}
        return {**whole, **found}, learner


def _one_by_one(space: _Single | _Each, residuals: Residuals) -> Callable[[np.ndarray], Tensor]:
    return lambda points: torch.stack([residuals(space.at(one)[1]) for one in points])


def _by_differences(
    of: Callable[[np.ndarray], Tensor], step: float = _STEP, high: Sequence[float] | float = np.inf
) -> tuple[Callable, Callable]:
    """Residuals at a point and their finite-difference derivatives, computed in one call.

    Differences are forward, or backward if a forward step exceeds ``high``.
    """
    last: dict[str, np.ndarray] = {}

    def both(point: np.ndarray) -> Mapping[str, np.ndarray]:
        if not np.array_equal(point, last.get("point", [])):
            steps = step * np.maximum(np.abs(point), 1.0)
            steps = np.where(point + steps > high, -steps, steps)
            there, *moved = of(np.vstack([point, point + np.diag(steps)])).numpy()
            last.update(point=point.copy(), residuals=there, slopes=(np.stack(moved) - there).T / steps)
        return last

    return lambda point: both(point)["residuals"], lambda point: both(point)["slopes"]


def _descended(space: Any, residuals: Residuals) -> Fit:
    from scipy import optimize

    function, derivatives = space.functions(residuals)
    if isinstance(space, _Single) and isinstance(space.near.learner, LabelCopying):  # predictions are discontinuous
        return _zoomed(space, function)
    costly = isinstance(space, _Single) and space.candidate.costly
    start = np.array(space.start())
    free = isinstance(space, _Each) and len(start) <= len(function(start))  # MINPACK is faster, but needs this
    found = optimize.least_squares(
        function, start, derivatives, bounds=space.bounds, x_scale="jac", method="lm" if free else "trf",
        xtol=_COSTLY_LAST if costly else _LAST, ftol=_GAIN, gtol=1e-15,
        max_nfev=_COSTLY_STEPS if costly else MOST_STEPS,
    )  # fmt: skip
    parameters, learner = space.at(found.x)
    return Fit(parameters, learner, 2 * float(found.cost))


def _zoomed(space: _Single, function: Callable) -> Fit:
    """Minimise over ever finer grids, one parameter at a time; among equal minima, take the middle one."""
    point, (low, high) = np.array(space.start()), map(np.array, space.bounds)
    for zoom in range(_ZOOMS):
        for index, width in enumerate((high - low) / _POINTS[1] / 4**zoom):
            tried = np.repeat(point[None], 17, 0)
            tried[:, index] = np.clip(point[index] + np.linspace(-width, width, 17), low[index], high[index])
            losses = np.array([np.square(function(one)).sum() for one in tried])
            lowest = np.flatnonzero(losses == losses.min())
            point, loss = tried[lowest[len(lowest) // 2]], float(losses.min())
    parameters, learner = space.at(point)
    return Fit(parameters, learner, loss)
