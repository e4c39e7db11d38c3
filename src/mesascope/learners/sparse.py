"""Lasso and elastic net, batched over tasks."""

from __future__ import annotations

import torch
from torch.nn import functional

from mesascope.errors import NumericalError, require_number
from mesascope.learners.arguments import Algorithm, Range, moments, refuse_infinite
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Context

_MOST_SWEEPS = 10_000
_MOST_BENDS = 8  # maximum number of kinks in a path, per weight


@register("learner", "lasso", free={"alpha": Range(1e-3, 1.0, "log")})
class Lasso(Algorithm):
    """Minimise 1/(2n) |Y - X W^T|^2 + alpha |W|_1, separately for each target, without intercept.

    The solution path is followed from the smallest alpha with W = 0 down to ``alpha``. The path is piecewise linear,
    with a kink where a weight leaves 0 or returns to 0; an iteration passes one kink of every task. If rounding hides a
    kink, coordinate descent continues until no weight of a task changes by more than 10 eps of the largest weight.

    Raises:
        NumericalError: no convergence after 10,000 sweeps (alpha tiny for an ill-conditioned context).

    Source: Osborne et al., A new approach to variable selection in least squares problems (2000).

    >>> x, y = torch.eye(2), torch.tensor([[1.0], [0.1]])
    >>> Lasso(alpha=0.1)(Context(x, y), x).squeeze(-1)
    tensor([0.8000, 0.0000])
    """

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.alpha = require_number("alpha", alpha, above=0)

    def forward(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        return xq @ self.minimum(*moments(context, xq))

    def minimum(
        self, gram: Float[Tensor, "*batch dx dx"], correlation: Float[Tensor, "*batch dx dy"]
    ) -> Float[Tensor, "*batch dx dy"]:
        """Solution for the given X^T X / n and X^T Y / n."""
        if not correlation.numel():
            return correlation
        weights = self._path(gram[..., None, :, :], correlation.mT).mT
        weights = torch.where(weights.isfinite(), weights, 0)  # equal columns have no unique path
        gradient = correlation - gram @ weights
        size = correlation.abs().amax((-2, -1), keepdim=True).clamp_min(self.alpha)
        if bool((self._is_minimum(weights, gradient, size) & size.isfinite()[..., 0, 0]).all()):
            return weights
        parts = (part.reshape(-1, *part.shape[-2:]) for part in (gram, weights, gradient, size))
        return self._descended(*parts).reshape(weights.shape)

    def _descended(self, gram: Tensor, weights: Tensor, gradient: Tensor, size: Tensor) -> Float[Tensor, "tasks dx dy"]:
        """Weights after coordinate descent, with sweeps over the tasks that have not converged."""
        if not bool(size.isfinite().all()):
            refuse_infinite()
        found, rows = weights.clone(), torch.arange(len(weights), device=weights.device)
        tolerance = 10 * torch.finfo(gram.dtype).eps
        for _ in range(_MOST_SWEEPS):
            before = weights
            weights, gradient = self._sweep(gram, weights, gradient)
            found[rows] = weights
            moves, largest = (part.abs().amax((-2, -1)) for part in (weights - before, weights))
            left = ~((moves <= tolerance * largest) | self._is_minimum(weights, gradient, size))
            if not bool(left.any()):
                return found
            rows, gram, weights, gradient, size = (part[left] for part in (rows, gram, weights, gradient, size))
        raise NumericalError(
            f"coordinate descent must converge within {_MOST_SWEEPS} sweeps, but has not for {len(rows)} of "
            f"{len(found)} tasks at alpha {self.alpha:g}: use a larger alpha or float64."
        )

    def _sweep(self, gram: Tensor, weights: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Update each weight in turn, and keep ``gradient`` equal to correlation - gram @ weights."""
        columns = []
        for j in range(gram.shape[-1]):
            curvature = gram[..., j : j + 1, j : j + 1]
            old = weights[..., j : j + 1, :]
            pull = gradient[..., j : j + 1, :] + curvature * old
            # A coordinate without data has zero curvature and gradient: it stays at 0.
            new = functional.softshrink(pull, self.alpha) / torch.where(curvature > 0, curvature, 1.0)
            gradient = gradient - gram[..., :, j : j + 1] * (new - old)
            columns.append(new)
        return torch.cat(columns, dim=-2), gradient

    def _is_minimum(self, weights: Tensor, gradient: Tensor, size: Tensor) -> Tensor:
        """True for tasks whose gradient is alpha sign(w) for weights w != 0, and at most alpha in size for w = 0."""
        wanted = torch.where(weights == 0, gradient.clamp(-self.alpha, self.alpha), self.alpha * weights.sign())
        slack = 1e3 * torch.finfo(weights.dtype).eps * size
        return ((gradient - wanted).abs() <= slack).flatten(-2).all(-1)

    def _path(
        self, gram: Float[Tensor, "*batch one dx dx"], correlation: Float[Tensor, "*batch dy dx"]
    ) -> Float[Tensor, "*batch dy dx"]:
        """Weights at the end of the path; on the path, the nonzero weights, with signs s, are G^-1 (c - alpha s)."""
        alpha, sign = torch.full_like(correlation[..., 0], torch.inf), torch.zeros_like(correlation)
        past = torch.zeros(2, *correlation.shape, dtype=torch.bool, device=gram.device)
        for _ in range(_MOST_BENDS * correlation.shape[-1]):
            start, slope = self._line(gram, correlation, sign)
            active = sign != 0
            pull = correlation - (gram @ start[..., None])[..., 0]
            drift = (gram @ slope[..., None])[..., 0]
            # The values of alpha at which a gradient reaches +alpha or -alpha, or a weight returns to 0.
            up = torch.where(active, start / slope, pull / (1 - drift))
            down = torch.where(active, -torch.inf, -pull / (1 + drift))
            ahead = torch.stack([up, down])
            ahead = torch.where((ahead < alpha[..., None]) & ~past, ahead, -torch.inf).nan_to_num(-torch.inf)
            alpha, coordinate = ahead.amax(0).max(-1)
            bent = functional.one_hot(coordinate, sign.shape[-1]).bool() & (alpha > self.alpha)[..., None]
            if not bool(bent.any()):
                break
            # Exclude the last kink, which rounding could repeat.
            past = torch.stack([bent & (sign >= 0), bent & (sign < 0)])
            gained = torch.where(ahead[0] >= ahead[1], 1.0, -1.0).to(sign)
            sign = torch.where(bent, torch.where(active, 0, gained), sign)
        start, slope = self._line(gram, correlation, sign)
        return torch.where(sign != 0, start - self.alpha * slope, 0)

    @staticmethod
    def _line(gram: Tensor, correlation: Tensor, sign: Tensor) -> tuple[Tensor, ...]:
        """G^-1 c and G^-1 s on the nonzero weights, and 0 elsewhere."""
        active = sign != 0
        own = torch.where(active[..., None] & active[..., None, :], gram, torch.eye(gram.shape[-1]).to(gram))
        aims = torch.stack([torch.where(active, correlation, 0), sign], -1)
        return torch.linalg.solve_ex(own, aims).result.unbind(-1)


@register("learner", "elastic-net", free={"alpha": Range(1e-3, 1.0, "log"), "share": Range(0.05, 1.0, "linear")})
class ElasticNet(Algorithm):
    """Minimise 1/(2n) |Y - X W^T|^2 + alpha (share |W|_1 + (1 - share)/2 |W|^2), without intercept.

    Equal to scikit-learn's ``ElasticNet(alpha, l1_ratio=share, fit_intercept=False)``. Raises the same errors as
    `Lasso`.
    """

    def __init__(self, alpha: float, share: float = 0.5) -> None:
        super().__init__()
        self.alpha = require_number("alpha", alpha, above=0)
        self.share = require_number("share", share, above=0, most=1)

    def forward(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        gram, correlation = moments(context, xq)
        ridge = self.alpha * (1 - self.share) * torch.eye(gram.shape[-1]).to(gram)
        return xq @ Lasso(self.alpha * self.share).minimum(gram + ridge, correlation)
