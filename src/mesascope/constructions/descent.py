"""Weights for gradient descent and GD++, which also transforms inputs (von Oswald et al. 2023)."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, NamedTuple

import torch
from torch import nn

from mesascope import nets
from mesascope.errors import require_choice, require_count, require_instance, require_number
from mesascope.learners import Centred, GradientDescent, GradientDescentPlusPlus, KernelGradientDescent
from mesascope.learners.arguments import Matrix, Sizes, tensor_of
from mesascope.nets import Products, TokenMLP
from mesascope.records import register
from mesascope.shapes import Tensor

# Score difference at which softmax attention selects one token exactly: exp(-800) is 0 in float64.
_SHARP = 800.0


class Construction(NamedTuple):
    """A network and the algorithm that it implements: both learners, or both predictors.

    The network is an `InContextRegressor` or a `SequencePredictor`.
    """

    network: Any
    algorithm: nn.Module


def require_sizes(**sizes: int) -> None:
    for name, value in sizes.items():
        require_count(name, value)


def initial_weights(w0: Matrix | None, d_out: int, d_in: int) -> Tensor | None:
    """``w0`` as a tensor ``(d_out, d_in)``."""
    return None if w0 is None else tensor_of("w0", w0, "dy dx", (d_out, d_in))


@register("construction", "gradient-descent", of="learner", exact=True)
def gradient_descent(
    d_in: int, d_out: int, eta: Sizes, n_context: int, steps: int = 1, w0: Matrix | None = None
) -> Construction:
    """Proposition 1, stacked: ``steps`` linear self-attention layers that take ``steps`` gradient steps.

    Each layer has W_KQ = diag(I, 0) and W_PV = (eta/N) [[0, 0], [W_0, -I]]: it subtracts the change in W x from every
    token's target (eq. 8). If ``eta`` is a number, one layer is looped; if it is a sequence, layers are separate.
    Weights are float64. Network and algorithm agree up to rounding on contexts of N = ``n_context`` pairs.

    >>> network, algorithm = gradient_descent(d_in=2, d_out=1, eta=0.5, n_context=2)
    >>> network.products()[0].w_pv[0].tolist()
    [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, -0.25]]
    """
    require_sizes(d_in=d_in, d_out=d_out, n_context=n_context, steps=steps)
    return _construction(d_in, d_out, n_context, GradientDescent(steps, eta, initial_weights(w0, d_out, d_in)))


@register("construction", "gradient-descent-plus-plus", of="learner", exact=True)
def gradient_descent_plus_plus(
    d_in: int, d_out: int, eta: Sizes, gamma: Sizes, n_context: int, steps: int = 1, w0: Matrix | None = None
) -> Construction:
    """GD++ (appendix A.10), stacked: each layer takes a gradient step and a curvature step x <- x - gamma X^T X x.

    W_PV = [[-gamma I, 0], [(eta/N - gamma) W_0, -(eta/N) I]]. Eq. 23 omits the term in gamma W_0, without which the
    curvature step would change residuals y - W_0 x. It vanishes for W_0 = 0.
    """
    require_sizes(d_in=d_in, d_out=d_out, n_context=n_context, steps=steps)
    w0 = initial_weights(w0, d_out, d_in)
    return _construction(d_in, d_out, n_context, GradientDescentPlusPlus(steps, eta, gamma, w0))


@register("construction", "kernel-gradient-descent", of="learner", exact=True)
def kernel_gradient_descent(mlp: TokenMLP, d_out: int, eta: Sizes, n_context: int, steps: int = 1) -> Construction:
    """Proposition 2: a residual MLP on the inputs, then layers that descend on the features m(x) = x + MLP(x).

    The MLP is padded by zeros: it reads and changes only the input part of a token. The attention layers are those of
    `gradient_descent`. The algorithm descends on 1/(2N) sum_i |W m(x_i) - y_i|^2, which is regression with the kernel
    m(x) . m(x') of eq. 13. ``mlp`` maps inputs ``(*batch, rows, d_in)`` to the same shape; it is copied.
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


@register("construction", "copy-tokens", of="learner", exact=True)
def copy_tokens(
    d_in: int, d_out: int, eta: Sizes, n_context: int, steps: int = 1, attention: str = "linear"
) -> Construction:
    """Proposition 3 followed by Proposition 1: gradient descent from tokens x_1, y_1, x_2, y_2, ..., x_q.

    The first layer has two heads. In the first, the token of x_j attends to the next position, copies y_j into its own
    last entries and removes its own position: it becomes (x_j, 0, y_j). In the second, the token of y_j attends to
    itself and subtracts itself: it becomes 0. On these tokens, ``steps`` further layers take gradient steps. Positions
    are one-hot; the last d_out entries are reserved for targets. The query keeps its position, which no later layer
    reads. The update is divided by ``n_context``, so that the network equals its algorithm only with so many pairs.

    With ``"softmax"``, a token of zero data comes first. Without it, one layer could not copy and
    erase: softmax weights sum to 1, so if all tokens had equal data, all would change by the sum of
    the heads' W_PV times the data. Tokens of x need a copy of y, tokens of y minus themselves.

    Source: von Oswald et al. (2023), Proposition 3 and appendix A.5, which only sketches the second head.
    """
    require_sizes(d_in=d_in, d_out=d_out, n_context=n_context, steps=steps)
    require_choice("attention", attention, ("linear", "softmax"))
    algorithm = GradientDescent(steps, eta)
    layout = nets.Alternating("one-hot", size=2 * n_context + 2 + d_out, start=attention == "softmax")
    width = layout.width(d_in, d_out)
    kinds = (attention, *("linear",) * steps)
    transformer = nets.TransformerConfig(width, n_layers=steps + 1, n_heads=2, key_size=width, attention=kinds)
    config = nets.InContextRegressorConfig(transformer, layout, d_out)
    blank = nets.InContextRegressor(config, torch.Generator()).double()
    copying = _copying(width, max(d_in, d_out), d_out, n_context, attention)
    rates = (algorithm.eta.detach() / n_context).expand(steps)
    layers = [copying, *(_products(d_in, d_out, rate, width=width, heads=2) for rate in rates)]
    return Construction(blank.with_products(layers), algorithm)


@register("construction", "softmax-gradient-descent", of="learner", exact=False)
def softmax_gradient_descent(d_in: int, d_out: int, eta: float, steps: int = 1, scale: float = 1e-3) -> Construction:
    """Appendix A.9: two softmax heads whose difference is a gradient step, up to an error of order scale^2.

    Heads have W_KQ = +-s I on the inputs and W_PV = -+eta / (2 s) on the targets, s = ``scale``. With z_i = x_i . x_q,

        softmax_i(s z) - softmax_i(-s z) = (2 s / N) (z_i - mean z) + O(s^3),

    and the prediction is eta/N sum_i y_i (x_i - mean x) . x_q (1 + O(s^2)): gradient descent on *centred* inputs. The
    mean comes from the softmax denominators, which the expansion in eqs. 18 to 21 omits; it remains at any scale. Any
    number of pairs is allowed. ``algorithm`` is the limit scale -> 0. Rounding adds an error of about 1e-16 / scale, so
    scales below 1e-6 are refused.

    >>> from mesascope.tasks import Context
    >>> network, algorithm = softmax_gradient_descent(d_in=2, d_out=1, eta=0.5)
    >>> x = torch.eye(2, dtype=torch.float64)
    >>> difference = network(Context(x, x[:, :1]), x) - algorithm(Context(x, x[:, :1]), x)
    >>> bool(difference.abs().max() < 1e-6)
    True
    """
    require_sizes(d_in=d_in, d_out=d_out, steps=steps)
    eta, scale = require_number("eta", eta), require_number("scale", scale, least=1e-6)
    width = d_in + d_out
    transformer = nets.TransformerConfig(
        width, n_layers=steps, n_heads=2, key_size=width, attention="softmax", shared=True
    )
    config = nets.InContextRegressorConfig(transformer, d_out=d_out)
    blank = nets.InContextRegressor(config, torch.Generator()).double()
    w_kq, w_pv = torch.zeros(2, 2, width, width, dtype=torch.float64)
    for head, sign in enumerate((1.0, -1.0)):
        w_kq[head, :d_in, :d_in].fill_diagonal_(sign * scale * width**0.5)  # attention divides scores by sqrt(width)
        w_pv[head, d_in:, d_in:].fill_diagonal_(-sign * eta / (2 * scale))
    return Construction(blank.with_products([Products(w_kq, w_pv)]), Centred(GradientDescent(steps, eta)))


def _construction(d_in: int, d_out: int, n_context: int, algorithm: GradientDescentPlusPlus) -> Construction:
    eta, gamma = algorithm.eta.detach(), torch.zeros(()) if algorithm.gamma is None else algorithm.gamma.detach()
    steps, w0 = algorithm.steps, None if algorithm.w0 is None else algorithm.w0.double()
    transformer = nets.TransformerConfig(d_in + d_out, n_layers=steps, shared=eta.ndim == 0 and gamma.ndim == 0)
    config = nets.InContextRegressorConfig(transformer, d_out=d_out)
    blank = nets.InContextRegressor(config, torch.Generator(), w0).double()
    sizes = zip((eta / n_context).expand(steps), gamma.expand(steps), strict=True)
    layers = [_products(d_in, d_out, rate, bend, w0) for rate, bend in sizes]
    return Construction(blank.with_products(layers), algorithm)


def _products(
    d_in: int, d_out: int, rate: Tensor, gamma: Any = 0.0, w0: Tensor | None = None, width: int = 0, heads: int = 1
) -> Products:
    """W_KQ and W_PV of a step in the first head (other heads are 0); tokens begin with inputs and end with targets."""
    width = width or d_in + d_out
    w_kq, w_pv = torch.zeros(2, heads, width, width, dtype=torch.float64)
    w_kq[0, :d_in, :d_in].fill_diagonal_(1.0)
    w_pv[0, :d_in, :d_in].fill_diagonal_(-float(gamma))
    w_pv[0, -d_out:, -d_out:].fill_diagonal_(-rate.item())
    if w0 is not None:
        w_pv[0, -d_out:, :d_in] = (rate - gamma) * w0
    return Products(w_kq, w_pv)


def _pad(wide: TokenMLP, mlp: TokenMLP) -> None:
    """Copy the weights of ``mlp`` into ``wide``, which then reads and changes only the first entries of tokens."""
    with torch.no_grad():
        for weight in wide.parameters():
            weight.zero_()
        for name, weight in mlp.named_parameters():
            wide.get_parameter(name)[tuple(slice(size) for size in weight.shape)] = weight


class _Residual(nn.Module):
    def __init__(self, mlp: TokenMLP) -> None:
        super().__init__()
        self.mlp = mlp

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(x)


def _copying(width: int, data: int, d_out: int, n_context: int, attention: str) -> Products:
    """One head that copies the next token's target, and one that sets the target tokens to zero."""
    w_kq, w_pv = torch.zeros(2, 2, width, width, dtype=torch.float64)
    start = 2 * n_context + 1
    targets = torch.arange(1, start, 2)  # positions of y_N, ..., y_1, counted back from the query
    inputs = targets + 1
    w_kq[0, data + targets, data + inputs] = 1.0
    w_kq[1, data + targets, data + targets] = 1.0
    w_pv[0, -d_out:, data - d_out : data] = torch.eye(d_out, dtype=torch.float64)
    w_pv[0, data + inputs, data + targets] = -1.0
    w_pv[1, :data, :data].fill_diagonal_(-1.0)
    w_pv[1, data + targets, data + targets] = -1.0
    if attention == "softmax":  # all other tokens attend to the start token
        idle = [[0, start, *targets.tolist()], [0, start, *inputs.tolist()]]
        for head, positions in enumerate(idle):
            w_kq[head, data + start, data + torch.tensor(positions)] = 1.0
        w_kq = _SHARP * width**0.5 * w_kq
    return Products(w_kq, w_pv)
