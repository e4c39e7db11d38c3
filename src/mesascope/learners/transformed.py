"""Learners on transformed inputs, or with transformed predictions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from mesascope.errors import refuse, require_callable, require_instance
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Context, check_inputs

__all__ = ["Around", "Clipped", "LabelCopying", "OnFeatures", "Standardised", "squares"]


class Around(nn.Module):
    """A learner that changes what another sees or predicts."""

    def __init__(self, learner: nn.Module) -> None:
        super().__init__()
        require_callable("learner", learner)
        self.learner = learner


@register("learner", "standardised", free={})
class Standardised(Around):
    """``learner`` on inputs less the context's mean, over its standard deviation (1 where that is 0); queries too.

    scikit-learn's ``make_pipeline(StandardScaler(), learner)``.
    """

    def forward(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        check_inputs(context, xq)
        x, n = context.x, max(context.x.shape[-2], 1)
        mean = x.sum(-2, keepdim=True) / n
        size = ((x - mean).square().sum(-2, keepdim=True) / n).sqrt()
        size = torch.where(size > 10 * torch.finfo(x.dtype).eps * (size + mean.abs()), size, 1.0)
        return self.learner(Context((x - mean) / size, context.y), (xq - mean) / size)


@register("learner", "clipped", free={})
class Clipped(Around):
    """``learner`` with predictions clipped to the range of the context's targets."""

    def forward(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        check_inputs(context, xq)
        if not context.y.shape[-2]:
            return self.learner(context, xq)
        low, high = context.y.aminmax(dim=-2, keepdim=True)
        return torch.minimum(torch.maximum(self.learner(context, xq), low), high)


@register("learner", "label-copying", free={})
class LabelCopying(Around):
    """The target of the context that is nearest to the prediction of ``learner``: the first of those equally near."""

    def forward(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        check_inputs(context, xq)
        predicted = self.learner(context, xq)
        if not context.y.shape[-2]:
            return predicted
        far = (predicted[..., None, :] - context.y[..., None, :, :]).square().sum(-1)
        labels = context.y.expand(*far.shape[:-2], *context.y.shape[-2:])
        return torch.take_along_dim(labels, far.argmin(-1, keepdim=True), -2)


@register("learner", "on-features", free={})
class OnFeatures(Around):
    """``learner`` on features of inputs and queries.

    Args:
        learner: sees features in place of inputs.
        features: a module or function from ``(*batch, rows, dx)`` to ``(*batch, rows, df)``, row by row.
    """

    def __init__(self, learner: nn.Module, features: Callable[[Tensor], Tensor]) -> None:
        super().__init__(learner)
        require_callable("features", features)
        self.features = features

    def forward(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        check_inputs(context, xq)
        return self.learner(Context(featured(self.features, context.x), context.y), featured(self.features, xq))


def featured(
    features: Callable[[Tensor], Tensor], x: Float[Tensor, "*batch rows dx"]
) -> Float[Tensor, "*batch rows df"]:
    """``features(x)``, checked to have one row for each of x."""
    found = features(x)
    require_instance("features(x)", found, Tensor)
    if found.shape[:-1] != x.shape[:-1]:
        refuse("features(x)", f"have one row for each of x {tuple(x.shape)}", tuple(found.shape), "map each row")
    return found


def squares(x: Float[Tensor, "*batch rows d"]) -> Float[Tensor, "*batch rows f"]:
    """1, the entries of x, and all products of two of them: scikit-learn's ``PolynomialFeatures(2)``."""
    row, column = torch.triu_indices(x.shape[-1], x.shape[-1], device=x.device)
    return torch.cat([torch.ones_like(x[..., :1]), x, x[..., row] * x[..., column]], -1)
