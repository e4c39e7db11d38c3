"""Gradient descent on the context's squared error, plain and with curvature correction (GD++)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import torch
from torch import nn

from mesascope.errors import ArgumentTypeError, refuse, require_count, require_number, shown
from mesascope.learners.ranges import Range
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Context, check_inputs

__all__ = [
    "GradientDescent",
    "GradientDescentPlusPlus",
    "Rows",
    "filters",
    "one_size",
    "require_precision",
    "size_at",
    "step_sizes",
    "tensor_of",
]

Rows = Sequence  # of numbers, nested as deep as a tensor has axes


@register(
    "learner",
    "gradient-descent-plus-plus",
    free={"steps": Range(1, 5, "integer"), "eta": Range(0.01, 30.0, "log"), "gamma": Range(1e-4, 0.3, "log")},
)
class GradientDescentPlusPlus(nn.Module):
    """``steps`` steps of GD++: a gradient step on the targets and a curvature step on the inputs, at once.

    With X ``(n, dx)`` the current inputs, r = y - W_0 x the current residuals and G = sum_i r_i x_i^T, each step does

        y_j <- y_j - (eta/n) G x_j - gamma W_0 X^T X x_j,     x_j <- x_j - gamma X^T X x_j

    for context and queries alike, and the prediction is W_0 x_q - y_q, where a query starts from y_q = 0. The loss
    descended is 1/(2n) sum_i |W x_i - y_i|^2. gamma multiplies the *unnormalised* Gram matrix, as in the paper.

    Args:
        steps: number of steps; 0 predicts W_0 x_q.
        eta: step size, one number or one a step. A parameter, so that the training loop and `tune` can fit it.
        gamma: preconditioner, likewise. The last step's has no effect on the prediction.
        w0: initial weights ``(dy, dx)``; zero if None.
        token_clip: clip every entry of every token (x, y) to [-token_clip, token_clip] after each step.

    Source: ICML paper, section 3 and appendix A.10 (eq. 23); token clip, appendix A.12.
    """

    w0: Tensor | None

    def __init__(
        self,
        steps: int,
        eta: float | Sequence[float],
        gamma: float | Sequence[float],
        w0: Float[Tensor, "dy dx"] | Rows | None = None,
        token_clip: float | None = None,
    ) -> None:
        super().__init__()
        steps = require_count("steps", steps, least=0)
        if token_clip is not None:
            token_clip = require_number("token_clip", token_clip, above=0)
        self.steps = steps
        self.token_clip = token_clip
        self.eta = step_sizes("eta", eta, steps)
        self.gamma: nn.Parameter | None = step_sizes("gamma", gamma, steps)
        self.register_buffer("w0", None if w0 is None else tensor_of("w0", w0, "dy dx"))

    def forward(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        return self._predictions(context, xq)[-1]

    def trajectory(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "k *batch m dy"]:
        """Predictions after 0, 1, ..., ``steps`` steps."""
        return torch.stack(self._predictions(context, xq))

    def repeated(self, steps: int, damping: float = 1.0) -> GradientDescentPlusPlus:
        """The same rule applied ``steps`` times with both step sizes times ``damping``; needs one step size for all."""
        if self.eta.ndim:
            refuse("eta", "be one number for a rule to be repeated", self.eta.tolist(), "pass a scalar eta")
        sizes = {"eta": damping * self.eta.item()}
        if self.gamma is not None:
            sizes["gamma"] = damping * self.gamma.item()
        return type(self)(steps, **sizes, w0=self.w0, token_clip=self.token_clip)

    def _predictions(self, context: Context, xq: Tensor) -> list[Tensor]:
        check_inputs(context, xq)
        (x, y), n = context, max(context.x.shape[-2], 1)
        if self.w0 is not None and self.w0.shape != (y.shape[-1], x.shape[-1]):
            refuse("w0", f"have shape ({y.shape[-1]}, {x.shape[-1]})", tuple(self.w0.shape), "match it to (dy, dx)")
        w0 = None if self.w0 is None else self.w0.to(x)
        yq = y.new_zeros((*xq.shape[:-1], y.shape[-1]))
        predictions = [_less(yq, xq, w0)]
        for step in range(self.steps):
            # (dy, dx): what is added to y is move x
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

    def extra_repr(self) -> str:
        sizes = "" if self.gamma is None else f", gamma={_shown(self.gamma)}"
        return f"steps={self.steps}, eta={_shown(self.eta)}{sizes}"


@register("learner", "gradient-descent", free={"steps": Range(1, 20, "integer"), "eta": Range(0.01, 30.0, "log")})
class GradientDescent(GradientDescentPlusPlus):
    """``steps`` steps of gradient descent on 1/(2n) sum_i |W x_i - y_i|^2 from W_0: eq. 3 of the ICML paper.

    W <- W + (eta/n) sum_i (y_i - W x_i) x_i^T; the prediction is W x_q. Arguments as in `GradientDescentPlusPlus`,
    without gamma.

    >>> x, y = torch.eye(2), torch.tensor([[1.0], [2.0]])
    >>> GradientDescent(steps=1, eta=0.5)(Context(x, y), x).squeeze(-1).detach()
    tensor([0.2500, 0.5000])
    """

    def __init__(
        self,
        steps: int,
        eta: float | Sequence[float],
        w0: Float[Tensor, "dy dx"] | Rows | None = None,
        token_clip: float | None = None,
    ) -> None:
        super().__init__(steps, eta, 0.0, w0, token_clip)
        self.gamma = None


def filters(
    spectra: Float[Tensor, "*batch d"], n: int, etas: Iterable[Tensor], gammas: Iterable[Tensor] | None
) -> tuple[Float[Tensor, "*several d"], Float[Tensor, "*several d"]]:
    """Gain h and residual r = 1 - lambda h of GD++ from zero weights, at eigenvalues lambda of C = X^T X / n.

    Its prediction is x_q^T h(C) X^T Y / n. With g = r = 1 and h = 0 before the first step and c = g^2, a step does
    h <- h + eta c r, r <- r (1 - eta lambda c) and g <- g (1 - n gamma lambda c).

    Args:
        etas, gammas: step sizes, in the order of the steps; each broadcasts against ``spectra``.
    """
    gain, residual, stretch = torch.zeros_like(spectra), torch.ones_like(spectra), torch.ones_like(spectra)
    for eta, gamma in zip(etas, itertools.repeat(None) if gammas is None else gammas, strict=False):
        squared = stretch.square()
        gain = gain + eta * squared * residual
        residual = residual * (1 - eta * spectra * squared)
        if gamma is not None:
            stretch = stretch * (1 - n * gamma * spectra * squared)
    return gain, residual


def step_sizes(name: str, value: float | Sequence[float], steps: int) -> nn.Parameter:
    """A float64 parameter: a number, or one a step."""
    try:
        if isinstance(value, bool):
            raise TypeError
        sizes = torch.as_tensor(value, dtype=torch.float64).detach().clone()
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentTypeError(f"{name} must be a number or one a step, but is {shown(value)}: pass floats.") from None
    if sizes.ndim > 1 or (sizes.ndim == 1 and len(sizes) != steps):
        refuse(name, f"be one number or {steps}, one a step", value, "match it to steps")
    if not torch.isfinite(sizes).all():
        refuse(name, "be finite", value, "pass finite step sizes")
    return nn.Parameter(sizes)


def one_size(name: str, value: float) -> nn.Parameter:
    """A float64 parameter of one number."""
    return nn.Parameter(torch.tensor(require_number(name, value), dtype=torch.float64))


def tensor_of(name: str, value: Tensor | Rows, axes: str, shape: tuple[int, ...] | None = None) -> Tensor:
    """A floating-point tensor as it is, or nested lists of numbers, as records have them, in float64.

    ``axes`` names its axes; what has others, or another ``shape`` where one is given, or holds a number that is not
    finite, is refused.
    """
    try:
        tensor = value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentTypeError(
            f"{name} must be a tensor or equally long lists of numbers, but is {shown(value)}: pass one."
        ) from None
    if not tensor.is_floating_point():
        raise ArgumentTypeError(f"{name} must be of a floating-point dtype, but is {tensor.dtype}: convert it.")
    if tensor.ndim != len(axes.split()) or not tensor.numel():
        refuse(name, f"have shape ({', '.join(axes.split())})", tuple(tensor.shape), "add the missing axes")
    if shape is not None and tensor.shape != shape:
        refuse(name, f"have shape {shape}", tuple(tensor.shape), f"pass {name} of shape ({', '.join(axes.split())})")
    if not bool(torch.isfinite(tensor).all()):
        refuse(name, "be finite", tensor.detach().tolist(), "replace what is not a finite number")
    return tensor


def require_precision(x: Tensor) -> None:
    """Refuse a dtype in which torch solves no equations and measures no distances."""
    if x.dtype not in (torch.float32, torch.float64):
        raise ArgumentTypeError(
            f"context must be of dtype float32 or float64 for this learner, but is {x.dtype}: convert it, with "
            ".float() say."
        )


def _less(y: Tensor, x: Tensor, w0: Tensor | None) -> Float[Tensor, "*batch rows dy"]:
    """W_0 x - y."""
    return -y if w0 is None else x @ w0.mT - y


def size_at(sizes: Tensor, step: int) -> Tensor:
    return sizes if sizes.ndim == 0 else sizes[step]


def _shown(sizes: Tensor) -> str:
    return f"{sizes.item():.6g}" if sizes.ndim == 0 else "[" + ", ".join(f"{size:.6g}" for size in sizes.tolist()) + "]"
