"""Gradient descent with momentum, and descents with steps of a fixed length."""

from __future__ import annotations

import torch

from mesascope.errors import require_count
from mesascope.learners.arguments import Algorithm, Range, one_size
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Context, check_inputs

__all__ = ["Momentum", "Muon", "NormalisedDescent"]

# Newton-Schulz iteration of Muon.
_QUINTIC = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5


@register(
    "learner",
    "momentum",
    free={"steps": Range(2, 10, "integer"), "eta": Range(0.01, 30.0, "log"), "momentum": Range(0.0, 0.99, "linear")},
)
class Momentum(Algorithm):
    """``steps`` steps of gradient descent with momentum on 1/(2n) sum_i |W x_i - y_i|^2 from W = 0.

    Each step does W <- A - eta grad(W) with A = W + momentum (W - W_before): the heavy ball of Polyak (1964). The
    momentum of Nesterov (1983) takes the gradient at A.

    Args:
        steps: number of steps; 0 predicts 0.
        eta: step size, a parameter.
        momentum: share of the last move that is added to a step, a parameter.
        nesterov: True for Nesterov's momentum.
    """

    def __init__(self, steps: int, eta: float, momentum: float, nesterov: bool = False) -> None:
        super().__init__()
        self.steps, self.nesterov = require_count("steps", steps, least=0), nesterov
        self.eta, self.momentum = one_size("eta", eta), one_size("momentum", momentum)

    def forward(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        gram, pull = _moments(context, xq)
        eta, momentum = self.eta.to(gram), self.momentum.to(gram)
        weights = before = torch.zeros_like(pull)
        for _ in range(self.steps):
            ahead = weights + momentum * (weights - before)
            before, weights = weights, ahead + eta * (pull - gram @ (ahead if self.nesterov else weights))
        return xq @ weights


@register("learner", "normalised-descent", free={"steps": Range(1, 10, "integer"), "eta": Range(0.01, 10.0, "log")})
class NormalisedDescent(Algorithm):
    """``steps`` steps W <- W - eta G / |G| from W = 0, with the gradient G of sum_i |W x_i - y_i|^2 and its norm.

    A task whose gradient is 0 takes no step.

    Args:
        steps: number of steps; 0 predicts 0.
        eta: length of a step, a parameter.
    """

    def __init__(self, steps: int, eta: float) -> None:
        super().__init__()
        self.steps, self.eta = require_count("steps", steps, least=0), one_size("eta", eta)

    def forward(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        gram, pull = _moments(context, xq)
        weights, eta = torch.zeros_like(pull), self.eta.to(gram)
        for _ in range(self.steps):
            weights = weights + eta * self.direction(pull - gram @ weights)
        return xq @ weights

    def direction(self, descent: Float[Tensor, "*batch dx dy"]) -> Float[Tensor, "*batch dx dy"]:
        """Move of a step of size 1, from minus the gradient."""
        size = descent.square().sum((-2, -1), keepdim=True).sqrt()
        return descent / torch.where(size > 0, size, 1.0)


@register("learner", "muon", free={"steps": Range(1, 10, "integer"), "eta": Range(0.01, 10.0, "log")})
class Muon(NormalisedDescent):
    """``steps`` steps of Muon without momentum: `NormalisedDescent` with nearly equal singular values in each move.

    Five steps of X <- a X + (b X X^T + c (X X^T)^2) X from G / |G| take all singular values near 1. With one target
    it is normalised descent with another step size.

    Source: Jordan et al., Muon: an optimizer for hidden layers in neural networks (2024).
    """

    def direction(self, descent: Float[Tensor, "*batch dx dy"]) -> Float[Tensor, "*batch dx dy"]:
        """Move of a step of size 1, from minus the gradient."""
        move, (a, b, c) = super().direction(descent), _QUINTIC
        for _ in range(_ITERATIONS):
            own = move.mT @ move
            move = a * move + move @ (b * own + c * own @ own)
        return move


def _moments(context: Context, xq: Tensor) -> tuple[Float[Tensor, "*batch dx dx"], Float[Tensor, "*batch dx dy"]]:
    """X^T X / n and X^T Y / n."""
    check_inputs(context, xq)
    (x, y), n = context, max(context.x.shape[-2], 1)
    return x.mT @ x / n, x.mT @ y / n
