"""The transformer of the in-context regression studies."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import nn

from mesascope.errors import refuse, require_instance
from mesascope.nets.checks import check_tokens
from mesascope.nets.gram import run_linear_layers
from mesascope.nets.layers import (
    Layer,
    LayersConfig,
    Products,
    head_weights,
    key_size_of,
    products_of,
    rows_times,
    set_products,
)
from mesascope.nets.points import HookedModule, HookPoint, has_hooks, must_be_called, remember
from mesascope.nets.pretrained import Pretrained
from mesascope.records import facts, registered
from mesascope.shapes import Float, Tensor
from mesascope.validate import Count, Positive, frozen


class Tokens(NamedTuple):
    """Context tokens ``(*batch, n, width)`` and query tokens ``(*batch, m, width)``."""

    context: Float[Tensor, "*batch n width"]
    query: Float[Tensor, "*batch m width"]


@frozen
class TransformerConfig(LayersConfig):
    """Config of a `Transformer`, without embedding or read-out; linear maps have no biases.

    Args:
        width: width of a token.
        n_layers: number of layers; with ``shared``, number of loops of the one layer.
        n_heads: number of heads of each layer.
        key_size: width of keys, queries and values in a head; ``width / n_heads`` if None.
        attention: ``"linear"`` or ``"softmax"``: one name for all layers or one for each.
        shared: all layers share their weights (looped).
        mlp: hidden width of each layer's GELU MLP as a multiple of ``width``; no MLP if None.
        layer_norm: normalise the inputs of attention and MLP: one flag for all layers or one for each.
        token_clip: clip every entry of every token to [-token_clip, token_clip] after each layer.
        damping: factor on the change of a token in each layer (von Oswald et al., ICML 2023, appendix A.6).
        init_scale: initial weights are normal with variance init_scale / n_layers / fan-in, truncated at two standard
            deviations.
    """

    width: Count
    n_layers: Count = 1
    n_heads: Count = 1
    key_size: Count | None = None
    attention: str | tuple[str, ...] = "linear"
    shared: bool = False
    mlp: Count | None = None
    layer_norm: bool | tuple[bool, ...] = False
    token_clip: Positive | None = None
    damping: float = 1.0
    init_scale: Positive = 1.0

    def __post_init__(self) -> None:
        key_size_of(self)
        self.check_layers(_attentions())
        for name in ("attention", "layer_norm"):
            if self.shared and len(set(self.each_layer(name))) > 1:
                refuse(name, "be the same for all layers that share weights", getattr(self, name), "pass one value")

    def build(self, generator: torch.Generator | None = None) -> Transformer:
        return Transformer(self, generator)

    @property
    def linear(self) -> bool:
        """True for linear attention without MLPs and LayerNorm."""
        return self.mlp is None and not any(self.layer_norms) and set(self.attentions) == {"linear"}


class Attention(nn.Module):
    """Attention heads over a context: W_K, W_Q, W_V ``(heads, key, width)`` and P ``(heads, width, key)``."""

    def __init__(self, config: TransformerConfig, kind: str, generator: torch.Generator | None) -> None:
        super().__init__()
        key, scale = key_size_of(config), config.init_scale / config.n_layers
        self.w_k, self.w_q, self.w_v, self.p = head_weights(config.n_heads, config.width, key, key, scale, generator)
        self.attend = _attentions()[kind]
        # With products, softmax divides scores by sqrt(width); this factor changes the divisor to sqrt(key).
        self.sharpness = math.sqrt(config.width / key) if kind == "softmax" else 1.0
        self.query, self.key, self.value, self.pattern, self.read = (HookPoint() for _ in range(5))

    def forward(
        self, tokens: Float[Tensor, "*batch rows width"], n: int, first: int = 0
    ) -> Float[Tensor, "*batch asking width"]:
        """Output of attention to the first ``n`` tokens, summed over heads, for the tokens from ``first`` on.

        Only queries are projected, by W_KQ; keys and values are the context tokens, and W_PV maps
        outputs. If a part is hooked or replaced, keys and values are computed for each head.
        """
        rows, context = tokens[..., first:, :], tokens[..., :n, :]
        if has_hooks(self):
            return self._by_heads(rows, context)
        w_kq, w_pv = products_of(self)
        heads, width, _ = w_kq.shape
        queries = rows_times(rows, (self.sharpness * w_kq).reshape(-1, width).mT)
        mixed = self.attend(queries.reshape(*rows.shape[:-2], heads * rows.shape[-2], width), context, context)
        return rows_times(mixed.reshape(*rows.shape[:-1], heads * width), w_pv.mT.reshape(-1, width))

    def __repr__(self) -> str:
        heads, key, width = self.w_k.shape
        return f"Attention({self.attend.__name__}, n_heads={heads}, key_size={key}, width={width})"

    def _by_heads(self, rows: Tensor, context: Tensor) -> Tensor:
        query = self.query(_split_heads(rows, self.w_q))
        key, value = self.key(_split_heads(context, self.w_k)), self.value(_split_heads(context, self.w_v))
        if must_be_called(self.pattern):
            one = torch.eye(context.shape[-2]).to(value).expand(*key.shape[:-1], -1)
            read = self.pattern(self.attend(query, key, one)) @ value
        else:
            read = self.attend(query, key, value)
        return rows_times(self.read(read).transpose(-3, -2).flatten(-2), self.p.mT.flatten(0, 1))


def _split_heads(tokens: Tensor, weights: Float[Tensor, "heads d width"]) -> Float[Tensor, "*batch heads t d"]:
    """Tokens multiplied by each head's matrix."""
    return rows_times(tokens, weights.flatten(0, 1).mT).unflatten(-1, weights.shape[:2]).transpose(-3, -2)


class ContextLayer(Layer):
    """A layer with attention to the context."""

    def forward(
        self, tokens: Float[Tensor, "*batch rows width"], n: int, first: int = 0
    ) -> Float[Tensor, "*batch asking width"]:
        """Output of the layer for tokens with index ``first`` and above; tokens 0 to n - 1 are the context."""
        if not first:
            return self.after(tokens, self.attention(self.norm(tokens), n))
        return self.after(tokens[..., first:, :], self.attention(self.norm(tokens), n, first))


class Transformer(HookedModule, Pretrained):
    """A transformer with keys and values from context tokens only, so one pass can have any number of queries.

    Each layer computes e <- e + damping * sum_h P_h Attention(W_Q e, W_K E, W_V E) for every context or query token e,
    with E the context tokens: von Oswald et al. (ICML 2023), eqs. 1 and 6.

    Purely linear networks are evaluated through the context's Gram matrix (`mesascope.nets.gram`);
    results are equal up to rounding. If a part is hooked or replaced, every part is called as a
    module instead. `mesascope.nets.points` lists all hook points by name.
    """

    built_from = TransformerConfig

    def __init__(self, config: TransformerConfig, generator: torch.Generator | None = None) -> None:
        super().__init__(config, TransformerConfig)
        own, scale = 1 if config.shared else config.n_layers, config.init_scale / config.n_layers
        self.embedded = HookPoint()
        self.layers = nn.ModuleList(
            ContextLayer(Attention(config, kind, generator), config, norm, scale, generator)
            for kind, norm in zip(config.attentions[:own], config.layer_norms[:own], strict=True)
        )
        remember(self)

    def forward(self, context: Float[Tensor, "*batch n width"], query: Float[Tensor, "*batch m width"]) -> Tensor:
        """Query tokens ``(*batch, m, width)`` after the last layer."""
        return self.query_tokens(context, query)[-1]

    def query_tokens(self, context: Tensor, query: Tensor) -> list[Tensor]:
        """Query tokens after each layer."""
        self._check(context, query)
        hooked = has_hooks(self)
        if self.config.linear and self.config.token_clip is None and not hooked:
            own = [products_of(layer.attention) for layer in self.layers]  # type: ignore[arg-type]
            layers = [Products(w_kq, self.config.damping * w_pv) for w_kq, w_pv in own]
            return run_linear_layers(context, query, layers * (self.config.n_layers if self.config.shared else 1))
        m = query.shape[-2]
        return [rows[..., rows.shape[-2] - m :, :] for rows in self._token_form(context, query, last_context=hooked)]

    def tokens(self, context: Tensor, query: Tensor) -> list[Tokens]:
        """Context and query tokens before the first layer and after each layer, ``n_layers + 1`` pairs."""
        self._check(context, query)
        rows = self._token_form(context, query, last_context=True)
        n = context.shape[-2]
        return [Tokens(context, query), *(Tokens(part[..., :n, :], part[..., n:, :]) for part in rows)]

    def products(self) -> list[Products]:
        """W_KQ and W_PV of each layer or loop. For softmax, W_KQ is scaled for scores divided by sqrt(width)."""
        pairs = [(layer.attention.sharpness, products_of(layer.attention)) for layer in self.unrolled()]
        return [Products(sharpness * w_kq, w_pv) for sharpness, (w_kq, w_pv) in pairs]  # type: ignore[operator]

    def with_products(self, products: Sequence[Products]) -> Transformer:
        """A transformer of this architecture whose layers have exactly these W_KQ and W_PV, with key_size = width.

        W_K = P = I, W_Q = W_KQ and W_V = W_PV; MLPs and norms are copied. A looped network takes one pair of products;
        with a different pair for each loop, the result is not looped. Softmax then divides scores by sqrt(width).
        """
        require_instance("products", products, Sequence)
        if len(products) not in (self.config.n_layers, len(self.layers)):
            refuse("products", f"be of length {len(self.layers)}", len(products), "pass one pair per layer")
        first = products[0]
        alike = all(torch.equal(part, other) for own in products for part, other in zip(own, first, strict=True))
        config = dataclasses.replace(self.config, key_size=self.config.width, shared=self.config.shared and alike)
        # A separate generator, as these weights are replaced.
        other = Transformer(config, torch.Generator()).to(first.w_kq)
        for layer, before in zip(other.unrolled(), self.unrolled(), strict=True):
            rest = {name: weight for name, weight in before.state_dict().items() if not name.startswith("attention.")}
            layer.load_state_dict(rest, strict=False)
        for layer, own in zip(other.layers, products, strict=False):
            set_products(layer.attention, own)  # type: ignore[arg-type]
        return other

    def repeated(self, n_layers: int, damping: float = 1.0) -> Transformer:
        """The layer of a one-layer or looped network applied ``n_layers`` times; shares this network's weights."""
        if len(self.layers) > 1:
            refuse("n_layers", "be 1, unless layers are shared", len(self.layers), "pass a looped network")
        first = {name: getattr(self.config, name + "s")[0] for name in ("attention", "layer_norm")}
        config = dataclasses.replace(self.config, n_layers=n_layers, shared=True, **first)
        config = dataclasses.replace(config, damping=self.config.damping * damping)
        looped = Transformer(config, torch.Generator())
        for name, part in self.layers[0].named_children():
            setattr(looped.layers[0], name, part)
        return looped

    def unrolled(self) -> list[Layer]:
        """The layers in the order in which they are applied; a looped layer is repeated."""
        return list(self.layers) * (self.config.n_layers if self.config.shared else 1)  # type: ignore[arg-type]

    def _check(self, context: Tensor, query: Tensor) -> None:
        weight = next(self.parameters())
        for name, tokens in (("context", context), ("query", query)):
            check_tokens(name, tokens, self.config.width, weight, "TransformerConfig.width")
        if context.shape[:-2] != query.shape[:-2]:
            batch = tuple(context.shape[:-2])
            refuse("query", f"have the context's batch {batch}", tuple(query.shape[:-2]), "expand one of them")

    def _token_form(self, context: Tensor, query: Tensor, *, last_context: bool) -> list[Tensor]:
        """Rows of context and queries after each layer; after the last, only queries unless ``last_context``."""
        states, layers, n = [], self.unrolled(), context.shape[-2]
        rows = self.embedded(torch.cat([context, query], dim=-2))
        for index, layer in enumerate(layers):
            rows = layer(rows, n) if last_context or index < len(layers) - 1 else layer(rows, n, n)
            states.append(rows)
        return states


def _attentions() -> dict[str, Callable]:
    """Functions for attention to a context, by the name of the registered attention layer."""
    kinds = {name: facts("attention", name) for name in registered("attention")}
    return {name: known["over_context"] for name, known in kinds.items() if "over_context" in known}
