"""Proposition 3: gradient descent on alternating tokens, which are made concatenated ones first."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mesascope.constructions.pairs import Construction, require_sizes
from mesascope.errors import require_choice
from mesascope.learners import GradientDescent
from mesascope.nets import Alternating, InContextRegressor, InContextRegressorConfig, Products, TransformerConfig
from mesascope.records import register
from mesascope.shapes import Float, Tensor

__all__ = ["copy_tokens"]

# Softmax attention at this difference of scores is exact: exp(-800) is 0 in float64.
_SHARP = 800.0


@register("construction", "copy-tokens", of="learner", exact=True)
def copy_tokens(
    d_in: int, d_out: int, eta: float | Sequence[float], n_context: int, steps: int = 1, attention: str = "linear"
) -> Construction:
    """Proposition 3 followed by Proposition 1: gradient descent from tokens x_1, y_1, x_2, y_2, ..., x_q.

    The first layer has two heads. In the first, the token of x_j attends to the next one by position, writes its target
    y_j into its own last entries and removes its own position: it becomes (x_j, 0, y_j). In the second, the token of
    y_j attends to itself and subtracts itself. On the concatenated tokens and zeros that remain, ``steps`` further
    layers descend. Positions are one-hot and leave the last d_out entries to the targets. The query keeps its position,
    which no later layer reads.

    With ``"softmax"`` the sequence begins with a token of zero data. Without it, no softmax layer can do both: its
    weights sum to 1, so the update of a token is a sum over heads of means of data, with coefficients that add up to
    one matrix for all tokens; tokens of x need this matrix to be the copy, tokens of y minus the identity.

    Source: ICML paper, Proposition 3 and appendix A.5, which leaves the second head as a sketch.
    """
    require_sizes(d_in=d_in, d_out=d_out, n_context=n_context, steps=steps)
    require_choice("attention", attention, ("linear", "softmax"))
    algorithm = GradientDescent(steps, eta)
    layout = Alternating("one-hot", size=2 * n_context + 2 + d_out, start=attention == "softmax")
    width = layout.width(d_in, d_out)
    kinds = (attention, *("linear",) * steps)
    transformer = TransformerConfig(width, n_layers=steps + 1, n_heads=2, key_size=width, attention=kinds)
    config = InContextRegressorConfig(transformer, layout, d_out)
    blank = InContextRegressor(config, torch.Generator()).double()
    copying = _copying(width, max(d_in, d_out), d_out, n_context, attention)
    rates = (algorithm.eta.detach() / n_context).expand(steps)
    layers = [copying, *(_descent(width, d_in, d_out, rate) for rate in rates)]
    return Construction(blank.with_products(layers), algorithm)


def _copying(width: int, data: int, d_out: int, n_context: int, attention: str) -> Products:
    """A head that copies the next token's target, and one that subtracts the tokens of targets."""
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
    if attention == "softmax":  # tokens without a token to attend to attend to the start
        idle = [[0, start, *targets.tolist()], [0, start, *inputs.tolist()]]
        for head, positions in enumerate(idle):
            w_kq[head, data + start, data + torch.tensor(positions)] = 1.0
        w_kq = _SHARP * width**0.5 * w_kq
    return Products(w_kq, w_pv)


def _descent(width: int, d_in: int, d_out: int, rate: Float[Tensor, ""]) -> Products:
    """One step of gradient descent, by the first of two heads."""
    w_kq, w_pv = torch.zeros(2, 2, width, width, dtype=torch.float64)
    w_kq[0, :d_in, :d_in].fill_diagonal_(1.0)
    w_pv[0, -d_out:, -d_out:].fill_diagonal_(-rate.item())
    return Products(w_kq, w_pv)
