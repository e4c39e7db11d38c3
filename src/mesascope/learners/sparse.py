"""The lasso, by coordinate descent on all tasks at once."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from mesascope.errors import NumericalError, require_number
from mesascope.learners.ranges import Range
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Context, check_inputs

__all__ = ["Lasso"]

_MOST_SWEEPS = 10_000


@register("learner", "lasso", free={"alpha": Range(1e-3, 1.0, "log")})
class Lasso(nn.Module):
    """The weights that minimise 1/(2n) |Y - X W^T|^2 + alpha |W|_1, one target at a time, without intercept.

    Coordinate descent sweeps over all tasks at once until no weight of any task moves by more than 10 eps of the
    largest. Where several minima exist (n < dx), it is the one reached from 0.

    Raises:
        NumericalError: no convergence after 10,000 sweeps (alpha tiny for an ill-conditioned context).

    >>> x, y = torch.eye(2), torch.tensor([[1.0], [0.1]])
    >>> Lasso(alpha=0.1)(Context(x, y), x).squeeze(-1)
    tensor([0.8000, 0.0000])
    """

    def __init__(self, alpha: float) -> None:
        super().__init__()
        require_number("alpha", alpha, above=0)
        self.alpha = alpha

    def forward(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        check_inputs(context, xq)
        (x, y), n = context, max(context.x.shape[-2], 1)
        gram, correlation = x.mT @ x / n, x.mT @ y / n
        return xq @ self._minimum(gram, correlation)

    def _minimum(self, gram: Tensor, correlation: Tensor) -> Tensor:
        """Weights ``(*batch, dx, dy)``; ``gradient`` is kept equal to correlation - gram @ weights."""
        weights, gradient = torch.zeros_like(correlation), correlation
        if not weights.numel():
            return weights
        tolerance = 10 * torch.finfo(gram.dtype).eps
        for _ in range(_MOST_SWEEPS):
            before = weights
            columns = []
            for j in range(gram.shape[-1]):
                curvature = gram[..., j : j + 1, j : j + 1]
                old = weights[..., j : j + 1, :]
                pull = gradient[..., j : j + 1, :] + curvature * old
                # A coordinate without data has no curvature and no pull: it stays at 0.
                new = functional.softshrink(pull, self.alpha) / torch.where(curvature > 0, curvature, 1.0)
                gradient = gradient - gram[..., :, j : j + 1] * (new - old)
                columns.append(new)
            weights = torch.cat(columns, dim=-2)
            if bool((weights - before).abs().amax() <= tolerance * weights.abs().amax()):
                return weights
        raise NumericalError(
            f"coordinate descent must converge within {_MOST_SWEEPS} sweeps, but has not at alpha {self.alpha:g}: use "
            "a larger alpha or float64."
        )

    def extra_repr(self) -> str:
        return f"alpha={self.alpha:g}"
