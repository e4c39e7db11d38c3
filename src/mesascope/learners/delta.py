"""Online descent: one pass over the pairs of a context in their order."""

from __future__ import annotations

import torch

from mesascope.learners.arguments import Algorithm, Range, one_size
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Context, check_inputs

__all__ = ["DeltaRule", "Titans"]

_SIZE, _FORGET = Range(1e-3, 3.0, "log"), Range(0.5, 1.0, "linear")


@register("learner", "delta-rule", free={"eta": _SIZE, "forget": _FORGET})
class DeltaRule(Algorithm):
    """One pass W <- W' + eta (y_i - W' x_i) x_i^T with W' = forget W, from W = 0; predicts W x_q.

    One pass of stochastic gradient descent, or least mean squares; a layer of DeltaNet, and of Gated DeltaNet if it
    forgets.

    Args:
        eta: step size, a parameter.
        forget: factor of the weights before each pair, a parameter; 1 for no forgetting.

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

    A linear memory of Titans, with one step size, momentum and forgetting for all pairs.

    Args:
        eta: step size, a parameter.
        momentum: share of the last move that is added to a step, a parameter.
        forget: factor of the weights at each pair, a parameter; 1 for no forgetting.

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
    """Each input and target, as matrices of one row."""
    return zip(*(part.split(1, -2) if part.shape[-2] else () for part in context), strict=True)
