"""Wrappers of learners: transformed contexts, predictions or step sizes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from mesascope.errors import refuse, require_callable, require_count, require_instance
from mesascope.learners.arguments import Algorithm, mean_of_rows
from mesascope.learners.descent import GradientDescentPlusPlus
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Context, check_inputs


class _Around(nn.Module):
    """A wrapper of another learner."""

    def __init__(self, learner: nn.Module) -> None:
        super().__init__()
        require_callable("learner", learner)
        self.learner = learner


@register("learner", "centred", free={})
class Centred(_Around):
    """``learner`` on a context with centred inputs and unchanged queries.

    With gradient descent as ``learner``, two softmax heads of opposite sign compute this for small scores: the softmax
    denominator subtracts the mean.
    """

    def forward(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        return self.learner(self._centred(context, xq), xq)

    def trajectory(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "k *batch m dy"]:
        """Predictions after 0, 1, ... steps, if the wrapped learner has a trajectory."""
        if not hasattr(self.learner, "trajectory"):
            refuse("learner", "have a trajectory", self.learner, "centre one that learns in steps")
        return self.learner.trajectory(self._centred(context, xq), xq)  # type: ignore[operator]

    def _centred(self, context: Context, xq: Tensor) -> Context:
        check_inputs(context, xq)
        return Context(context.x - mean_of_rows(context.x), context.y)


@register("learner", "with-intercept", free={})
class WithIntercept(_Around):
    """``learner`` on inputs, queries and targets minus the context's means; the mean target is added to predictions.

    A linear learner is then fitted with an intercept that is not regularised: `LeastSquares` becomes scikit-learn's
    ``LinearRegression`` or ``Ridge``, and `Lasso` becomes scikit-learn's ``Lasso``.
    """

    def forward(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        check_inputs(context, xq)
        x, y = map(mean_of_rows, context)
        return self.learner(Context(context.x - x, context.y - y), xq - x) + y


@register("learner", "standardised", free={})
class Standardised(_Around):
    """``learner`` on inputs standardised by the context's mean and standard deviation (1 if that is 0).

    Queries are transformed in the same way, as in scikit-learn's ``make_pipeline(StandardScaler(), learner)``.
    """

    def forward(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        check_inputs(context, xq)
        x, mean = context.x, mean_of_rows(context.x)
        size = mean_of_rows((x - mean).square()).sqrt()
        size = torch.where(size > 10 * torch.finfo(x.dtype).eps * (size + mean.abs()), size, 1.0)
        return self.learner(Context((x - mean) / size, context.y), (xq - mean) / size)


@register("learner", "clipped", free={})
class Clipped(_Around):
    """``learner`` with predictions clipped to the range of the context's targets."""

    def forward(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        check_inputs(context, xq)
        if not context.y.shape[-2]:
            return self.learner(context, xq)
        low, high = context.y.aminmax(dim=-2, keepdim=True)
        return torch.minimum(torch.maximum(self.learner(context, xq), low), high)


@register("learner", "label-copying", free={})
class LabelCopying(_Around):
    """The context's target nearest to the prediction of ``learner``; the first in case of ties."""

    def forward(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        check_inputs(context, xq)
        predicted = self.learner(context, xq)
        if not context.y.shape[-2]:
            return predicted
        far = (predicted[..., None, :] - context.y[..., None, :, :]).square().sum(-1)
        labels = context.y.expand(*far.shape[:-2], *context.y.shape[-2:])
        found = torch.take_along_dim(labels, far.argmin(-1, keepdim=True), -2)
        return found.masked_fill(~far.amin(-1, keepdim=True).isfinite(), torch.nan)


@register("learner", "on-features", free={})
class OnFeatures(_Around):
    """``learner`` on features of inputs and queries.

    Args:
        learner: takes features in place of inputs.
        features: a module or function that maps ``(*batch, rows, dx)`` to ``(*batch, rows, df)`` row by row.
    """

    def __init__(self, learner: nn.Module, features: Callable[[Tensor], Tensor]) -> None:
        super().__init__(learner)
        require_callable("features", features)
        self.features = features

    def forward(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        return self.learner(*with_features(self.features, context, xq))


def with_features(features: Callable[[Tensor], Tensor], context: Context, xq: Tensor) -> tuple[Context, Tensor]:
    """Context and queries with inputs replaced by ``features(x)``, which must have one row per input."""
    check_inputs(context, xq)
    found = []
    for x in (context.x, xq):
        found.append(features(x))
        require_instance("features(x)", found[-1], Tensor)
        if found[-1].shape[:-1] != x.shape[:-1]:
            shape = tuple(found[-1].shape)
            refuse("features(x)", f"have one row for each of x {tuple(x.shape)}", shape, "map each row")
    return Context(found[0], context.y), found[1]


@register("learner", "summed", free={})
class Summed(Algorithm):
    """``learner`` with step size eta n / ``pairs`` on a context of n pairs: descent on a sum over pairs, not a mean.

    A linear attention layer sums over its tokens. So a layer that was trained on contexts of ``pairs`` pairs takes
    larger steps on longer contexts and smaller steps on shorter contexts.

    >>> x, y = torch.ones(2, 1), torch.ones(2, 1)
    >>> from mesascope.learners import GradientDescent
    >>> Summed(GradientDescent(1, 0.5), pairs=4)(Context(x, y), x[:1]).item()
    0.25
    """

    def __init__(self, learner: GradientDescentPlusPlus, pairs: int) -> None:
        super().__init__()
        require_instance("learner", learner, GradientDescentPlusPlus, "pass one that descends")
        self.learner, self.pairs = learner, require_count("pairs", pairs)

    def forward(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        eta = self.learner.eta * (context.x.shape[-2] / self.pairs)
        return torch.func.functional_call(self.learner, {"eta": eta}, (context, xq))


def squares(x: Float[Tensor, "*batch rows d"]) -> Float[Tensor, "*batch rows f"]:
    """Features 1, x_i and x_i x_j, as in scikit-learn's ``PolynomialFeatures(2)``."""
    row, column = torch.triu_indices(x.shape[-1], x.shape[-1], device=x.device)
    return torch.cat([torch.ones_like(x[..., :1]), x, x[..., row] * x[..., column]], -1)
