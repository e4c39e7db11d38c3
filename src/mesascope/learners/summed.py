"""Descent on the sum of a context's losses, where others take their mean."""

from __future__ import annotations

import torch
from torch import nn

from mesascope.errors import require_count, require_instance
from mesascope.learners.descent import GradientDescentPlusPlus
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Context

__all__ = ["Summed"]


@register("learner", "summed", free={})
class Summed(nn.Module):
    """``learner`` with steps that are not divided by the number of pairs: eta on a context of ``pairs`` pairs.

    A layer of linear attention sums over its tokens: one that was trained on contexts of N pairs takes larger steps on
    longer contexts and smaller ones on shorter. Equal to ``learner`` on contexts of ``pairs`` pairs.

    >>> x, y = torch.ones(2, 1), torch.ones(2, 1)
    >>> from mesascope.learners import GradientDescent
    >>> Summed(GradientDescent(1, 0.5), pairs=4)(Context(x, y), x[:1]).item()
    0.25
    """

    def __init__(self, learner: GradientDescentPlusPlus, pairs: int) -> None:
        super().__init__()
        require_instance("learner", learner, GradientDescentPlusPlus, "pass one that descends")
        pairs = require_count("pairs", pairs)
        self.learner, self.pairs = learner, pairs

    def forward(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        eta = self.learner.eta * (context.x.shape[-2] / self.pairs)
        return torch.func.functional_call(self.learner, {"eta": eta}, (context, xq))

    def extra_repr(self) -> str:
        return f"pairs={self.pairs}"
