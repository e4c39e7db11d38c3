"""Common parts of `Transformer` and `CausalTransformer`: config fields, weights of heads, MLPs, and layers."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from mesascope.errors import refuse, require_choice, require_instance
from mesascope.nets.checks import check_tokens
from mesascope.shapes import Float, Tensor
from mesascope.text import config_text


class Products(NamedTuple):
    """A layer's weight products, ``(heads, width, width)``: W_KQ = W_K^T W_Q and W_PV = P W_V."""

    w_kq: Float[Tensor, "heads width width"]
    w_pv: Float[Tensor, "heads width width"]


class LayersConfig:
    """Base of transformer configs; a field contains one value for all layers, or a tuple with one value per layer."""

    n_layers: int

    def check_layers(self, attentions: Collection[str], *others: str) -> None:
        """Raise if a tuple does not have length ``n_layers``, or an ``attention`` is unknown."""
        for name in ("attention", "layer_norm", *others):
            value = getattr(self, name)
            if isinstance(value, list | tuple):
                object.__setattr__(self, name, tuple(value))
                if len(value) != self.n_layers:
                    refuse(name, f"be one value or {self.n_layers}, one per layer", value, "match it to n_layers")
        for attention in self.attentions:
            require_choice("attention", attention, attentions)

    def each_layer(self, field: str) -> tuple[Any, ...]:
        """Values of a field for each layer."""
        value = getattr(self, field)
        return value if isinstance(value, tuple) else (value,) * self.n_layers

    @property
    def attentions(self) -> tuple[str, ...]:
        """Name of the attention of each layer."""
        return self.each_layer("attention")

    @property
    def layer_norms(self) -> tuple[bool, ...]:
        """True for each layer that normalises its inputs."""
        return self.each_layer("layer_norm")


def key_size_of(config: Any) -> int:
    """Width of a head's keys and queries: ``key_size``, or ``width / n_heads``, which must be an integer."""
    if config.key_size is None and config.width % config.n_heads:
        rule = f"be given, as n_heads = {config.n_heads} does not divide width = {config.width}"
        refuse("key_size", rule, None, "pass key_size")
    return config.key_size or config.width // config.n_heads


def initial_weights(shape: tuple[int, ...], variance: float, generator: torch.Generator | None = None) -> nn.Parameter:
    """Normal numbers truncated at two standard deviations, scaled to ``variance`` after truncation."""
    if generator is not None:
        require_instance("generator", generator, torch.Generator)
    options: dict[str, Any] = {"device": None if generator is None else generator.device, "generator": generator}
    weights = torch.randn(shape, **options)  # redrawn until inside: trunc_normal_ differs between torch versions
    while not weights.is_meta and (outside := weights.abs() > 2).any():
        weights = torch.where(outside, torch.randn(shape, **options), weights)
    return nn.Parameter(weights * (math.sqrt(variance) / 0.8796256610342398))


def linear(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """A linear module with this weight ``(out, in)`` and bias."""
    module = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    module.weight = nn.Parameter(weight.detach().clone(memory_format=torch.contiguous_format))
    if bias is not None:
        module.bias = nn.Parameter(bias)
    return module


def head_weights(
    n_heads: int, width: int, key: int, value: int, scale: float, generator: torch.Generator | None, positions: int = 0
) -> tuple[nn.Parameter, ...]:
    """W_K and W_Q ``(heads, key, width + positions)``, W_V ``(heads, value, width)`` and P ``(heads, width, value)``.

    Entries have variance ``scale`` / fan-in.
    """
    read = width + positions
    return (
        initial_weights((n_heads, key, read), scale / read, generator),
        initial_weights((n_heads, key, read), scale / read, generator),
        initial_weights((n_heads, value, width), scale / width, generator),
        initial_weights((n_heads, width, value), scale / (n_heads * value), generator),
    )


def rows_times(rows: Tensor, matrix: Tensor) -> Tensor:
    """rows @ matrix as one product of two matrices, which `torch.func.vmap` turns into one product per member."""
    return (rows.reshape(-1, rows.shape[-1]) @ matrix).view(*rows.shape[:-1], matrix.shape[-1])


def module_text(module: Any) -> str:
    """Module as one line: the fields of its config that differ from the defaults, and the parameter count."""
    count = sum(weight.numel() for weight in module.parameters())
    return f"{type(module).__name__}({config_text(module.config)}; {count:,} parameters)"


def products_of(attention: nn.Module, group: int = 1) -> Products:
    """Products W_KQ = W_K^T W_Q and W_PV = P W_V of a layer; ``group`` heads share each W_K and W_V."""
    w_k, w_q, w_v, p = (getattr(attention, name) for name in ("w_k", "w_q", "w_v", "p"))
    if group > 1:
        w_k, w_v = (weight.repeat_interleave(group, 0) for weight in (w_k, w_v))
    return Products(w_k.mT @ w_q, p @ w_v)


def set_products(attention: nn.Module, products: Products) -> None:
    """Set a layer's products: W_K = P = I, W_Q = W_KQ and W_V = W_PV. Keys and values must be as wide as tokens."""
    require_instance("products", products, tuple)
    w_kq, w_pv = products
    for own, product in ((attention.w_k, w_kq), (attention.p, w_pv)):
        if tuple(own.shape) != tuple(product.shape):  # type: ignore[union-attr]
            refuse("products", f"have shape {tuple(own.shape)}", tuple(product.shape), "match heads and widths")  # type: ignore[union-attr]
    identity = torch.eye(w_kq.shape[-1]).to(w_kq).expand_as(w_kq)
    with torch.no_grad():
        for weight, value in (("w_k", identity), ("p", identity), ("w_q", w_kq), ("w_v", w_pv)):
            getattr(attention, weight).copy_(value)


class TokenMLP(nn.Module):
    """GELU multi-layer perceptron from tokens to tokens; any biases are initially zero."""

    def __init__(
        self, width: int, hidden: int, scale: float, generator: torch.Generator | None = None, *, bias: bool = False
    ) -> None:
        super().__init__()
        own = torch.zeros if bias else lambda size: None
        self.up_proj = linear(initial_weights((hidden, width), scale / width, generator), own(hidden))
        self.down_proj = linear(initial_weights((width, hidden), scale / hidden, generator), own(width))

    def forward(self, tokens: Tensor) -> Tensor:
        weight = self.up_proj.weight
        check_tokens("tokens", tokens, weight.shape[-1], weight, "the MLP's width")
        return self.down_proj(functional.gelu(self.up_proj(tokens)))


class Layer(nn.Module):
    """Attention and optionally an MLP, each with an optional LayerNorm before it and a residual connection.

    Args:
        config: config of the transformer.
        layer_norm: normalise the inputs of attention and MLP.
        scale: initial weights of the MLP have variance scale / fan-in.
    """

    def __init__(
        self, attention: nn.Module, config: Any, layer_norm: bool, scale: float, generator: torch.Generator | None
    ) -> None:
        super().__init__()
        width, mlp = config.width, config.mlp
        self.attention = attention
        self.mlp = TokenMLP(width, mlp * width, scale, generator) if mlp else None
        self.norm = nn.LayerNorm(width) if layer_norm else nn.Identity()
        self.mlp_norm = (nn.LayerNorm(width) if layer_norm else nn.Identity()) if mlp else None
        self.token_clip, self.damping = config.token_clip, getattr(config, "damping", 1.0)

    def after(self, tokens: Tensor, moved: Tensor) -> Tensor:
        """Tokens after the layer, from the tokens before it and ``moved``, the output of attention."""
        tokens = tokens + self._damped(moved)
        if self.mlp is not None:
            tokens = tokens + self._damped(self.mlp(tokens if self.mlp_norm is None else self.mlp_norm(tokens)))
        return tokens if self.token_clip is None else tokens.clamp(-self.token_clip, self.token_clip)

    def _damped(self, moved: Tensor) -> Tensor:
        return moved if self.damping == 1 else self.damping * moved


class UndecayedParameter(nn.Parameter):
    """A parameter without weight decay; copies and pickles keep the mark ``_no_weight_decay``."""

    _no_weight_decay = True

    def __reduce_ex__(self, protocol: Any) -> Any:
        return type(self), (self.data, self.requires_grad)
