"""A transformer as a learner: context and queries become tokens, and predictions are read from query tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from mesascope.errors import refuse, require_instance
from mesascope.nets.checks import check_context, check_start, check_width
from mesascope.nets.embedding import Embedding, EmbeddingConfig
from mesascope.nets.layers import Products
from mesascope.nets.points import HookedModule
from mesascope.nets.pretrained import Pretrained
from mesascope.nets.tokens import Concatenated, Layout
from mesascope.nets.transformer import Tokens, Transformer, TransformerConfig
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Context
from mesascope.validate import Count


@register("net", "in-context-regressor", of="learner")
@dataclass(frozen=True)
class InContextRegressorConfig:
    """Config of an `InContextRegressor`.

    Args:
        transformer: config of the transformer; its width is that of the layout's tokens, or of the embedding.
        layout: layout of pairs as tokens.
        d_out: width of a target.
        embedding: config of an embedding before the transformer; no embedding if None.
    """

    transformer: TransformerConfig
    layout: Layout = field(default_factory=Concatenated)
    d_out: Count = 1
    embedding: EmbeddingConfig | None = None

    def __post_init__(self) -> None:
        require_instance("layout", self.layout, Layout)
        if self.embedding is None:
            return
        width = self.transformer.width
        if self.embedding.width != width:
            refuse("embedding", f"have the transformer's width {width}", self.embedding.width, "pass the same width")

    def build(self, generator: torch.Generator | None = None) -> InContextRegressor:
        return InContextRegressor(self, generator)


class InContextRegressor(HookedModule, Pretrained):
    """A transformer for in-context regression: ``learner(context, xq)`` returns ``(*batch, m, d_out)``.

    The prediction is W_0 x - y, with (x, y) the query token after the last layer. With W_0 = 0 it is minus the last
    entries, as in section 2 of von Oswald et al. (ICML 2023).

    Args:
        w0: read-out W_0 ``(d_out, width - d_out)``: initial weights of a construction's algorithm; zero if None.

    >>> learner = InContextRegressorConfig(TransformerConfig(width=4)).build()
    >>> learner(Context(torch.ones(2, 5, 3), torch.ones(2, 5, 1)), torch.ones(2, 1, 3)).shape
    torch.Size([2, 1, 1])
    """

    w0: Tensor | None

    def __init__(
        self,
        config: InContextRegressorConfig,
        generator: torch.Generator | None = None,
        w0: Float[Tensor, "d_out d_in"] | None = None,
    ) -> None:
        super().__init__(config, InContextRegressorConfig)
        d_in = config.transformer.width - config.d_out
        check_start(w0, (config.d_out, d_in), "(dy, dx)")
        embedding = None if config.embedding is None else Embedding(config.embedding, generator)
        self.transformer, self.embedding = Transformer(config.transformer, generator), embedding
        self.register_buffer("w0", None if w0 is None else w0.clone())

    @property
    def d_out(self) -> int:
        """Width of a target; targets are the last entries of tokens."""
        return self.config.d_out

    @property
    def linear(self) -> bool:
        """True for linear attention without MLPs and LayerNorm."""
        return self.config.transformer.linear

    @property
    def token_clip(self) -> float | None:
        """Largest absolute value of token entries after each layer; None without clipping."""
        return self.config.transformer.token_clip

    @property
    def damping(self) -> float:
        """Factor on the change of a token in each layer."""
        return self.config.transformer.damping

    def forward(self, context: Context, xq: Float[Tensor, "*batch m d_in"]) -> Float[Tensor, "*batch m d_out"]:
        return self._read(self.transformer(*self._tokens(context, xq)))

    def trajectory(self, context: Context, xq: Float[Tensor, "*batch m d_in"]) -> Float[Tensor, "k *batch m d_out"]:
        """Predictions read before the first layer and after each layer, ``(n_layers + 1, *batch, m, d_out)``."""
        start, query = self._tokens(context, xq)
        return torch.stack([self._read(tokens) for tokens in (query, *self.transformer.query_tokens(start, query))])

    def tokens(self, context: Context, xq: Tensor) -> list[Tokens]:
        """Tokens before the first layer and after each layer."""
        return self.tokens_from(Tokens(*self._tokens(context, xq)))

    def tokens_from(self, start: Tokens) -> list[Tokens]:
        """Tokens before the first layer, which are ``start``, and after each layer."""
        return self.transformer.tokens(*start)

    def products(self) -> list[Products]:
        """W_KQ and W_PV of each layer, each ``(heads, width, width)``."""
        return self.transformer.products()

    def with_products(self, products: Sequence[Products]) -> InContextRegressor:
        """A network of this architecture whose layers have exactly these products; see `Transformer.with_products`."""
        return self._around(self.transformer.with_products(products))

    def repeated(self, steps: int, damping: float = 1.0) -> InContextRegressor:
        """The learner with its one layer applied ``steps`` times, and each change multiplied by ``damping``."""
        return self._around(self.transformer.repeated(steps, damping))

    def _around(self, transformer: Transformer) -> InContextRegressor:
        """This network with another transformer; all other parts are shared."""
        config = dataclasses.replace(self.config, transformer=transformer.config)
        other = InContextRegressor(config, torch.Generator(), self.w0)
        other.transformer, other.embedding = transformer, self.embedding
        return other

    def _tokens(self, context: Context, xq: Tensor) -> tuple[Tensor, Tensor]:
        check_context(context, xq, self.d_out, next(self.parameters()))
        tokens, query = self.config.layout(context, xq)
        if self.embedding is None:
            check_width(tokens, "transformer", self.transformer.config.width, "TransformerConfig.width")
            return tokens, query
        check_width(tokens, "embedding", self.embedding.config.d_token, "EmbeddingConfig.d_token")
        return self.embedding(tokens), self.embedding(query)

    def _read(self, tokens: Tensor) -> Tensor:
        x, y = tokens[..., : -self.d_out], tokens[..., -self.d_out :]
        return -y if self.w0 is None else x @ self.w0.to(x).mT - y
