"""Gradient descent by two softmax heads that cancel each other's even terms."""

from __future__ import annotations

import torch

from mesascope.constructions.pairs import Construction, require_sizes
from mesascope.errors import require_number
from mesascope.learners import Centred, GradientDescent
from mesascope.nets import InContextRegressor, InContextRegressorConfig, Products, TransformerConfig
from mesascope.records import register

__all__ = ["softmax_gradient_descent"]


@register("construction", "softmax-gradient-descent", of="learner", exact=False)
def softmax_gradient_descent(d_in: int, d_out: int, eta: float, steps: int = 1, scale: float = 1e-3) -> Construction:
    """Appendix A.9: two softmax heads whose difference takes a gradient step, up to an error of order scale^2.

    Heads with W_KQ = +-scale I on the inputs and W_PV = -+eta / (2 scale) on the targets. With z_i = x_i . x_q,

        softmax_i(s z) - softmax_i(-s z) = (2 s / N) (z_i - mean z) + O(s^3),

    and the prediction is eta/N sum_i y_i (x_i - mean x) . x_q (1 + O(s^2)): gradient descent on *centred* inputs. The
    mean comes from the denominators, which the paper's expansion (eqs. 18 to 21) omits; no scale removes it. Any number
    of pairs is allowed. ``algorithm`` is the limit.

    >>> from mesascope.tasks import Context
    >>> network, algorithm = softmax_gradient_descent(d_in=2, d_out=1, eta=0.5)
    >>> x = torch.eye(2, dtype=torch.float64)
    >>> difference = network(Context(x, x[:, :1]), x) - algorithm(Context(x, x[:, :1]), x)
    >>> bool(difference.abs().max() < 1e-6)
    True
    """
    require_sizes(d_in=d_in, d_out=d_out, steps=steps)
    eta, scale = require_number("eta", eta), require_number("scale", scale, above=0)
    width = d_in + d_out
    transformer = TransformerConfig(width, n_layers=steps, n_heads=2, key_size=width, attention="softmax", shared=True)
    config = InContextRegressorConfig(transformer, d_out=d_out)
    blank = InContextRegressor(config, torch.Generator()).double()
    w_kq, w_pv = torch.zeros(2, 2, width, width, dtype=torch.float64)
    for head, sign in enumerate((1.0, -1.0)):
        w_kq[head, :d_in, :d_in].fill_diagonal_(sign * scale * width**0.5)  # softmax divides by the root of the width
        w_pv[head, d_in:, d_in:].fill_diagonal_(-sign * eta / (2 * scale))
    return Construction(blank.with_products([Products(w_kq, w_pv)]), Centred(GradientDescent(steps, eta)))
