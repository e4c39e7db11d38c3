"""A causal transformer whose attention layers are chosen by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from mesascope.errors import refuse, require_count
from mesascope.nets.attention_config import AttentionConfig
from mesascope.nets.causal import CausalNet, given, zero_padding
from mesascope.nets.checks import check_mask, check_state, check_tokens
from mesascope.nets.layers import Layer, LayersConfig, Products
from mesascope.nets.points import HookedModule, HookPoint
from mesascope.nets.pretrained import Pretrained
from mesascope.nets.states import AttentionState
from mesascope.records import registered
from mesascope.shapes import Float, Tensor
from mesascope.validate import Count, Positive, frozen


@frozen
class CausalTransformerConfig(LayersConfig):
    """Config of a `CausalTransformer`.

    Args:
        heads: config of the heads of all layers, or one config for each layer, all of one width. Only the first layer
            uses ``AttentionConfig.positions``.
        n_layers: number of layers.
        attention: ``"softmax"``, ``"linear"``, ``"delta"``, ``"mesa"`` or another registered attention: one name for
            all layers or one for each.
        mlp: hidden width of each layer's GELU MLP as a multiple of the width; no MLP if None.
        layer_norm: normalise the inputs of attention and MLP: one flag for all layers or one for each.
        token_clip: clip every entry of every token to [-token_clip, token_clip] after each layer.
    """

    heads: AttentionConfig | tuple[AttentionConfig, ...]
    n_layers: Count = 1
    attention: str | tuple[str, ...] = "linear"
    mlp: Count | None = None
    layer_norm: bool | tuple[bool, ...] = False
    token_clip: Positive | None = None

    def __post_init__(self) -> None:
        self.check_layers(registered("attention"), "heads")
        if len({one.width for one in self.each_heads}) > 1:
            refuse("heads", "have one width", [one.width for one in self.each_heads], "set AttentionConfig.width")

    def build(self, generator: torch.Generator | None = None) -> CausalTransformer:
        return CausalTransformer(self, generator)

    @property
    def width(self) -> int:
        """Width of a token."""
        return self.each_heads[0].width

    @property
    def each_heads(self) -> tuple[AttentionConfig, ...]:
        """Config of the heads of each layer."""
        return self.each_layer("heads")


class CausalLayer(Layer):
    """A layer whose attention has a state."""

    def forward(
        self,
        tokens: Float[Tensor, "*batch t width"],
        state: AttentionState | None = None,
        mask: Tensor | None = None,
        last: int | None = None,
    ) -> Any:
        """The ``last`` tokens (all if None) after the layer, and with a state also the state after them."""
        moved = self.attention(self.norm(tokens), *given(state, mask, last))
        if state is not None:
            moved, state = moved
        after = self.after(tokens[..., tokens.shape[-2] - moved.shape[-2] :, :], moved)
        return after if state is None else (after, state)


class CausalTransformer(HookedModule, CausalNet, Pretrained):
    """Layers of causal attention, from tokens ``(*batch, t, width)`` to tokens of the same shape.

    Every part is called as a module, so hooks work; `mesascope.nets.points` lists all hook points by name.

    >>> net = CausalTransformer(CausalTransformerConfig(AttentionConfig(width=8), 2, ("linear", "mesa")))
    >>> net(torch.ones(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    built_from = CausalTransformerConfig

    def __init__(self, config: CausalTransformerConfig, generator: torch.Generator | None = None) -> None:
        super().__init__(config, CausalTransformerConfig)
        scaled = [dataclasses.replace(one, init_scale=one.init_scale / config.n_layers) for one in config.each_heads]
        heads = [scaled[0], *(dataclasses.replace(one, positions=0) for one in scaled[1:])]
        known = registered("attention")
        self.embedded = HookPoint()
        self.layers = nn.ModuleList(
            CausalLayer(known[kind](own, generator), config, norm, own.init_scale, generator)
            for kind, own, norm in zip(config.attentions, heads, config.layer_norms, strict=True)
        )
        for layer in self.layers:
            layer.attention.inside = True  # type: ignore[union-attr]

    def forward(
        self,
        tokens: Float[Tensor, "*batch t width"],
        state: Sequence[AttentionState] | None = None,
        mask: Tensor | None = None,
        last: int | None = None,
    ) -> Any:
        """Tokens after the last layer, and with a state also the new state of every layer: see `advance`."""
        if state is not None:
            self._check_state(state)
        self._check(tokens, mask, None if state is None else state[0].position)
        tokens, after = self.embedded(zero_padding(tokens, mask)), []
        for layer, before in zip(self.layers, state or [None] * len(self.layers), strict=True):
            tokens = layer(tokens, *given(before, mask, last if layer is self.layers[-1] else None))
            if state is not None:
                tokens, own = tokens
                after.append(own)
        return tokens if state is None else (tokens, tuple(after))

    def tokens(self, tokens: Float[Tensor, "*batch t width"], layers: int | None = None) -> list[Tensor]:
        """Tokens before the first layer and after each of the first ``layers`` layers (or all)."""
        self._check(tokens, None, None)
        if layers is not None:
            require_count("layers", layers, least=0)
        steps = [self.embedded(tokens)]
        for layer in self.layers[:layers]:  # type: ignore[misc]
            steps.append(layer(steps[-1]))
        return steps

    def unrolled(self) -> list[nn.Module]:
        """The layers in the order in which they are applied."""
        return list(self.layers)

    def products(self) -> list[Products]:
        """W_KQ and W_PV of each layer, ``(heads, width, width)``; ``positions`` enlarge W_KQ of the first layer."""
        return [layer.attention.products() for layer in self.layers]  # type: ignore[operator,union-attr]

    def init_state(self, *batch: int) -> tuple[AttentionState, ...]:
        """Return the state of every layer before the first token."""
        return tuple(layer.attention.init_state(*batch) for layer in self.layers)  # type: ignore[operator,union-attr]

    def _check(self, tokens: Tensor, mask: Tensor | None, position: Tensor | None) -> None:
        check_tokens("tokens", tokens, self.config.width, next(self.parameters()), "AttentionConfig.width")
        check_mask(mask, tokens, position, gaps=True)

    def _check_state(self, state: Any) -> None:
        check_state(state, tuple)
        if len(state) != len(self.layers):
            refuse("state", f"be of length {len(self.layers)}", len(state), "begin with init_state(*batch)")
        for own in state:
            check_state(own, AttentionState)
