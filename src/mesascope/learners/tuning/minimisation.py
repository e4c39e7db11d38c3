"""Minimisation of a mean loss with respect to a few step sizes; the loss may have local minima or overflow."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from mesascope.errors import NumericalError
from mesascope.modes import without_deprecations_of_torch
from mesascope.shapes import Float, Tensor

Losses = Callable[[Tensor], Tensor]

_OVERFLOW = 1e3  # replaces the logarithm of an infinite loss; logarithms of finite losses are below 710
_MOST_SCALINGS = 400
_SEEN = 1e-9  # relative change of a loss beyond rounding
_DETERMINED = 1e-3  # maximum share of a parameter in directions along which the loss is constant


def rescaled(losses: Losses, start: Float[Tensor, " p"]) -> Float[Tensor, " p"]:
    """Scale ``start`` until the mean loss is finite and not that at 0, then double or halve it while the loss falls.

    If no multiple of ``start`` has a lower loss than 0, multiples of the opposite sign are tried.
    """

    def mean(point: Tensor) -> float:
        with torch.no_grad():
            loss = losses(point).mean().item()
        return loss if math.isfinite(loss) else math.inf

    for _ in range(_MOST_SCALINGS):
        if mean(start) < math.inf:
            break
        start = 0.7 * start
    else:
        raise NumericalError(
            f"the loss must be finite near zero step sizes, but is not at {start.tolist()}: check the tasks for "
            "numbers that are not finite."
        )
    unseen, seen = mean(torch.zeros_like(start)), start
    for _ in range(_MOST_SCALINGS):
        if abs(mean(seen) - unseen) > _SEEN * unseen:
            start = seen
            break
        seen = 8 * seen

    def descended(point: Tensor) -> Tensor:
        lowest = mean(point)
        for factor in (2.0, 0.5):
            for _ in range(_MOST_SCALINGS):
                if not (loss := mean(factor * point)) < lowest:
                    break
                point, lowest = factor * point, loss
        return point

    found = descended(start)
    return found if mean(found) < (1 - _SEEN) * unseen else min(found, descended(-start), key=mean)


def minimise(
    losses: Losses, start: Float[Tensor, " p"], units: Float[Tensor, " p"], iterations: int
) -> Float[Tensor, " p"]:
    """Point of lowest mean loss on the path of L-BFGS from ``start``: never worse than ``start``.

    The loss of a descent is a polynomial of high degree in step sizes that differ by orders of magnitude. So L-BFGS
    minimises the logarithm of the mean loss, with each number divided by its unit. If the loss overflows, a large
    finite value makes the line search turn back.
    """
    point = (start / units).requires_grad_()
    best, lowest = start, torch.inf
    optimizer = torch.optim.LBFGS(
        [point], max_iter=iterations, tolerance_grad=1e-9, tolerance_change=1e-9, line_search_fn="strong_wolfe"
    )

    def closure() -> float:
        nonlocal best, lowest
        # A loss of exactly 0 has no logarithm.
        value = losses(point * units).mean().clamp_min(torch.finfo(torch.float64).tiny).log()
        (gradient,) = torch.autograd.grad(value, point)
        usable = bool(torch.isfinite(value)) and bool(torch.isfinite(gradient).all())
        point.grad = gradient if usable else torch.zeros_like(gradient)
        if usable and value < lowest:
            best, lowest = (point * units).detach(), value.item()
        return value.item() if usable else _OVERFLOW

    optimizer.step(closure)
    return best


def standard_errors(losses: Losses, point: Float[Tensor, " p"], units: Float[Tensor, " p"]) -> Float[Tensor, " p"]:
    """Standard errors of the M-estimator ``point``, the minimum of the mean of n losses.

    They are the square roots of the diagonal of H^-1 V H^-1 / n, where H is the mean Hessian and V the covariance of
    the n gradients; nan for parameters that H leaves undetermined.
    """

    def relative(values: Tensor) -> Tensor:
        return losses(values * units)

    def mean_gradient(values: Tensor) -> Tensor:
        return torch.func.grad(lambda v: relative(v).mean())(values)

    # Compute one directional derivative at a time, in the memory of two evaluations.
    at = point / units
    axes = torch.eye(len(at), dtype=at.dtype, device=at.device)
    with without_deprecations_of_torch():
        gradients = torch.stack([torch.func.jvp(relative, (at,), (axis,))[1] for axis in axes])
        hessian = torch.stack([torch.func.jvp(mean_gradient, (at,), (axis,))[1] for axis in axes])
    inverse = torch.linalg.pinv(hessian, hermitian=True)
    covariance = inverse @ torch.cov(gradients).view(hessian.shape) @ inverse / gradients.shape[1]
    errors = covariance.diagonal().clamp_min(0).sqrt() * units
    return torch.where(((inverse @ hessian).diagonal() - 1).abs() < _DETERMINED, errors, torch.nan)
