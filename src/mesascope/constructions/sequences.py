"""Causal layers that learn a linear model of a sequence and predict its next element (von Oswald 2024, ch. 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from mesascope import nets
from mesascope.constructions.descent import Construction, initial_weights, require_sizes
from mesascope.errors import require_number
from mesascope.learners import NeumannLeastSquares, OnlineGradientDescent, RecursiveLeastSquares
from mesascope.learners.arguments import Matrix, Sizes
from mesascope.nets import Products
from mesascope.nets.predictor import Channel
from mesascope.records import register
from mesascope.shapes import Float, Tensor


@register("construction", "mesa-gradient-descent", of="predictor", exact=True)
def mesa_gradient_descent(d: int, eta: float, w0: Matrix | None = None) -> Construction:
    """One linear layer on tokens (-W_0 s_t, s_t, s_{t-1}) that takes one gradient step on all pairs up to t.

    W_KQ is I in the block of the key's s_{i-1} and the query's s_t, and W_PV writes -eta (s_i - W_0 s_{i-1}) into the
    first channel. Weights are float64; network and algorithm agree up to rounding.

    Source: von Oswald (2024), eq. 3.5.

    >>> network, algorithm = mesa_gradient_descent(d=1, eta=0.5)
    >>> network.transformer.products()[0].w_pv[0].tolist()
    [[0.0, -0.5, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    """
    require_sizes(d=d)
    w0 = initial_weights(w0, d, d)
    algorithm = OnlineGradientDescent(1, eta, w0)
    rate = algorithm.eta.item()
    step = Products(_blocks(1, 3, d, {(0, 2, 1): 1.0}), _blocks(1, 3, d, _residual(0, 0, 2, rate, w0)))
    return Construction(_linear(d, ("blank", "now", "before"), [step], w0), algorithm)


@register("construction", "online-gradient-descent", of="predictor", exact=True)
def online_gradient_descent(d: int, eta: Sizes, steps: int, w0: Matrix | None = None) -> Construction:
    """Online gradient descent: ``steps`` linear layers of two heads on tokens (-W_0 s_t, s_t, s_t, s_{t-1}).

    The first channel is minus the prediction. Each step changes W by a matrix D. The first head subtracts D s_t from
    the first channel, the second head subtracts D s_{t-1} from the second channel, the target.

    Source: von Oswald (2024), section 3.7.3.2.
    """
    require_sizes(d=d, steps=steps)
    w0 = initial_weights(w0, d, d)
    algorithm = OnlineGradientDescent(steps, eta, w0)
    w_kq = _blocks(2, 4, d, {(0, 3, 2): 1.0, (1, 3, 3): 1.0})
    layers = []
    for rate in algorithm.eta.detach().expand(steps).tolist():
        moves = {**_residual(0, 0, 3, rate, w0), **_residual(1, 1, 3, rate, w0)}
        layers.append(Products(w_kq, _blocks(2, 4, d, moves)))
    return Construction(_linear(d, ("blank", "now", "now", "before"), layers, w0), algorithm)


@register("construction", "neumann-preconditioning", of="predictor", exact=True)
def neumann_preconditioning(d: int, terms: int, bound: float, ridge: float = 1.0) -> Construction:
    """``terms`` linear layers that compute c A_t^{-1} s_t by a Neumann series, and a last layer that predicts.

    A_t = ridge I + sum_i s_{i-1} s_{i-1}^T, and c is the ``bound`` on its eigenvalues. Tokens are
    (0, x_t, s_t, s_{t-1}) with x_t = s_t at first. Attention subtracts (A_t - ridge I) x_t /
    (c - ridge) from x_t, then the MLP adds s_t - ridge/c x_t: x_t <- s_t + (I - A_t/c) x_t in all.
    The MLP is exactly linear, because gelu(z) - gelu(-z) = z. The last layer takes a gradient step
    of size 1/c with x_t as the query in place of s_t.

    Source: von Oswald (2024), eq. 3.57, which omits the MLP terms.
    """
    algorithm = NeumannLeastSquares(terms, bound, ridge)
    bound, ridge = algorithm.bound, algorithm.ridge  # as Python's numbers
    require_sizes(d=d)
    w_kq = _blocks(1, 4, d, {(0, 3, 1): 1.0})
    series = Products(w_kq, _blocks(1, 4, d, {(0, 1, 3): -1 / (bound - ridge)}))
    step = Products(w_kq, _blocks(1, 4, d, {(0, 0, 2): -1 / bound}))
    network = _linear(d, ("blank", "now", "now", "before"), [series] * terms + [step], None, mlp=2)
    addition = _blocks(1, 4, d, {(0, 1, 1): -ridge / bound, (0, 1, 2): 1.0})[0]
    identity = torch.eye(4 * d, dtype=torch.float64)
    with torch.no_grad():
        for index, layer in enumerate(network.transformer.layers):
            move = addition if index < terms else torch.zeros_like(addition)
            layer.mlp.up_proj.weight.copy_(torch.cat([move, -move]))  # type: ignore[union-attr]
            layer.mlp.down_proj.weight.copy_(torch.cat([identity, -identity], 1))  # type: ignore[union-attr]
    return Construction(network, algorithm)


@register("construction", "mesa-least-squares", of="predictor", exact=True)
def mesa_least_squares(d: int, ridge: float) -> Construction:
    """One mesa layer on tokens (0, s_t, s_{t-1}): at every t, ridge regression of s_i on s_{i-1} for i <= t.

    Keys are s_{t-1}, values and queries s_t, and the output is written into the first channel with a minus sign.

    Source: von Oswald (2024), section 3.4.
    """
    require_sizes(d=d)
    ridge = require_number("ridge", ridge, above=0)
    heads = nets.AttentionConfig(3 * d, 1, key_size=d, normalise=False, ridge=ridge, ridge_floor=ridge / 2)
    transformer = nets.CausalTransformerConfig(heads, attention="mesa")
    config = nets.SequencePredictorConfig(transformer, d, ("blank", "now", "before"))
    network = nets.SequencePredictor(config, torch.Generator()).double()
    attention = network.transformer.layers[0].attention
    assert isinstance(attention, nets.MesaAttention)
    with torch.no_grad():
        for weight, channel in ((attention.w_k, 2), (attention.w_q, 1), (attention.w_v, 1)):
            weight.zero_()
            weight[0, :, channel * d : (channel + 1) * d].fill_diagonal_(1.0)
        attention.p.zero_()
        attention.p[0, :d].fill_diagonal_(-1.0)
        attention.ridge = ridge
    return Construction(network, RecursiveLeastSquares(ridge))


def _linear(
    d: int, channels: tuple[Channel, ...], layers: Sequence[Products], w0: Tensor | None, mlp: int | None = None
) -> nets.SequencePredictor:
    """A network of linear layers with the given products."""
    heads, width, _ = layers[0].w_kq.shape
    attention = nets.AttentionConfig(width, heads, key_size=width)
    transformer = nets.CausalTransformerConfig(attention, len(layers), mlp=mlp)
    network = nets.SequencePredictor(nets.SequencePredictorConfig(transformer, d, channels), torch.Generator(), w0)
    network = network.double()
    for layer, products in zip(network.transformer.layers, layers, strict=True):
        nets.set_products(layer.attention, products)  # type: ignore[arg-type]
    return network


def _blocks(
    heads: int, channels: int, d: int, entries: Mapping[tuple[int, int, int], float | Tensor]
) -> Float[Tensor, "heads width width"]:
    """Matrices of d x d blocks that are zero except at ``entries``; a number at (head, row, column) multiplies I."""
    blocks = torch.zeros(heads, channels, channels, d, d, dtype=torch.float64)
    for place, value in entries.items():
        blocks[place] = value if isinstance(value, Tensor) else value * torch.eye(d, dtype=torch.float64)
    return blocks.transpose(2, 3).reshape(heads, channels * d, channels * d)


def _residual(
    head: int, row: int, before: int, rate: float, w0: Tensor | None
) -> dict[tuple[int, int, int], float | Tensor]:
    """Blocks that write -rate (target - W_0 before) into channel ``row``; the target is channel 1."""
    start = {} if w0 is None else {(head, row, before): rate * w0.double()}
    return {(head, row, 1): -rate, **start}
