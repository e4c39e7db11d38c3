"""A transformer as a learner: context and queries to tokens, tokens to predictions."""

from __future__ import annotations

import torch
from torch import nn

from mesascope.errors import refuse, require_choice, require_count
from mesascope.nets.embedding import Embedding
from mesascope.nets.tokens import LAYOUTS, Layout
from mesascope.nets.transformer import Products, Tokens, Transformer
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Context, check_inputs

__all__ = ["InContextRegressor"]


class InContextRegressor(nn.Module):
    """A transformer that regresses in context: ``learner(context, xq)`` gives ``(*batch, m, d_out)``.

    The prediction is W_0 x - y, read from the final query token (x, y); with W_0 = 0 it is minus the token's last
    entries, as in section 2 of the ICML paper.

    Args:
        transformer: over tokens of the layout's width, or the embedding's.
        layout: how pairs become tokens: a name in `LAYOUTS`, or a layout of `mesascope.nets.tokens`.
        d_out: width of a target.
        w0: read-out of the inputs ``(d_out, d_in)``, the initial weights of the learner that a construction runs.
        embedding: what tokens pass through before the transformer.

    >>> from mesascope.nets import TransformerConfig
    >>> learner = InContextRegressor(Transformer(TransformerConfig(width=4)))
    >>> learner(Context(torch.ones(2, 5, 3), torch.ones(2, 5, 1)), torch.ones(2, 1, 3)).shape
    torch.Size([2, 1, 1])
    """

    w0: Tensor | None

    def __init__(
        self,
        transformer: Transformer,
        layout: str | Layout = "concatenated",
        d_out: int = 1,
        w0: Float[Tensor, "d_out d_in"] | None = None,
        embedding: Embedding | None = None,
    ) -> None:
        super().__init__()
        if isinstance(layout, str):
            require_choice("layout", layout, LAYOUTS)
            layout = LAYOUTS[layout]
        require_count("d_out", d_out)
        d_in = transformer.config.width - d_out
        if w0 is not None and w0.shape != (d_out, d_in):
            refuse("w0", f"have shape ({d_out}, {d_in})", tuple(w0.shape), "match it to (d_out, d_in)")
        self.transformer = transformer
        self.layout = layout
        self.embedding = embedding
        self.d_out = d_out
        self.register_buffer("w0", w0)

    def forward(self, context: Context, xq: Float[Tensor, "*batch m d_in"]) -> Float[Tensor, "*batch m d_out"]:
        return self._read(self.transformer(*self._tokens(context, xq)))

    def trajectory(self, context: Context, xq: Float[Tensor, "*batch m d_in"]) -> Float[Tensor, "k *batch m d_out"]:
        """Predictions read before the first layer and after each layer, ``(n_layers + 1, *batch, m, d_out)``."""
        start, query = self._tokens(context, xq)
        return torch.stack([self._read(tokens) for tokens in (query, *self.transformer.query_tokens(start, query))])

    def tokens(self, context: Context, xq: Tensor) -> list[Tokens]:
        """Tokens before the first layer and after each."""
        return self.transformer.tokens(*self._tokens(context, xq))

    def products(self) -> list[Products]:
        """W_KQ and W_PV of each layer, each ``(heads, width, width)``."""
        return self.transformer.products()

    def repeated(self, steps: int, damping: float = 1.0) -> InContextRegressor:
        """The learner whose one layer is applied ``steps`` times, what it adds multiplied by ``damping``."""
        looped = self.transformer.repeated(steps, damping)
        return InContextRegressor(looped, self.layout, self.d_out, self.w0, self.embedding)

    def _tokens(self, context: Context, xq: Tensor) -> tuple[Tensor, Tensor]:
        check_inputs(context, xq)
        if context.y.shape[-1] != self.d_out:
            refuse("context.y", f"have width {self.d_out}", context.y.shape[-1], "build the net with this d_out")
        tokens, query = self.layout(context, xq)
        if self.embedding is not None:
            return self.embedding(tokens), self.embedding(query)
        if tokens.shape[-1] != self.transformer.config.width:
            refuse(
                "context",
                f"give tokens of the transformer's width {self.transformer.config.width}",
                tokens.shape[-1],
                "set TransformerConfig.width to the layout's width(d_in, d_out)",
            )
        return tokens, query

    def _read(self, tokens: Tensor) -> Tensor:
        x, y = tokens[..., : -self.d_out], tokens[..., -self.d_out :]
        return -y if self.w0 is None else x @ self.w0.mT - y
