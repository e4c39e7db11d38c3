"""Least squares and ridge regression, exact and iterative; principal components; posterior mean over a pool."""

from __future__ import annotations

import torch

from mesascope.errors import NumericalError, refuse, require_count, require_number
from mesascope.learners.arguments import (
    Algorithm,
    Matrix,
    Range,
    factorising,
    in_units,
    refuse_infinite,
    require_precision,
    tensor_of,
)
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Context, check_inputs

# Ridges below these shares of |X|^2 would lose digits in X^T X, in single and in double precision.
_SMALL, _SMALLER = 1e-3, 1e-8


@register("learner", "least-squares", free={"ridge": Range(1e-4, 100.0, "log")})
class LeastSquares(Algorithm):
    """Least squares and ridge regression: minimise sum_i |W x_i - y_i|^2 + ridge |W|^2.

    ``ridge=0`` gives the minimum-norm solution from the pseudo-inverse of X; singular values s_i below
    max(n, dx) * eps * max s are set to 0. ``ridge > 0`` solves (X^T X + ridge I) W^T = X^T Y, or the dual problem if
    it is smaller, by Cholesky; in float64 if ``ridge`` is below 1e-3 |X|^2, and from the singular values of X if it is
    below 1e-8 |X|^2. ``ridge`` is added to the unnormalised Gram matrix, as in `RecursiveLeastSquares` (where it must
    be greater than 0).

    >>> x, y = torch.eye(2), torch.tensor([[1.0], [2.0]])
    >>> LeastSquares(ridge=1.0)(Context(x, y), x).squeeze(-1)
    tensor([0.5000, 1.0000])
    """

    def __init__(self, ridge: float = 0.0) -> None:
        super().__init__()
        self.ridge = require_number("ridge", ridge, least=0)

    def forward(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        check_inputs(context, xq)
        x, y = context
        require_precision(x)
        if x.shape[-2] == 0:
            return xq @ y.new_zeros(x.shape[-1], y.shape[-1])
        if self.ridge == 0:
            with factorising(x):
                return xq @ (torch.linalg.pinv(x) @ y)
        return xq @ _ridge(x, y, self.ridge).to(xq)


def _ridge(x: Float[Tensor, "*batch n dx"], y: Float[Tensor, "*batch n dy"], ridge: float) -> Tensor:
    """(X^T X + ridge I)^{-1} X^T Y."""
    largest = float(x.detach().square().sum((-2, -1)).max()) if x.numel() else 0.0
    if ridge < _SMALL * largest:
        x, y = x.double(), y.double()
    if ridge < _SMALLER * largest:
        with factorising(x):
            left, sizes, right = _singular(x)
        return right.mT @ ((sizes / (sizes.square() + ridge))[..., None] * (left.mT @ y))
    if x.shape[-2] < x.shape[-1]:
        return x.mT @ solved(x @ x.mT, ridge, y)
    return solved(x.mT @ x, ridge, x.mT @ y)


def _singular(x: Float[Tensor, "*batch n d"]) -> tuple[Tensor, Tensor, Tensor]:
    """Singular value decomposition of X; singular values below rounding are 0."""
    left, sizes, right = torch.linalg.svd(x, full_matrices=False)
    rounding = max(x.shape[-2:]) * torch.finfo(x.dtype).eps * sizes[..., :1]
    return left, torch.where(sizes > rounding, sizes, 0.0), right


def solved(
    gram: Float[Tensor, "*batch k k"], ridge: float, target: Float[Tensor, "*batch k dy"]
) -> Float[Tensor, "*batch k dy"]:
    """(gram + ridge I)^{-1} target, by Cholesky; raises if a pivot is below rounding."""
    if not gram.numel():
        return target
    identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    factor, info = torch.linalg.cholesky_ex(gram + ridge * identity)
    pivots = factor.detach().diagonal(dim1=-2, dim2=-1).square()
    rounding = gram.shape[-1] * torch.finfo(gram.dtype).eps
    failed = int(((info != 0) | (pivots < rounding * pivots.amax(-1, keepdim=True)).any(-1)).sum())
    if failed:
        if not bool(torch.isfinite(gram).all()):
            refuse_infinite()
        remedy = "use a larger ridge" if gram.dtype == torch.float64 else "use a larger ridge or float64"
        raise NumericalError(
            f"the factorisation of a Gram matrix + ridge I must succeed, but broke down in {failed} of {info.numel()} "
            f"contexts at ridge {ridge:g}: {remedy}."
        )
    return torch.cholesky_solve(target, factor)


@register("learner", "principal-components", free={"count": Range(1, 10, "integer")})
class PrincipalComponents(Algorithm):
    """Principal component regression on the ``count`` leading right singular vectors of X (all if there are fewer)."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = require_count("count", count)

    def forward(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        check_inputs(context, xq)
        x, y = context
        require_precision(x)
        with factorising(x):
            left, sizes, right = _singular(x)
        left, sizes, right = left[..., : self.count], sizes[..., : self.count], right[..., : self.count, :]
        inverse = torch.where(sizes > 0, 1 / sizes, 0.0)
        return xq @ (right.mT @ (inverse[..., None] * (left.mT @ y)))


@register("learner", "conjugate-gradients", free={"steps": Range(1, 6, "integer")})
class ConjugateGradients(Algorithm):
    """``steps`` steps of conjugate gradients on 1/2 sum_i |W x_i - y_i|^2 from W = 0, separately for each target.

    After k steps, W minimises this sum over the span of X^T y, (X^T X) X^T y, ..., (X^T X)^{k-1} X^T y. On centred data
    this is partial least squares with k components; after rank(X) steps it is the minimum-norm least-squares solution.
    A task stops when its gradient is 0 up to rounding.

    Source: Hestenes and Stiefel (1952); for partial least squares, Wold et al. (1984).
    """

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = require_count("steps", steps, least=0)

    def forward(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        check_inputs(context, xq)
        (x, y), xq, unit = in_units(context, xq)
        weights, gradient = torch.zeros_like(x.mT @ y), x.mT @ y
        direction, size = gradient, gradient.square().sum(-2, keepdim=True)
        least = size * (max(x.shape[-2:]) * torch.finfo(x.dtype).eps) ** 2
        for _ in range(self.steps):
            curved = x.mT @ (x @ direction)
            slope = (direction * curved).sum(-2, keepdim=True)
            step = torch.where(size > least, size / slope, 0.0)
            weights, gradient = weights + step * direction, gradient - step * curved
            before, size = size, gradient.square().sum(-2, keepdim=True)
            direction = gradient + torch.where(before > least, size / before, 0.0) * direction
        return xq @ weights * unit


@register("learner", "newton", free={"steps": Range(1, 12, "integer")})
class Newton(Algorithm):
    """Least squares by ``steps`` Newton iterations for the inverse of S = X^T X: W^T = M_k X^T Y.

    M_0 = S / |S|_1^2 and M_{k+1} = 2 M_k - M_k S M_k. At an eigenvalue s of S the residual is
    (1 - s^2 / |S|_1^2)^(2^k): each step squares it, while a gradient step multiplies it by a constant. Directions
    without data stay at 0, so the limit is the minimum-norm solution.

    Source: Fu et al., Transformers learn to achieve second-order convergence rates for in-context linear regression
    (2024). They use M_0 = 2 S / |S|_2^2, for which the residual at the largest eigenvalue never shrinks. The norm
    |S|_1 >= |S|_2 avoids this.

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
        (x, y), xq, unit = in_units(context, xq)
        gram, correlation = x.mT @ x, x.mT @ y
        scale = gram.abs().sum(-1, keepdim=True).amax(-2, keepdim=True).square()
        inverse = gram / torch.where(scale > 0, scale, torch.ones_like(scale))
        predictions = [xq @ (inverse @ correlation) * unit]
        rounding = 8 * x.shape[-1] * torch.finfo(x.dtype).eps * gram.abs().amax((-2, -1), keepdim=True)
        for _ in range(self.steps):
            change = inverse - inverse @ gram @ inverse
            # a converged inverse stays as it is: further steps double rounding errors in directions without data
            moves = (gram @ change @ gram).abs().amax((-2, -1), keepdim=True) > rounding
            inverse = torch.where(moves, inverse + change, inverse)
            predictions.append(xq @ (inverse @ correlation) * unit)
        return torch.stack(predictions)


@register("learner", "bayes-pool", free={"noise": Range(0.01, 10.0, "log")})
class BayesPool(Algorithm):
    """Posterior mean for teachers drawn uniformly from a finite pool, and labels with Gaussian noise.

    Predicts sum_k p_k W_k x_q with p_k proportional to exp(-sum_i |y_i - W_k x_i|^2 / (2 noise^2)): the optimal learner
    for a finite set of tasks.

    Args:
        weights: the pool ``(pool, dy, dx)``.
        noise: standard deviation of the label noise.

    Source: Raventos et al., Pretraining task diversity and the emergence of non-Bayesian in-context learning (2023).

    >>> pool = torch.tensor([[[1.0]], [[-1.0]]])
    >>> learner, x = BayesPool(pool, noise=1.0), torch.ones(1, 1)
    >>> learner(Context(x, x), x), torch.tanh(torch.tensor(1.0))
    (tensor([[0.7616]]), tensor(0.7616))
    """

    weights: Tensor

    def __init__(self, weights: Matrix, noise: float) -> None:
        super().__init__()
        self.noise = require_number("noise", noise, above=0)
        self.register_buffer("weights", tensor_of("weights", weights, "pool dy dx"))

    def forward(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        check_inputs(context, xq)
        (x, y), pool = context, self.weights.to(xq.device, torch.float64)
        if pool.shape[1:] != (y.shape[-1], x.shape[-1]):
            refuse("context", f"have widths (dy, dx) = {tuple(pool.shape[1:])}", (y.shape[-1], x.shape[-1]), "match it")
        # sum_i |y_i - W x_i|^2 minus sum_i |y_i|^2, the same for all teachers; near ones differ in the last digits
        x, y = x.double(), y.double()
        fit = torch.einsum("...nd,...ne,ked->...k", x, y, pool)
        energy = torch.einsum("...dc,ked,kec->...k", x.mT @ x, pool, pool)
        posterior = torch.softmax((2 * fit - energy) / (2 * self.noise**2), dim=-1)
        return xq @ torch.einsum("...k,ked->...de", posterior, pool).to(xq)
