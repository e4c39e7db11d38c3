"""Trivial baselines."""

from __future__ import annotations

from torch import nn

from mesascope.errors import require_number
from mesascope.learners.arguments import Algorithm, Range, mean_of_rows
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Context, check_inputs


@register("learner", "zero", free={})
class Zero(nn.Module):
    """Predict 0 for every query."""

    def forward(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        check_inputs(context, xq)
        return 0 * xq[..., :1].expand(*xq.shape[:-1], context.y.shape[-1])


@register("learner", "constant", free={"value": Range(-10.0, 10.0, "linear")})
class Constant(Algorithm):
    """Predict ``value`` for every query."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = require_number("value", value)

    def forward(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        return self.value + Zero()(context, xq)


@register("learner", "last-label", free={})
class LastLabel(nn.Module):
    """Predict the target of the context's last pair for every query (0 for an empty context)."""

    def forward(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        return Zero()(context, xq) + context.y[..., -1:, :].sum(-2, keepdim=True)


@register("learner", "mean", free={})
class Mean(nn.Module):
    """Predict the mean of the context's targets for every query (0 for an empty context)."""

    def forward(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        return Zero()(context, xq) + mean_of_rows(context.y)


@register("learner", "averaging", free={})
class Averaging(nn.Module):
    """Linear regression with weights W = (1/n) sum_i y_i x_i^T: least squares if X^T X / n = I.

    One gradient step from 0 with step size 1. Source: Garg et al., What can transformers learn in-context? (2022).
    """

    def forward(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        check_inputs(context, xq)
        return xq @ (context.x.mT @ context.y) / max(context.x.shape[-2], 1)
