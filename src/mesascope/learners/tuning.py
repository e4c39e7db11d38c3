"""Step sizes chosen on tasks of their own, with the standard error that their choice carries."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import nn

from mesascope.errors import ArgumentError, NumericalError, require_count
from mesascope.measurement import Measurement
from mesascope.shapes import Float, Tensor
from mesascope.streams import stream
from mesascope.tasks import Family

__all__ = ["Tuned", "minimise_mean", "named_measurements", "tune"]


Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True)
class Tuned(Generic[Module]):
    """A tuned learner; each of its step sizes with a standard error (one Measurement a step); its loss where tuned."""

    learner: Module
    step_sizes: dict[str, list[Measurement]]
    mse: Measurement


def tune(learner: Module, family: Family, *, tasks: int = 10_000, seed: int = 0) -> Tuned[Module]:
    """Minimise the mean squared error over all parameters of ``learner``, on ``tasks`` tasks of the `tune` stream.

    The minimum is found by L-BFGS in float64, starting from the learner's values. The standard errors are those of an
    M-estimator: the square roots of the diagonal of H^-1 V H^-1 / tasks, with H the mean Hessian and V the covariance
    of the tasks' gradients at the minimum. The learner passed in is left as it was.

    Raises:
        NumericalError: the loss is not finite at the learner's values, or no minimum was found.

    >>> from mesascope.learners import GradientDescent
    >>> from mesascope.tasks import LinearRegression
    >>> tuned = tune(GradientDescent(steps=1, eta=1.0), LinearRegression(x_scale=0.5), tasks=5_000)
    >>> abs(tuned.step_sizes["eta"][0].value - 6.0606) < 3 * tuned.step_sizes["eta"][0].stderr
    True
    """
    require_count("tasks", tasks, least=2)
    parameters = {name: value for name, value in learner.named_parameters() if value.requires_grad}
    if not parameters:
        raise ArgumentError(f"learner must have parameters to tune, but {learner} has none: pass one with step sizes.")
    device = next(iter(parameters.values())).device
    episode = family.sample(tasks, stream(seed, "tune", device=device)).to(torch.float64)
    tuned = copy.deepcopy(learner)

    def squared_errors(values: dict[str, Tensor]) -> Tensor:
        prediction = torch.func.functional_call(tuned, values, (episode.context, episode.xq))
        return (prediction - episode.yq).square().mean((-2, -1))

    start = {name: value.detach().double() for name, value in parameters.items()}
    best, errors, losses = minimise_mean(squared_errors, start)
    with torch.no_grad():
        for name, parameter in tuned.named_parameters():
            if name in best:
                parameter.copy_(best[name])
    return Tuned(tuned, named_measurements(best, errors, tasks), Measurement.of(losses))


def named_measurements(values: dict[str, Tensor], errors: dict[str, Tensor], n: int) -> dict[str, list[Measurement]]:
    """Values and standard errors of equal shapes as lists of Measurements."""
    return {
        name: [
            Measurement(v, e, n) for v, e in zip(value.flatten().tolist(), errors[name].flatten().tolist(), strict=True)
        ]
        for name, value in values.items()
    }


def minimise_mean(
    losses: Callable[[dict[str, Tensor]], Float[Tensor, " n"]], start: dict[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor], Float[Tensor, " n"]]:
    """Minimise the mean of ``losses(values)``; return the values, their standard errors, and the losses there."""
    names, sizes = list(start), [value.numel() for value in start.values()]

    def unflatten(flat: Tensor) -> dict[str, Tensor]:
        parts = flat.split(sizes)
        return {name: part.view(start[name].shape) for name, part in zip(names, parts, strict=True)}

    def flat_losses(flat: Tensor) -> Tensor:
        return losses(unflatten(flat))

    flat = torch.cat([value.flatten() for value in start.values()]).requires_grad_()
    if not math.isfinite(flat_losses(flat).mean().item()):
        raise NumericalError(
            f"the loss must be finite where tuning starts, but is not at {start}: start from smaller values."
        )
    optimizer = torch.optim.LBFGS(
        [flat], max_iter=500, tolerance_grad=1e-12, tolerance_change=1e-15, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        mean = flat_losses(flat).mean()
        mean.backward()
        return mean

    optimizer.step(closure)  # type: ignore[arg-type]
    flat = flat.detach()
    if not torch.isfinite(flat).all():
        raise NumericalError(
            f"tuning must end at finite values, but reached {flat.tolist()}: start from smaller values."
        )

    def mean_gradient(point: Tensor) -> Tensor:
        return torch.func.grad(lambda p: flat_losses(p).mean())(point)

    # One directional derivative a parameter keeps the memory at two evaluations, however many parameters there are.
    axes = torch.eye(len(flat), dtype=flat.dtype, device=flat.device)
    gradients = torch.stack([torch.func.jvp(flat_losses, (flat,), (axis,))[1] for axis in axes])
    hessian = torch.stack([torch.func.jvp(mean_gradient, (flat,), (axis,))[1] for axis in axes])
    inverse = torch.linalg.pinv(hessian, hermitian=True)
    covariance = inverse @ torch.cov(gradients).view(hessian.shape) @ inverse / gradients.shape[1]
    return unflatten(flat), unflatten(covariance.diagonal().clamp_min(0).sqrt()), flat_losses(flat)
