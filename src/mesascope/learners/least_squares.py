"""Least squares and ridge regression, exactly solved."""

from __future__ import annotations

import torch
from torch import nn

from mesascope.errors import NumericalError, require_number
from mesascope.learners.descent import require_precision
from mesascope.learners.ranges import Range
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Context, check_inputs

__all__ = ["LeastSquares", "solved"]


@register("learner", "least-squares", free={"ridge": Range(1e-4, 100.0, "log")})
class LeastSquares(nn.Module):
    """The weights that minimise sum_i |W x_i - y_i|^2 + ridge |W|^2.

    ``ridge=0`` gives the minimum-norm solution through the pseudo-inverse of X, whose singular values below
    max(n, dx) * eps * the largest are taken as zero; ``ridge > 0`` solves (X^T X + ridge I) W^T = X^T Y by Cholesky, in
    whichever of the primal and the dual is smaller. ``ridge`` adds to the unnormalised Gram matrix.

    Raises:
        NumericalError: the factorisation broke down (ridge below rounding for a singular context).

    >>> x, y = torch.eye(2), torch.tensor([[1.0], [2.0]])
    >>> LeastSquares(ridge=1.0)(Context(x, y), x).squeeze(-1)
    tensor([0.5000, 1.0000])
    """

    def __init__(self, ridge: float = 0.0) -> None:
        super().__init__()
        ridge = require_number("ridge", ridge, least=0)
        self.ridge = ridge

    def forward(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        check_inputs(context, xq)
        x, y = context
        require_precision(x)
        if x.shape[-2] == 0:
            return xq @ y.new_zeros(x.shape[-1], y.shape[-1])
        if self.ridge == 0:
            return xq @ (torch.linalg.pinv(x) @ y)
        if x.shape[-2] < x.shape[-1]:
            return xq @ (x.mT @ solved(x @ x.mT, self.ridge, y))
        return xq @ solved(x.mT @ x, self.ridge, x.mT @ y)

    def extra_repr(self) -> str:
        return f"ridge={self.ridge:g}"


def solved(
    gram: Float[Tensor, "*batch k k"], ridge: float, target: Float[Tensor, "*batch k dy"]
) -> Float[Tensor, "*batch k dy"]:
    """(gram + ridge I)^{-1} target, by Cholesky."""
    factor, info = torch.linalg.cholesky_ex(
        gram + ridge * torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    )
    failed = int((info != 0).sum())
    if failed:
        raise NumericalError(
            f"the factorisation of a Gram matrix + ridge I must succeed, but broke down in {failed} of {info.numel()} "
            f"contexts at ridge {ridge:g}: use a larger ridge or float64."
        )
    return torch.cholesky_solve(target, factor)
