"""Gradient descent on the context's squared error: plain, with a preconditioner, with curvature correction (GD++)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import torch
from torch import nn

from mesascope.errors import refuse, require_count, require_number
from mesascope.learners.arguments import Algorithm, Matrix, Range, Sizes, size_at, step_sizes, tensor_of
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Context, check_inputs


@register(
    "learner",
    "gradient-descent-plus-plus",
    free={"steps": Range(1, 5, "integer"), "eta": Range(0.01, 30.0, "log"), "gamma": Range(1e-4, 0.3, "log")},
)
class GradientDescentPlusPlus(Algorithm):
    """``steps`` steps of GD++: each is a gradient step on the targets and a curvature step on the inputs.

    With X ``(n, dx)`` the current inputs, r = y - W_0 x the current residuals and G = sum_i r_i x_i^T, each step does

        y_j <- y_j - (eta/n) G x_j - gamma W_0 X^T X x_j,     x_j <- x_j - gamma X^T X x_j

    for pairs and queries. A query starts from y_q = 0, and the prediction is W_0 x_q - y_q. The loss is
    1/(2n) sum_i |W x_i - y_i|^2. As in the source, gamma multiplies the *unnormalised* Gram matrix.

    Args:
        steps: number of steps; 0 predicts W_0 x_q.
        eta: step size, one number or one per step. A parameter, so that the training loop and `tune` can fit it.
        gamma: size of the curvature step, one number or one per step. Without a token clip, the last step's gamma has
            no effect on the prediction.
        w0: initial weights ``(dy, dx)``; zero if None.
        token_clip: clip every entry of every token (x, y) to [-token_clip, token_clip] after each step.

    Source: von Oswald et al. (2023), section 3 and appendix A.10 (eq. 23); token clip, appendix A.12.
    """

    w0: Tensor | None

    def __init__(
        self, steps: int, eta: Sizes, gamma: Sizes, w0: Matrix | None = None, token_clip: float | None = None
    ) -> None:
        super().__init__()
        self.steps = require_count("steps", steps, least=0)
        self.token_clip = None if token_clip is None else require_number("token_clip", token_clip, above=0)
        self.eta = step_sizes("eta", eta, steps)
        self.gamma: nn.Parameter | None = step_sizes("gamma", gamma, steps)
        self.register_buffer("w0", None if w0 is None else tensor_of("w0", w0, "dy dx"))

    def forward(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        return self._predictions(context, xq)[-1]

    def trajectory(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "k *batch m dy"]:
        """Predictions after 0, 1, ..., ``steps`` steps."""
        return torch.stack(self._predictions(context, xq))

    def repeated(self, steps: int, damping: float = 1.0) -> GradientDescentPlusPlus:
        """Return a descent of ``steps`` equal steps, with eta and gamma (single numbers) times ``damping``."""
        sizes = {name: size for name, size in (("eta", self.eta), ("gamma", self.gamma)) if size is not None}
        for name, size in sizes.items():
            if size.ndim:
                refuse(name, "be one number to repeat the step", size.tolist(), f"pass a scalar {name}")
        equal = {name: damping * size.item() for name, size in sizes.items()}
        return type(self)(steps, **equal, w0=self.w0, token_clip=self.token_clip)

    def _predictions(self, context: Context, xq: Tensor) -> list[Tensor]:
        check_inputs(context, xq)
        (x, y), n = context, max(context.x.shape[-2], 1)
        if self.w0 is not None and self.w0.shape != (y.shape[-1], x.shape[-1]):
            refuse("w0", f"have shape ({y.shape[-1]}, {x.shape[-1]})", tuple(self.w0.shape), "match it to (dy, dx)")
        w0 = None if self.w0 is None else self.w0.to(x)
        yq = y.new_zeros((*xq.shape[:-1], y.shape[-1]))
        predictions = [_less(yq, xq, w0)]
        for step in range(self.steps):
            # (dy, dx): the change of y is move @ x
            move = _less(y, x, w0).mT @ x * (size_at(self.eta, step).to(x) / n)
            last = step == self.steps - 1
            if self.gamma is None or (last and self.token_clip is None):
                yq, y = yq + xq @ move.mT, y if last else y + x @ move.mT
            else:
                bend = x.mT @ x * -size_at(self.gamma, step).to(x)
                move = move if w0 is None else move + w0 @ bend
                yq, y = yq + xq @ move.mT, y + x @ move.mT
                xq, x = xq + xq @ bend, x + x @ bend
            if self.token_clip is not None:
                x, y, xq, yq = (part.clamp(-self.token_clip, self.token_clip) for part in (x, y, xq, yq))
            predictions.append(_less(yq, xq, w0))
        return predictions


@register("learner", "gradient-descent", free={"steps": Range(1, 20, "integer"), "eta": Range(0.01, 30.0, "log")})
class GradientDescent(GradientDescentPlusPlus):
    """``steps`` steps of gradient descent on 1/(2n) sum_i |W x_i - y_i|^2 from W_0: eq. 3 of von Oswald et al. (2023).

    W <- W + (eta/n) sum_i (y_i - W x_i) x_i^T; the prediction is W x_q. The arguments are those of
    `GradientDescentPlusPlus`, without gamma.

    >>> x, y = torch.eye(2), torch.tensor([[1.0], [2.0]])
    >>> GradientDescent(steps=1, eta=0.5)(Context(x, y), x).squeeze(-1).detach()
    tensor([0.2500, 0.5000])
    """

    def __init__(self, steps: int, eta: Sizes, w0: Matrix | None = None, token_clip: float | None = None) -> None:
        super().__init__(steps, eta, 0.0, w0, token_clip)
        self.gamma = None


@register("learner", "preconditioned-gradient-descent", free={"steps": Range(1, 20, "integer")})
class PreconditionedGradientDescent(Algorithm):
    """``steps`` steps W <- W + (1/n) sum_i (y_i - W x_i) x_i^T M from W = 0, with one matrix M for all tasks.

    With M = eta I this is gradient descent. One linear self-attention layer can implement one step, but not two.

    Args:
        matrix: M ``(dx, dx)``, a parameter in float64.
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


def filters(
    spectra: Float[Tensor, "*batch d"],
    n: int | Float[Tensor, "*#batch 1"],
    etas: Iterable[Tensor],
    gammas: Iterable[Tensor] | None,
) -> tuple[Float[Tensor, "*several d"], Float[Tensor, "*several d"]]:
    """Gain h and residual r = 1 - lambda h of GD++ from zero weights, at eigenvalues lambda of C = X^T X / n.

    The prediction is x_q^T h(C) X^T Y / n, and the inputs become g(C) x. At first g = r = 1 and h = 0. With c = g^2, a
    step does h <- h + eta c r, r <- r (1 - eta lambda c) and g <- g (1 - n gamma lambda c).

    Args:
        etas, gammas: step sizes, in the order of the steps; each broadcasts against ``spectra``.
    """
    gain, residual, stretch = torch.zeros_like(spectra), torch.ones_like(spectra), torch.ones_like(spectra)
    for eta, gamma in zip(etas, itertools.repeat(None) if gammas is None else gammas, strict=False):
        more = eta * stretch.square() * residual
        gain, residual = gain + more, torch.addcmul(residual, more, spectra, value=-1)
        if gamma is not None:
            stretch = torch.addcmul(stretch, n * gamma * spectra, stretch.pow(3), value=-1)
    return gain, residual


def _less(y: Tensor, x: Tensor, w0: Tensor | None) -> Float[Tensor, "*batch rows dy"]:
    """W_0 x - y."""
    return -y if w0 is None else x @ w0.mT - y
