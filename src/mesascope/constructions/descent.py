"""Gradient descent and GD++ as weights of linear self-attention."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from mesascope.errors import refuse, require_count
from mesascope.learners import GradientDescent, GradientDescentPlusPlus, KernelGradientDescent
from mesascope.nets import MLP, Embedding, InContextRegressor, Products, Transformer, TransformerConfig
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.streams import stream

__all__ = [
    "Construction",
    "gradient_descent",
    "gradient_descent_plus_plus",
    "kernel_gradient_descent",
    "set_products",
    "with_products",
]


class Construction(NamedTuple):
    """A network and the algorithm that it equals, both learners."""

    network: InContextRegressor
    algorithm: nn.Module


@register("construction", "gradient-descent")
def gradient_descent(
    d_in: int,
    d_out: int,
    eta: float | Sequence[float],
    n_context: int,
    steps: int = 1,
    w0: Float[Tensor, "d_out d_in"] | None = None,
) -> Construction:
    """Proposition 1, stacked: ``steps`` linear self-attention layers that take ``steps`` gradient steps.

    Each layer has W_KQ = diag(I, 0) and W_PV = (eta/N) [[0, 0], [W_0, -I]], so that every token's target moves by minus
    what the step adds to W x: eq. 8 of the ICML paper. One looped layer if ``eta`` is a number, separate ones if it is
    a sequence. Weights are float64, and both learners agree to rounding.

    >>> network, algorithm = gradient_descent(d_in=2, d_out=1, eta=0.5, n_context=2)
    >>> network.products()[0].w_pv[0].tolist()
    [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, -0.25]]
    """
    _check(d_in, d_out, n_context, steps, w0)
    algorithm = GradientDescent(steps, eta, w0)
    return Construction(_network(d_in, d_out, n_context, steps, w0, algorithm.eta, torch.zeros(())), algorithm)


@register("construction", "gradient-descent-plus-plus")
def gradient_descent_plus_plus(
    d_in: int,
    d_out: int,
    eta: float | Sequence[float],
    gamma: float | Sequence[float],
    n_context: int,
    steps: int = 1,
    w0: Float[Tensor, "d_out d_in"] | None = None,
) -> Construction:
    """Appendix A.10, stacked: layers that take a gradient step and a curvature step x <- x - gamma X^T X x at once.

    W_PV = [[-gamma I, 0], [(eta/N - gamma) W_0, -(eta/N) I]]. The term in gamma W_0, which the paper's eq. 23 lacks,
    keeps each token's residual y - W_0 x in step with its moving input; it vanishes for W_0 = 0.
    """
    _check(d_in, d_out, n_context, steps, w0)
    algorithm = GradientDescentPlusPlus(steps, eta, gamma, w0)
    assert algorithm.gamma is not None
    return Construction(_network(d_in, d_out, n_context, steps, w0, algorithm.eta, algorithm.gamma), algorithm)


@register("construction", "kernel-gradient-descent")
def kernel_gradient_descent(
    mlp: MLP, d_out: int, eta: float | Sequence[float], n_context: int, steps: int = 1
) -> Construction:
    """Proposition 2: a residual MLP on the inputs, then layers that descend on the features m(x) = x + MLP(x).

    The MLP is padded with zeros, so that it reads and changes only the inputs' part of a token; the attention layers
    are those of `gradient_descent`. The algorithm descends 1/(2N) sum_i |W m(x_i) - y_i|^2: one layer is a step of
    regression with the kernel m(x) . m(x'), as in eq. 13 of the ICML paper, and each further one a step more. ``mlp``
    maps inputs ``(*batch, rows, d_in)`` to the same shape; it is copied.
    """
    d_in = mlp.w_in.shape[1]
    network = gradient_descent(d_in, d_out, eta, n_context, steps).network
    width = d_in + d_out
    own = copy.deepcopy(mlp).double()
    network.embedding = Embedding(width, width, project=False)
    network.embedding.mlp = _padded(own, d_out)
    return Construction(network, KernelGradientDescent(_Residual(own), steps, eta))


def _padded(mlp: MLP, d_out: int) -> MLP:
    """The MLP on the first entries of tokens with ``d_out`` entries more, which it neither reads nor changes."""
    hidden, d_in = mlp.w_in.shape
    pads = {"w_in": (0, d_out), "w_out": (0, 0, 0, d_out), "b_in": (0, 0), "b_out": (0, d_out)}
    wide = MLP(d_in + d_out, hidden, 1.0, stream(0, "init"), bias=mlp.b_in is not None).to(mlp.w_in.dtype)
    wide.load_state_dict({name: functional.pad(value, pads[name]) for name, value in mlp.state_dict().items()})
    return wide


class _Residual(nn.Module):
    """x + MLP(x)."""

    def __init__(self, mlp: MLP) -> None:
        super().__init__()
        self.mlp = mlp

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(x)


def with_products(network: InContextRegressor, products: Sequence[Products]) -> InContextRegressor:
    """A network of the same architecture whose layers have exactly these W_KQ and W_PV, at full key size.

    W_K = P = I, W_Q = W_KQ and W_V = W_PV. Looped layers take the first.
    """
    old = network.transformer
    config = dataclasses.replace(old.config, key_size=old.config.width)
    new = Transformer(config).to(products[0].w_kq)
    for layer, own in zip(new.layers, products, strict=False):
        set_products(layer.attention, own)  # type: ignore[arg-type]
    return InContextRegressor(new, network.layout, network.d_out, network.w0, network.embedding)


def set_products(attention: nn.Module, products: Products) -> None:
    """Give an attention layer of full key size exactly these: W_K = P = I, W_Q = W_KQ and W_V = W_PV."""
    w_kq, w_pv = products
    identity = torch.eye(w_kq.shape[-1]).to(w_kq).expand_as(w_kq)
    with torch.no_grad():
        for weight, value in (("w_k", identity), ("p", identity), ("w_q", w_kq), ("w_v", w_pv)):
            getattr(attention, weight).copy_(value)


def _network(
    d_in: int, d_out: int, n_context: int, steps: int, w0: Tensor | None, eta: Tensor, gamma: Tensor
) -> InContextRegressor:
    shared = eta.ndim == 0 and gamma.ndim == 0
    config = TransformerConfig(width=d_in + d_out, n_layers=steps, shared=shared)
    w0 = None if w0 is None else w0.double()
    blank = InContextRegressor(Transformer(config).double(), d_out=d_out, w0=w0)
    rates = zip((eta.detach() / n_context).expand(steps), gamma.detach().expand(steps), strict=True)
    return with_products(blank, [_products(d_in, d_out, w0, rate, bend) for rate, bend in rates])


def _products(d_in: int, d_out: int, w0: Tensor | None, rate: Tensor, gamma: Tensor) -> Products:
    width = d_in + d_out
    w_kq = torch.zeros(1, width, width, dtype=torch.float64)
    w_pv = torch.zeros_like(w_kq)
    w_kq[0, :d_in, :d_in].fill_diagonal_(1.0)
    w_pv[0, :d_in, :d_in].fill_diagonal_(-gamma.item())
    w_pv[0, d_in:, d_in:].fill_diagonal_(-rate.item())
    if w0 is not None:
        w_pv[0, d_in:, :d_in] = (rate - gamma) * w0
    return Products(w_kq, w_pv)


def _check(d_in: int, d_out: int, n_context: int, steps: int, w0: Tensor | None) -> None:
    for name, value in (("d_in", d_in), ("d_out", d_out), ("n_context", n_context), ("steps", steps)):
        require_count(name, value)
    if w0 is not None and w0.shape != (d_out, d_in):
        refuse("w0", f"have shape ({d_out}, {d_in})", tuple(w0.shape), "pass initial weights (d_out, d_in)")
