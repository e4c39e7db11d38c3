"""Kernel smoothing and regression, nearest neighbours, and gradient descent on features."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from mesascope.errors import refuse, require_choice, require_count, require_number
from mesascope.learners.arguments import Algorithm, Range, Sizes, require_precision
from mesascope.learners.descent import GradientDescent
from mesascope.learners.least_squares import solved
from mesascope.learners.transformed import OnFeatures, with_features
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Context, check_inputs


def distances(
    xq: Float[Tensor, "*batch m dx"], x: Float[Tensor, "*batch n dx"], power: float = 2.0
) -> Float[Tensor, "*batch m n"]:
    """|x_q - x_i| in the norm with exponent ``power``, computed from differences.

    By default torch computes Euclidean distances from products for 26 or more rows, which loses digits for inputs far
    from 0.
    """
    require_precision(x)
    return torch.cdist(xq, x, power, compute_mode="donot_use_mm_for_euclid_dist")


# log k(x_q, x_i) as a function of both inputs and the bandwidth h: (*batch, m, n).
KERNELS: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "gaussian": lambda xq, x, h: -distances(xq, x).square() / (2 * h * h),
    "laplace": lambda xq, x, h: -distances(xq, x) / h,
    "exponential": lambda xq, x, h: xq @ x.mT / h,
}
# k(x_q, x_i) of `KernelRidge`, with the same arguments.
RIDGE_KERNELS: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "gaussian": lambda xq, x, h: KERNELS["gaussian"](xq, x, h).exp(),
    "laplace": lambda xq, x, h: KERNELS["laplace"](xq, x, h).exp(),
    "manhattan": lambda xq, x, h: (-distances(xq, x, 1.0) / h).exp(),
    "quadratic": lambda xq, x, h: (1 + xq @ x.mT / (h * h)) ** 2,
    "cubic": lambda xq, x, h: (1 + xq @ x.mT / (h * h)) ** 3,
}
_POWERS = {"euclidean": 2.0, "manhattan": 1.0}


@register("learner", "kernel-smoother", free={"bandwidth": Range(0.05, 20.0, "log")})
class KernelSmoother(Algorithm):
    """Nadaraya-Watson: the mean of the context's targets, weighted by k(x_q, x_i) / sum_j k(x_q, x_j).

    ============  =========================  =======================================
    ``kernel``    k(x_q, x_i)
    ============  =========================  =======================================
    gaussian      exp(-|x_q - x_i|^2 / 2h^2)
    laplace       exp(-|x_q - x_i| / h)
    exponential   exp(x_q . x_i / h)         softmax attention; h = sqrt(d) is usual
    ============  =========================  =======================================

    ``bandwidth`` is h. Predicts 0 from an empty context. Source: von Oswald et al. (2023), appendix A.8.
    """

    def __init__(self, kernel: str = "gaussian", bandwidth: float = 1.0) -> None:
        super().__init__()
        require_choice("kernel", kernel, KERNELS)
        self.kernel, self.bandwidth = kernel, require_number("bandwidth", bandwidth, above=0)

    def forward(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        check_inputs(context, xq)
        return torch.softmax(KERNELS[self.kernel](xq, context.x, self.bandwidth), dim=-1) @ context.y


@register("learner", "kernel-ridge", free={"ridge": Range(1e-3, 10.0, "log"), "bandwidth": Range(0.2, 20.0, "log")})
class KernelRidge(Algorithm):
    """Kernel ridge regression: minimise sum_i (f(x_i) - y_i)^2 + ridge |f|^2 in the kernel's Hilbert space.

    Predicts k(x_q, X) (K + ridge I)^{-1} Y, the posterior mean of a Gaussian process with noise variance ``ridge``; 0
    from an empty context.

    ============  =========================  ====================================================
    ``kernel``    k(x_q, x_i)                scikit-learn's ``KernelRidge(alpha=ridge, ...)``
    ============  =========================  ====================================================
    gaussian      exp(-|x_q - x_i|^2 / 2h^2)  ``kernel="rbf", gamma=1 / (2 h^2)``
    laplace       exp(-|x_q - x_i| / h)
    manhattan     exp(-|x_q - x_i|_1 / h)     ``kernel="laplacian", gamma=1 / h``
    quadratic     (1 + x_q . x_i / h^2)^2     ``kernel="poly", degree=2, gamma=1 / h^2``
    cubic         (1 + x_q . x_i / h^2)^3     ``kernel="poly", degree=3, gamma=1 / h^2``
    ============  =========================  ====================================================

    Args:
        kernel: a name in the table.
        ridge: noise variance.
        bandwidth: h.

    Raises:
        NumericalError: the factorisation failed (ridge below rounding).

    >>> x, y = torch.eye(2), torch.tensor([[1.0], [2.0]])
    >>> KernelRidge(ridge=1.0, bandwidth=0.1)(Context(x, y), x).squeeze(-1)
    tensor([0.5000, 1.0000])
    """

    def __init__(self, kernel: str = "gaussian", ridge: float = 1.0, bandwidth: float = 1.0) -> None:
        super().__init__()
        require_choice("kernel", kernel, RIDGE_KERNELS)
        self.kernel, self.ridge = kernel, require_number("ridge", ridge, above=0)
        self.bandwidth = require_number("bandwidth", bandwidth, above=0)

    def forward(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        check_inputs(context, xq)
        weights = solved(self._kernel(context.x, context.x), self.ridge, context.y)
        return self._kernel(xq, context.x) @ weights

    def _kernel(self, one: Tensor, other: Tensor) -> Tensor:
        return RIDGE_KERNELS[self.kernel](one, other, self.bandwidth)


@register("learner", "nearest-neighbours", free={"k": Range(1, 10, "integer")})
class NearestNeighbours(Algorithm):
    """The mean of the targets of the ``k`` inputs nearest to the query.

    Args:
        k: number of neighbours; all pairs if there are fewer.
        metric: euclidean, or manhattan for sums of absolute differences.
        weights: uniform, or distance for weights 1 / |x_q - x_i|; neighbours at distance 0 then share the whole weight.
    """

    def __init__(self, k: int = 3, metric: str = "euclidean", weights: str = "uniform") -> None:
        super().__init__()
        require_choice("metric", metric, _POWERS)
        require_choice("weights", weights, ("uniform", "distance"))
        self.k, self.metric, self.weights = require_count("k", k), metric, weights

    def forward(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        check_inputs(context, xq)
        n = context.x.shape[-2]
        if n < 1:
            refuse("context", "have at least 1 pair", n, "pass more")
        every = distances(xq, context.x, _POWERS[self.metric])
        far, nearest = every.topk(min(self.k, n), dim=-1, largest=False)
        weights = torch.ones_like(far)
        if self.weights == "distance":
            there = far == 0
            weights = torch.where(there.any(-1, keepdim=True), there.to(far), 1 / far)
        weights = weights / weights.sum(-1, keepdim=True)
        found = xq.new_zeros(*xq.shape[:-1], n).scatter(-1, nearest, weights) @ context.y
        lost = every.isnan().any(-1, keepdim=True) | far[..., -1:].isinf()  # topk takes nan for the largest
        return found.masked_fill(lost, torch.nan)


@register(
    "learner", "kernel-gradient-descent", free={"steps": Range(1, 20, "integer"), "eta": Range(0.01, 30.0, "log")}
)
class KernelGradientDescent(OnFeatures):
    """``steps`` steps of gradient descent on 1/(2n) sum_i |W m(x_i) - y_i|^2 from W = 0, for features m.

    One step predicts (eta/n) sum_i y_i k(x_i, x_q) with the kernel k(x, x') = m(x) . m(x').

    Args:
        features: m, a module or function that maps ``(*batch, rows, dx)`` to ``(*batch, rows, df)`` row by row. A
            module's parameters are trained, as the step sizes are.
        steps, eta: as in `GradientDescent`.

    Source: von Oswald et al. (2023), Proposition 2 and appendix A.8.

    >>> x, y = torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0], [4.0]])
    >>> KernelGradientDescent(torch.square, steps=1, eta=0.1)(Context(x, y), x).squeeze(-1).detach()
    tensor([0.8500, 3.4000])
    """

    learner: GradientDescent

    def __init__(self, features: Callable[[Tensor], Tensor], steps: int, eta: Sizes) -> None:
        super().__init__(GradientDescent(steps, eta), features)

    @property
    def steps(self) -> int:
        return self.learner.steps

    @property
    def eta(self) -> nn.Parameter:
        return self.learner.eta

    def trajectory(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "k *batch m dy"]:
        """Predictions after 0, 1, ..., ``steps`` steps."""
        return self.learner.trajectory(*with_features(self.features, context, xq))
