"""An embedding with a residual MLP, and gradient descent on its features."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mesascope.errors import refuse
from mesascope.learners import GradientDescent
from mesascope.nets.checks import check_context, check_tokens, check_width
from mesascope.nets.layers import TokenMLP, initial_weights
from mesascope.nets.pretrained import Pretrained
from mesascope.nets.tokens import Concatenated
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Context
from mesascope.validate import Count, Positive, Whole, frozen


@frozen
class EmbeddingConfig:
    """Config of an `Embedding`.

    Args:
        d_token: width of the tokens.
        width: width of the features; must be ``d_token`` with ``project=False``.
        mlp: hidden width of the MLP as a multiple of ``width``.
        init_scale: initial weights are normal with variance init_scale / fan-in, truncated at two standard deviations.
        project: False leaves out the linear map.
    """

    d_token: Count
    width: Count
    mlp: Count = 4
    init_scale: Positive = 1.0
    project: bool = True

    def __post_init__(self) -> None:
        if not self.project and self.width != self.d_token:
            refuse("width", f"be d_token = {self.d_token} without a linear map", self.width, "pass project=True")

    def build(self, generator: torch.Generator | None = None) -> Embedding:
        return Embedding(self, generator)


class Embedding(Pretrained):
    """A bias-free linear map of tokens, then a residual GELU MLP: e <- W e, e <- e + MLP(e).

    The MLP has biases: without them every feature would be 0 at the origin.

    Source: von Oswald et al. (ICML 2023), appendix A.7.
    """

    built_from = EmbeddingConfig

    def __init__(self, config: EmbeddingConfig, generator: torch.Generator | None = None) -> None:
        super().__init__(config, EmbeddingConfig)
        width, scale = config.width, config.init_scale
        shape = (width, config.d_token)
        self.w_in = initial_weights(shape, scale / config.d_token, generator) if config.project else None
        self.mlp = TokenMLP(width, config.mlp * width, scale, generator, bias=True)

    def forward(self, tokens: Float[Tensor, "*batch rows d_token"]) -> Float[Tensor, "*batch rows width"]:
        check_tokens("tokens", tokens, self.config.d_token, self.mlp.up_proj.weight, "EmbeddingConfig.d_token")
        embedded = tokens if self.w_in is None else tokens @ self.w_in.mT
        return embedded + self.mlp(embedded)


@register("net", "embedded-descent", of="learner")
@dataclass(frozen=True)
class EmbeddedDescentConfig:
    """Config of an `EmbeddedDescent`.

    Args:
        embedding: config of the embedding of tokens (x, y).
        steps: number of gradient steps.
        eta: initial step size, one number or one for each step; it is learned.
        d_out: width of a target.
    """

    embedding: EmbeddingConfig
    steps: Whole = 1
    eta: float | tuple[float, ...] = 0.1
    d_out: Count = 1

    def build(self, generator: torch.Generator | None = None) -> EmbeddedDescent:
        return EmbeddedDescent(self, generator)


class EmbeddedDescent(Pretrained):
    """Gradient descent on embedded tokens, for comparison with a transformer that has the same embedding.

    Tokens (x, y), and (x_q, 0) for queries, are embedded as (h, t), with t the last ``d_out`` entries. From W = 0,
    ``steps`` gradient steps are taken on 1/(2n) sum_i |W h_i - t_i|^2. The prediction is W h_q - t_q.

    Source: von Oswald et al. (ICML 2023), section 3 (sine waves) and appendix A.7.
    """

    def __init__(self, config: EmbeddedDescentConfig, generator: torch.Generator | None = None) -> None:
        super().__init__(config, EmbeddedDescentConfig)
        self.embedding = Embedding(config.embedding, generator)
        self.descent = GradientDescent(config.steps, config.eta)

    def forward(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        return self.trajectory(context, xq)[-1]

    def trajectory(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "k *batch m dy"]:
        """Predictions after 0, 1, ..., ``steps`` steps."""
        check_context(context, xq, self.config.d_out, next(self.parameters()))
        tokens, query = Concatenated()(context, xq)
        check_width(tokens, "embedding", self.config.embedding.d_token, "EmbeddingConfig.d_token")
        embedded = (self.embedding(part) for part in (tokens, query))
        (h, t), (hq, tq) = (part.tensor_split((-self.config.d_out,), dim=-1) for part in embedded)
        return self.descent.trajectory(Context(h, t), hq) - tq
