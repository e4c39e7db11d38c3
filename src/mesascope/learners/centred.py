"""Learners that see their context without its mean."""

from __future__ import annotations

from mesascope.errors import refuse
from mesascope.learners.transformed import Around
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Context, check_inputs

__all__ = ["Centred", "WithIntercept"]


@register("learner", "centred", free={})
class Centred(Around):
    """``learner`` on a context whose inputs have had their mean subtracted; queries stay as they are.

    With gradient descent this is what softmax attention with two heads of opposite sign computes for small scores: the
    softmax' denominator subtracts the mean.
    """

    def forward(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        return self.learner(self._centred(context, xq), xq)

    def trajectory(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "k *batch m dy"]:
        """Predictions after 0, 1, ... steps of a learner that has steps."""
        if not hasattr(self.learner, "trajectory"):
            refuse("learner", "have a trajectory", self.learner, "centre one that learns in steps")
        return self.learner.trajectory(self._centred(context, xq), xq)  # type: ignore[operator]

    def _centred(self, context: Context, xq: Tensor) -> Context:
        check_inputs(context, xq)
        return Context(context.x - _mean(context.x), context.y)


@register("learner", "with-intercept", free={})
class WithIntercept(Around):
    """``learner`` on inputs and targets without the context's means, queries too; its mean target is added again.

    For a linear learner this is its fit with an intercept that is not regularised: with `LeastSquares` scikit-learn's
    ``LinearRegression`` or ``Ridge``, with `Lasso` its ``Lasso``.
    """

    def forward(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        check_inputs(context, xq)
        x, y = map(_mean, context)
        return self.learner(Context(context.x - x, context.y - y), xq - x) + y


def _mean(rows: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch 1 d"]:
    """0 of no rows."""
    return rows.sum(-2, keepdim=True) / max(rows.shape[-2], 1)
