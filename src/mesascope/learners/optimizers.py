"""Other optimizers: momentum, steps of a fixed length, and single passes over the pairs in order."""

from __future__ import annotations

import torch

from mesascope.errors import require_count
from mesascope.learners.arguments import Algorithm, Range, moments, one_size, power_of_two
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Context, check_inputs

_SIZE, _FORGET = Range(1e-3, 3.0, "log"), Range(0.5, 1.0, "linear")
# Coefficients and number of Muon's Newton-Schulz iterations.
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
        eta, momentum: step size and momentum; parameters.
        nesterov: True for Nesterov's momentum.
    """

    def __init__(self, steps: int, eta: float, momentum: float, nesterov: bool = False) -> None:
        super().__init__()
        self.steps, self.nesterov = require_count("steps", steps, least=0), nesterov
        self.eta, self.momentum = one_size("eta", eta), one_size("momentum", momentum)

    def forward(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        gram, pull = moments(context, xq)
        eta, momentum = self.eta.to(gram), self.momentum.to(gram)
        weights = before = torch.zeros_like(pull)
        for _ in range(self.steps):
            ahead = weights + momentum * (weights - before)
            before, weights = weights, ahead + eta * (pull - gram @ (ahead if self.nesterov else weights))
        return xq @ weights


@register("learner", "normalised-descent", free={"steps": Range(1, 10, "integer"), "eta": Range(0.01, 10.0, "log")})
class NormalisedDescent(Algorithm):
    """``steps`` steps W <- W - eta G / |G| from W = 0, where G is the gradient of sum_i |W x_i - y_i|^2.

    A task whose gradient is 0 takes no step. The length of a step, ``eta``, is a parameter.
    """

    def __init__(self, steps: int, eta: float) -> None:
        super().__init__()
        self.steps, self.eta = require_count("steps", steps, least=0), one_size("eta", eta)

    def forward(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        gram, pull = moments(context, xq)
        weights, eta = torch.zeros_like(pull), self.eta.to(gram)
        for _ in range(self.steps):
            weights = weights + eta * self.direction(pull - gram @ weights)
        return xq @ weights

    def direction(self, descent: Float[Tensor, "*batch dx dy"]) -> Float[Tensor, "*batch dx dy"]:
        """Update for step size 1; ``descent`` is minus the gradient."""
        unit = descent / power_of_two(descent, (-2, -1))
        size = unit.square().sum((-2, -1), keepdim=True).sqrt()
        return unit / torch.where(size > 0, size, 1.0)


@register("learner", "muon", free={"steps": Range(1, 10, "integer"), "eta": Range(0.01, 10.0, "log")})
class Muon(NormalisedDescent):
    """``steps`` steps of Muon without momentum: `NormalisedDescent` whose updates have nearly equal singular values.

    Five iterations X <- a X + (b X X^T + c (X X^T)^2) X from G / |G| bring all singular values near 1. With one target
    this is normalised descent with another step size.

    Source: Jordan et al., Muon: an optimizer for hidden layers in neural networks (2024).
    """

    def direction(self, descent: Float[Tensor, "*batch dx dy"]) -> Float[Tensor, "*batch dx dy"]:
        move, (a, b, c) = super().direction(descent), _QUINTIC
        for _ in range(_ITERATIONS):
            own = move.mT @ move
            move = a * move + move @ (b * own + c * own @ own)
        return move


@register("learner", "delta-rule", free={"eta": _SIZE, "forget": _FORGET})
class DeltaRule(Algorithm):
    """One pass W <- W' + eta (y_i - W' x_i) x_i^T with W' = forget W, from W = 0; predicts W x_q.

    This is stochastic gradient descent (least mean squares). It equals a layer of DeltaNet, or of Gated DeltaNet if
    ``forget`` is below 1. ``eta`` and ``forget`` are parameters.

    Source: Widrow and Hoff (1960); Yang et al., Gated delta networks (2024).

    >>> x, y = torch.eye(2), torch.tensor([[1.0], [2.0]])
    >>> DeltaRule(eta=0.5, forget=0.9)(Context(x, y), x).squeeze(-1).detach()
    tensor([0.4500, 1.0000])
    """

    def __init__(self, eta: float, forget: float = 1.0) -> None:
        super().__init__()
        self.eta, self.forget = one_size("eta", eta), one_size("forget", forget)

    def forward(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        check_inputs(context, xq)
        eta, forget = self.eta.to(xq), self.forget.to(xq)
        weights = torch.zeros_like(context.x.mT @ context.y)
        for x, y in _pairs(context):
            weights = forget * weights
            weights = weights + eta * x.mT @ (y - x @ weights)
        return xq @ weights


@register("learner", "titans", free={"eta": _SIZE, "momentum": Range(0.0, 0.95, "linear"), "forget": _FORGET})
class Titans(Algorithm):
    """One pass S <- momentum S + eta (y_i - W x_i) x_i^T, W <- forget W + S, from W = S = 0; predicts W x_q.

    This is the linear memory of Titans. All pairs share the step size, momentum and forgetting, which are parameters.

    Source: Behrouz et al., Titans: learning to memorize at test time (2024), eqs. 13 and 14.
    """

    def __init__(self, eta: float, momentum: float, forget: float = 1.0) -> None:
        super().__init__()
        self.eta, self.momentum = one_size("eta", eta), one_size("momentum", momentum)
        self.forget = one_size("forget", forget)

    def forward(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        check_inputs(context, xq)
        eta, momentum, forget = (one.to(xq) for one in (self.eta, self.momentum, self.forget))
        weights = move = torch.zeros_like(context.x.mT @ context.y)
        for x, y in _pairs(context):
            move = momentum * move + eta * x.mT @ (y - x @ weights)
            weights = forget * weights + move
        return xq @ weights


def _pairs(context: Context) -> zip[tuple[Tensor, Tensor]]:
    """Input and target of each pair, as matrices with one row."""
    return zip(*(part.split(1, -2) if part.shape[-2] else () for part in context), strict=True)
