"""Bayesian learners whose posterior is exact."""

from __future__ import annotations

import torch

from mesascope.errors import refuse, require_number
from mesascope.learners.arguments import Algorithm, Range, Rows, tensor_of
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Context, check_inputs

__all__ = ["BayesPool"]


@register("learner", "bayes-pool", free={"noise": Range(0.01, 10.0, "log")})
class BayesPool(Algorithm):
    """The posterior mean for a teacher from a known pool, all equally likely, and labels with Gaussian noise.

    Predicts sum_k p_k W_k x_q with p_k proportional to exp(-sum_i |y_i - W_k x_i|^2 / (2 noise^2)): the optimal learner
    of a finite set of tasks.

    Args:
        weights: the pool ``(pool, dy, dx)``.
        noise: standard deviation of the labels.

    Source: Raventos et al., Pretraining task diversity and the emergence of non-Bayesian in-context learning (2023).

    >>> pool = torch.tensor([[[1.0]], [[-1.0]]])
    >>> learner, x = BayesPool(pool, noise=1.0), torch.ones(1, 1)
    >>> learner(Context(x, x), x), torch.tanh(torch.tensor(1.0))
    (tensor([[0.7616]]), tensor(0.7616))
    """

    weights: Tensor

    def __init__(self, weights: Float[Tensor, "pool dy dx"] | Rows, noise: float) -> None:
        super().__init__()
        self.noise = require_number("noise", noise, above=0)
        self.register_buffer("weights", tensor_of("weights", weights, "pool dy dx"))

    def forward(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        check_inputs(context, xq)
        (x, y), pool = context, self.weights.to(xq)
        if pool.shape[1:] != (y.shape[-1], x.shape[-1]):
            refuse("context", f"have widths (dy, dx) = {tuple(pool.shape[1:])}", (y.shape[-1], x.shape[-1]), "match it")
        # sum_i |y_i - W x_i|^2 without sum_i |y_i|^2, which all teachers share
        fit = torch.einsum("...nd,...ne,ked->...k", x, y, pool)
        energy = torch.einsum("...dc,ked,kec->...k", x.mT @ x, pool, pool)
        posterior = torch.softmax((2 * fit - energy) / (2 * self.noise**2), dim=-1)
        return xq @ torch.einsum("...k,ked->...de", posterior, pool)
