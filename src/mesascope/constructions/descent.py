"""Gradient descent and GD++ as weights of linear self-attention."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence

import torch
from torch import nn

from mesascope import nets
from mesascope.constructions.pairs import Construction, initial_weights, require_sizes
from mesascope.errors import require_count, require_instance
from mesascope.learners import GradientDescent, GradientDescentPlusPlus, KernelGradientDescent
from mesascope.learners.arguments import Rows
from mesascope.nets import Products, TokenMLP
from mesascope.records import register
from mesascope.shapes import Float, Tensor

__all__ = ["gradient_descent", "gradient_descent_plus_plus", "kernel_gradient_descent"]


@register("construction", "gradient-descent", of="learner", exact=True)
def gradient_descent(
    d_in: int,
    d_out: int,
    eta: float | Sequence[float],
    n_context: int,
    steps: int = 1,
    w0: Float[Tensor, "d_out d_in"] | Rows | None = None,
) -> Construction:
    """Proposition 1, stacked: ``steps`` linear self-attention layers that take ``steps`` gradient steps.

    Each layer has W_KQ = diag(I, 0) and W_PV = (eta/N) [[0, 0], [W_0, -I]]: every token's target moves by minus the
    change in W x, eq. 8 of the ICML paper. A number ``eta`` makes one looped layer, a sequence separate layers. Weights
    are float64, and both learners agree to rounding.

    >>> network, algorithm = gradient_descent(d_in=2, d_out=1, eta=0.5, n_context=2)
    >>> network.products()[0].w_pv[0].tolist()
    [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, -0.25]]
    """
    require_sizes(d_in=d_in, d_out=d_out, n_context=n_context, steps=steps)
    return _construction(d_in, d_out, n_context, GradientDescent(steps, eta, initial_weights(w0, d_out, d_in)))


@register("construction", "gradient-descent-plus-plus", of="learner", exact=True)
def gradient_descent_plus_plus(
    d_in: int,
    d_out: int,
    eta: float | Sequence[float],
    gamma: float | Sequence[float],
    n_context: int,
    steps: int = 1,
    w0: Float[Tensor, "d_out d_in"] | Rows | None = None,
) -> Construction:
    """Appendix A.10, stacked: layers that take a gradient step and a curvature step x <- x - gamma X^T X x at once.

    W_PV = [[-gamma I, 0], [(eta/N - gamma) W_0, -(eta/N) I]]. The term in gamma W_0, which the paper's eq. 23 lacks,
    moves each token's residual y - W_0 x with its input; it vanishes for W_0 = 0.
    """
    require_sizes(d_in=d_in, d_out=d_out, n_context=n_context, steps=steps)
    w0 = initial_weights(w0, d_out, d_in)
    return _construction(d_in, d_out, n_context, GradientDescentPlusPlus(steps, eta, gamma, w0))


@register("construction", "kernel-gradient-descent", of="learner", exact=True)
def kernel_gradient_descent(
    mlp: TokenMLP, d_out: int, eta: float | Sequence[float], n_context: int, steps: int = 1
) -> Construction:
    """Proposition 2: a residual MLP on the inputs, then layers that descend on the features m(x) = x + MLP(x).

    The MLP is padded by zeros: it reads and changes only the inputs' part of a token. The attention layers are those of
    `gradient_descent`. The algorithm descends on 1/(2N) sum_i |W m(x_i) - y_i|^2, the regression with the kernel
    m(x) . m(x') of eq. 13 of the ICML paper. ``mlp`` maps inputs ``(*batch, rows, d_in)`` to the same shape; it is
    copied.
    """
    require_instance("mlp", mlp, TokenMLP)
    require_count("d_out", d_out)
    hidden, d_in = mlp.up_proj.weight.shape
    width, own = d_in + d_out, copy.deepcopy(mlp).double()
    layers = gradient_descent(d_in, d_out, eta, n_context, steps).network
    embedding = nets.EmbeddingConfig(width, width, mlp=-(-hidden // width), project=False)
    config = dataclasses.replace(layers.config, embedding=embedding)
    network = nets.InContextRegressor(config, torch.Generator()).double()
    network.transformer.load_state_dict(layers.transformer.state_dict())
    assert network.embedding is not None
    _pad(network.embedding.mlp, own)
    return Construction(network, KernelGradientDescent(_Residual(own), steps, eta))


def _pad(wide: TokenMLP, mlp: TokenMLP) -> None:
    """Make ``wide`` compute ``mlp`` on the first entries of tokens, and neither read nor change the others."""
    with torch.no_grad():
        for weight in wide.parameters():
            weight.zero_()
        for name, weight in mlp.named_parameters():
            wide.get_parameter(name)[tuple(slice(size) for size in weight.shape)] = weight


class _Residual(nn.Module):
    """x + MLP(x)."""

    def __init__(self, mlp: TokenMLP) -> None:
        super().__init__()
        self.mlp = mlp

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(x)


def _construction(d_in: int, d_out: int, n_context: int, algorithm: GradientDescentPlusPlus) -> Construction:
    eta, gamma = algorithm.eta.detach(), torch.zeros(()) if algorithm.gamma is None else algorithm.gamma.detach()
    steps, w0 = algorithm.steps, None if algorithm.w0 is None else algorithm.w0.double()
    transformer = nets.TransformerConfig(d_in + d_out, n_layers=steps, shared=eta.ndim == 0 and gamma.ndim == 0)
    config = nets.InContextRegressorConfig(transformer, d_out=d_out)
    blank = nets.InContextRegressor(config, torch.Generator(), w0).double()
    sizes = zip((eta / n_context).expand(steps), gamma.expand(steps), strict=True)
    layers = [_products(d_in, d_out, w0, rate, bend) for rate, bend in sizes]
    return Construction(blank.with_products(layers), algorithm)


def _products(d_in: int, d_out: int, w0: Tensor | None, rate: Tensor, gamma: Tensor) -> Products:
    w_kq, w_pv = torch.zeros(2, 1, d_in + d_out, d_in + d_out, dtype=torch.float64)
    w_kq[0, :d_in, :d_in].fill_diagonal_(1.0)
    w_pv[0, :d_in, :d_in].fill_diagonal_(-gamma.item())
    w_pv[0, d_in:, d_in:].fill_diagonal_(-rate.item())
    if w0 is not None:
        w_pv[0, d_in:, :d_in] = (rate - gamma) * w0
    return Products(w_kq, w_pv)
