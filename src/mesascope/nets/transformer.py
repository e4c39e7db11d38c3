"""The transformer of the in-context regression studies."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from mesascope.errors import refuse, require_choice, require_count, require_number
from mesascope.nets.gram import LinearLayer, rows_times, run_linear_layers
from mesascope.ops import linear_attention, softmax_attention
from mesascope.shapes import Float, Tensor
from mesascope.streams import stream

__all__ = ["ATTENTIONS", "MLP", "Products", "Tokens", "Transformer", "TransformerConfig", "initial_weights"]

ATTENTIONS = {"linear": linear_attention, "softmax": softmax_attention}


class Tokens(NamedTuple):
    """Context tokens ``(*batch, n, width)`` and query tokens ``(*batch, m, width)``."""

    context: Float[Tensor, "*batch n width"]
    query: Float[Tensor, "*batch m width"]


class Products(NamedTuple):
    """A layer's weight products, ``(heads, width, width)``: W_KQ = W_K^T W_Q and W_PV = P W_V."""

    w_kq: Float[Tensor, "heads width width"]
    w_pv: Float[Tensor, "heads width width"]


@dataclass(frozen=True)
class TransformerConfig:
    """A transformer without biases, embedding or read-out.

    Args:
        width: of a token.
        n_layers: layers, or loops of the one layer where ``shared``.
        n_heads: heads of each layer.
        key_size: of keys, queries and values of one head; ``width`` if None.
        attention: ``"linear"`` or ``"softmax"``, for all layers or one name a layer.
        shared: all layers share their weights (looped).
        mlp: hidden width of each layer's GELU MLP as a multiple of ``width``; no MLP if None.
        layer_norm: normalise what attention and MLP read; for all layers or one flag a layer.
        token_clip: clip every entry of every token to [-token_clip, token_clip] after each layer.
        damping: factor on what each layer adds to a token (appendix A.6 of the ICML paper).
        init_scale: initial weights are normal with variance init_scale / n_layers / fan-in, cut at two deviations.
    """

    width: int
    n_layers: int = 1
    n_heads: int = 1
    key_size: int | None = None
    attention: str | tuple[str, ...] = "linear"
    shared: bool = False
    mlp: int | None = None
    layer_norm: bool | tuple[bool, ...] = False
    token_clip: float | None = None
    damping: float = 1.0
    init_scale: float = 0.002

    def __post_init__(self) -> None:
        for name in ("width", "n_layers", "n_heads"):
            require_count(name, getattr(self, name))
        for name in ("key_size", "mlp"):
            if getattr(self, name) is not None:
                require_count(name, getattr(self, name))
        if self.token_clip is not None:
            require_number("token_clip", self.token_clip, above=0)
        require_number("damping", self.damping)
        require_number("init_scale", self.init_scale, above=0)
        for name in ("attention", "layer_norm"):
            value = getattr(self, name)
            if isinstance(value, list | tuple):
                object.__setattr__(self, name, tuple(value))
                if len(value) != self.n_layers:
                    refuse(name, f"be one value or {self.n_layers}, one a layer", value, "match it to n_layers")
                if self.shared and len(set(value)) > 1:
                    refuse(name, "be the same for all layers that share weights", value, "pass one value")
        for attention in self.attentions:
            require_choice("attention", attention, ATTENTIONS)

    @property
    def attentions(self) -> tuple[str, ...]:
        """The attention of each layer."""
        return (self.attention,) * self.n_layers if isinstance(self.attention, str) else self.attention

    @property
    def layer_norms(self) -> tuple[bool, ...]:
        """Whether each layer normalises what it reads."""
        return (self.layer_norm,) * self.n_layers if isinstance(self.layer_norm, bool) else self.layer_norm

    @property
    def purely_linear(self) -> bool:
        """Whether the context is seen only through its Gram matrix."""
        plain = self.mlp is None and self.token_clip is None and not any(self.layer_norms)
        return plain and set(self.attentions) == {"linear"}


class Attention(nn.Module):
    """The weights of one attention layer: W_K, W_Q, W_V ``(heads, key, width)`` and P ``(heads, width, key)``."""

    def __init__(self, width: int, n_heads: int, key_size: int, variance: float, generator: torch.Generator) -> None:
        super().__init__()
        inwards, outwards = (n_heads, key_size, width), (n_heads, width, key_size)
        self.w_k = initial_weights(inwards, variance / width, generator)
        self.w_q = initial_weights(inwards, variance / width, generator)
        self.w_v = initial_weights(inwards, variance / width, generator)
        self.p = initial_weights(outwards, variance / (n_heads * key_size), generator)

    def products(self) -> Products:
        return Products(self.w_k.mT @ self.w_q, self.p @ self.w_v)

    def forward(
        self,
        rows: Float[Tensor, "*batch m width"],
        context: Float[Tensor, "*batch n width"],
        attention: str,
        damping: float,
    ) -> Float[Tensor, "*batch m width"]:
        """What attention to the context adds to ``rows``, summed over heads.

        Through the products, keys and values are the context's own tokens: only the rows that ask are projected.
        """
        w_kq, w_pv = self.products()
        heads, width, _ = w_kq.shape
        if attention == "softmax":
            w_kq = w_kq * math.sqrt(width / self.w_k.shape[-2])  # the scale is that of keys, not of tokens
        queries = rows_times(rows, w_kq.reshape(-1, width).mT)
        mixed = ATTENTIONS[attention](queries.reshape(*rows.shape[:-2], -1, width), context, context)
        outwards = (damping * w_pv).mT.reshape(-1, width)
        return rows_times(mixed.reshape(*rows.shape[:-1], heads * width), outwards)


class MLP(nn.Module):
    """GELU multi-layer perceptron, tokens in and tokens out; its biases, where it has them, start at zero."""

    def __init__(
        self, width: int, hidden: int, variance: float, generator: torch.Generator, *, bias: bool = False
    ) -> None:
        super().__init__()
        self.w_in = initial_weights((hidden, width), variance / width, generator)
        self.w_out = initial_weights((width, hidden), variance / hidden, generator)
        self.b_in = nn.Parameter(torch.zeros(hidden)) if bias else None
        self.b_out = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, tokens: Tensor, damping: float = 1.0) -> Tensor:
        hidden = rows_times(tokens, self.w_in.mT)
        hidden = functional.gelu(hidden if self.b_in is None else hidden + self.b_in)
        moved = rows_times(hidden, (damping * self.w_out).mT)
        return moved if self.b_out is None else moved + damping * self.b_out


class Layer(nn.Module):
    """One layer: attention, and an MLP where there is one."""

    def __init__(self, config: TransformerConfig, norm: bool, generator: torch.Generator) -> None:
        super().__init__()
        width, variance = config.width, config.init_scale / config.n_layers
        self.attention = Attention(width, config.n_heads, config.key_size or width, variance, generator)
        self.mlp = MLP(width, config.mlp * width, variance, generator) if config.mlp else None
        self.norm = nn.LayerNorm(width) if norm else nn.Identity()
        self.mlp_norm = nn.LayerNorm(width) if norm and config.mlp else nn.Identity()

    def forward(self, rows: Tensor, n: int, attention: str, damping: float, moves_context: bool) -> Tensor:
        """Rows of context (the first n) and queries after the layer; the queries alone where the context stays."""
        normed = self.norm(rows)
        context, moved = normed[..., :n, :], slice(0 if moves_context else n, None)
        rows = rows[..., moved, :] + self.attention(normed[..., moved, :], context, attention, damping)
        return rows if self.mlp is None else rows + self.mlp(self.mlp_norm(rows), damping)


class Transformer(nn.Module):
    """A transformer whose keys and values come from context tokens only, so that any number of queries share a pass.

    Each layer does e <- e + damping * sum_h P_h Attention(W_Q e, W_K E, W_V E) for context and query tokens e alike,
    with E the context tokens: eqs. 1 and 6 of the ICML paper.

    Nets that are linear throughout are evaluated through the context's Gram matrix (`mesascope.nets.gram`), which
    gives the same numbers to rounding at a cost that does not grow with the context.

    Args:
        config: the architecture.
        generator: of the initial weights; the stream ``init`` of seed 0 if None.
    """

    def __init__(self, config: TransformerConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        generator = generator or stream(0, "init")
        own = 1 if config.shared else config.n_layers
        self.layers = nn.ModuleList(Layer(config, norm, generator) for norm in config.layer_norms[:own])

    def forward(self, context: Float[Tensor, "*batch n width"], query: Float[Tensor, "*batch m width"]) -> Tensor:
        """Query tokens ``(*batch, m, width)`` after the last layer."""
        return self.query_tokens(context, query)[-1]

    def query_tokens(self, context: Tensor, query: Tensor) -> list[Tensor]:
        """Query tokens after each layer."""
        if self.config.purely_linear:
            return run_linear_layers(context, query, self._linear_layers())
        m = query.shape[-2]
        return [rows[..., rows.shape[-2] - m :, :] for rows in self._token_form(context, query, last_context=False)]

    def tokens(self, context: Tensor, query: Tensor) -> list[Tokens]:
        """Context and query tokens before the first layer and after each layer, ``n_layers + 1`` pairs."""
        rows = self._token_form(context, query, last_context=True)
        n = context.shape[-2]
        return [Tokens(context, query), *(Tokens(part[..., :n, :], part[..., n:, :]) for part in rows)]

    def products(self) -> list[Products]:
        """W_KQ and W_PV of each layer (looped layers repeat theirs)."""
        return [layer.attention.products() for layer in self._unrolled()]

    def repeated(self, n_layers: int, damping: float = 1.0) -> Transformer:
        """The one layer (of a one-layer or a looped net) applied ``n_layers`` times; shares this net's weights."""
        if len(self.layers) > 1:
            refuse("n_layers", "be 1, or shared, for a layer to be repeated", len(self.layers), "pass a looped net")
        first = {name: getattr(self.config, name + "s")[0] for name in ("attention", "layer_norm")}
        config = dataclasses.replace(self.config, n_layers=n_layers, shared=True, damping=damping, **first)
        looped = Transformer(config)
        looped.layers = self.layers
        return looped

    def _token_form(self, context: Tensor, query: Tensor, *, last_context: bool) -> list[Tensor]:
        """Rows of context and queries after each layer; after the last, of queries alone unless asked for all."""
        states, config = [], self.config
        rows, n = torch.cat([context, query], dim=-2), context.shape[-2]
        for index, (layer, attention) in enumerate(zip(self._unrolled(), config.attentions, strict=True)):
            rows = layer(rows, n, attention, config.damping, last_context or index < config.n_layers - 1)
            if config.token_clip is not None:
                rows = rows.clamp(-config.token_clip, config.token_clip)
            states.append(rows)
        return states

    def _unrolled(self) -> list[Layer]:
        return list(self.layers) * (self.config.n_layers if self.config.shared else 1)  # type: ignore[arg-type]

    def _linear_layers(self) -> list[LinearLayer]:
        own = [layer.attention.products() for layer in self.layers]  # type: ignore[operator,union-attr]
        layers = [LinearLayer(w_kq, self.config.damping * w_pv) for w_kq, w_pv in own]
        return layers * (self.config.n_layers if self.config.shared else 1)


def initial_weights(shape: tuple[int, ...], variance: float, generator: torch.Generator) -> nn.Parameter:
    """Normal numbers cut at two standard deviations, scaled so that ``variance`` is theirs after the cut."""
    weights = torch.empty(shape, device=generator.device)
    nn.init.trunc_normal_(weights, std=1.0, a=-2.0, b=2.0, generator=generator)
    return nn.Parameter(weights * (math.sqrt(variance) / 0.8796256610342398))
