"""Descent with a fixed preconditioner, and Newton's iteration for the inverse."""

from __future__ import annotations

import torch
from torch import nn

from mesascope.errors import refuse, require_count
from mesascope.learners.arguments import Algorithm, Matrix, Range, tensor_of
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Context, check_inputs


@register("learner", "preconditioned-gradient-descent", free={"steps": Range(1, 20, "integer")})
class PreconditionedGradientDescent(Algorithm):
    """``steps`` steps W <- W + (1/n) sum_i (y_i - W x_i) x_i^T M from W = 0, with one matrix M for all tasks.

    With M = eta I this is gradient descent. One linear self-attention layer can implement one step, but not two;
    `one_step_preconditioner` gives the best M for Gaussian inputs.

    Args:
        matrix: M ``(dx, dx)``, a parameter; kept in float64.
        steps: number of steps.

    Source: Ahn et al., Transformers learn to implement preconditioned gradient descent (2023).
    """

    def __init__(self, matrix: Matrix, steps: int = 1) -> None:
        super().__init__()
        self.steps = require_count("steps", steps, least=0)
        matrix = tensor_of("matrix", matrix, "dx dx")
        if matrix.shape[0] != matrix.shape[1]:
            refuse("matrix", "be square", tuple(matrix.shape), "pass one (dx, dx)")
        self.matrix = nn.Parameter(matrix.detach().double().clone())

    def forward(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        return self.trajectory(context, xq)[-1]

    def trajectory(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "k *batch m dy"]:
        """Predictions after 0, 1, ..., ``steps`` steps."""
        check_inputs(context, xq)
        (x, y), n = context, max(context.x.shape[-2], 1)
        if x.shape[-1] != self.matrix.shape[0]:
            refuse("context.x", f"have the matrix' width {self.matrix.shape[0]}", x.shape[-1], "match them")
        matrix = self.matrix.to(x) / n
        predictions, residual = [xq @ x.new_zeros(x.shape[-1], y.shape[-1])], y
        for _ in range(self.steps):
            move = matrix.mT @ (x.mT @ residual)  # (dx, dy), added to W^T
            residual = residual - x @ move
            predictions.append(predictions[-1] + xq @ move)
        return torch.stack(predictions)


@register("learner", "newton", free={"steps": Range(1, 12, "integer")})
class Newton(Algorithm):
    """Least squares by ``steps`` Newton iterations for the inverse of S = X^T X: W^T = M_k X^T Y.

    M_0 = S / |S|_1^2 and M_{k+1} = 2 M_k - M_k S M_k. At an eigenvalue s of S the residual is
    (1 - s^2 / |S|_1^2)^(2^k): each step squares it, while a gradient step multiplies it by a constant. Directions
    without data stay at 0, so the limit is the minimum-norm solution.

    Source: Fu et al., Transformers learn to achieve second-order convergence rates for in-context linear regression
    (2024). They scale M_0 by 2 / |S|_2^2, for which the residual at the largest eigenvalue never shrinks. Here |S|_1 >=
    |S|_2 avoids this.

    >>> x, y = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[1.0], [4.0]])
    >>> Newton(steps=8)(Context(x, y), torch.eye(2)).squeeze(-1)
    tensor([1.0000, 2.0000])
    """

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = require_count("steps", steps, least=0)

    def forward(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        return self.trajectory(context, xq)[-1]

    def trajectory(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "k *batch m dy"]:
        """Predictions after 0, 1, ..., ``steps`` steps; 0 steps predict with M_0."""
        check_inputs(context, xq)
        x, y = context
        gram, correlation = x.mT @ x, x.mT @ y
        scale = gram.abs().sum(-1, keepdim=True).amax(-2, keepdim=True).square()
        inverse = gram / torch.where(scale > 0, scale, torch.ones_like(scale))
        predictions = [xq @ (inverse @ correlation)]
        for _ in range(self.steps):
            inverse = 2 * inverse - inverse @ gram @ inverse
            predictions.append(xq @ (inverse @ correlation))
        return torch.stack(predictions)
