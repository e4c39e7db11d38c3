"""Tokens to features: an embedding with a residual MLP, and descent on what it gives."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from mesascope.errors import require_count, require_number
from mesascope.learners import GradientDescent
from mesascope.nets.tokens import LAYOUTS
from mesascope.nets.transformer import MLP, initial_weights
from mesascope.shapes import Float, Tensor
from mesascope.streams import stream
from mesascope.tasks import Context, check_inputs

__all__ = ["EmbeddedDescent", "Embedding"]


class Embedding(nn.Module):
    """Tokens through a linear map without bias, then through a residual GELU MLP: e <- W e, e <- e + MLP(e).

    The MLP has biases: without them every feature would vanish at the origin.

    Args:
        d_token: width of the tokens.
        width: width of what they become; ``d_token`` with ``project=False``.
        mlp: hidden width of the MLP as a multiple of ``width``.
        init_scale: initial weights are normal with variance init_scale / fan-in, cut at two deviations.
        generator: of the initial weights; the stream ``init`` of seed 0 if None.
        project: False leaves out the linear map.

    Source: ICML paper, appendix A.7.
    """

    def __init__(
        self,
        d_token: int,
        width: int,
        mlp: int = 4,
        init_scale: float = 1.0,
        generator: torch.Generator | None = None,
        *,
        project: bool = True,
    ) -> None:
        super().__init__()
        for name, value in (("d_token", d_token), ("width", width), ("mlp", mlp)):
            require_count(name, value)
        require_number("init_scale", init_scale, above=0)
        generator = generator or stream(0, "init")
        self.w_in = initial_weights((width, d_token), init_scale / d_token, generator) if project else None
        self.mlp = MLP(width, mlp * width, init_scale, generator, bias=True)

    def forward(self, tokens: Float[Tensor, "*batch rows d_token"]) -> Float[Tensor, "*batch rows width"]:
        embedded = tokens if self.w_in is None else tokens @ self.w_in.mT
        return embedded + self.mlp(embedded)


class EmbeddedDescent(nn.Module):
    """Gradient descent on embedded tokens: what a net computes that descends behind the same embedding.

    Tokens (x, y), and (x_q, 0) for queries, become (h, t), with t the last ``d_out`` entries. From W = 0, ``steps``
    steps descend 1/(2n) sum_i |W h_i - t_i|^2; the prediction is W h_q - t_q.

    Source: ICML paper, section 3 (sine waves) and appendix A.7.
    """

    def __init__(self, embedding: Embedding, steps: int, eta: float | Sequence[float], d_out: int = 1) -> None:
        super().__init__()
        require_count("d_out", d_out)
        self.embedding, self.descent, self.d_out = embedding, GradientDescent(steps, eta), d_out

    def forward(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        return self.trajectory(context, xq)[-1]

    def trajectory(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "k *batch m dy"]:
        """Predictions after 0, 1, ..., ``steps`` steps."""
        check_inputs(context, xq)
        tokens, query = (self.embedding(part) for part in LAYOUTS["concatenated"](context, xq))
        (h, t), (hq, tq) = (part.tensor_split((-self.d_out,), dim=-1) for part in (tokens, query))
        return self.descent.trajectory(Context(h, t), hq) - tq
