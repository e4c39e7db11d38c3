"""A causal transformer whose layers are picked by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from mesascope.errors import refuse, require_instance
from mesascope.nets.attention_config import AttentionConfig
from mesascope.nets.checks import as_sequence, check_tokens
from mesascope.nets.layers import Layer, Products, check_layers, each_layer, module_text
from mesascope.nets.padding import blanked, check_mask, check_padding, given
from mesascope.nets.points import HasPoints, Point
from mesascope.nets.pretrained import Pretrained
from mesascope.nets.states import AttentionState, check_state
from mesascope.records import registered
from mesascope.shapes import Float, Tensor
from mesascope.validate import frozen

__all__ = ["CausalTransformer", "CausalTransformerConfig"]


@frozen
class CausalTransformerConfig:
    """A causal transformer from tokens to tokens.

    Args:
        heads: of every layer, or a tuple of one each, of the same width; positions are read by the first layer alone.
        n_layers: layers.
        attention: ``"softmax"``, ``"linear"``, ``"delta"``, ``"mesa"`` or another name that is registered as
            attention; for all layers or one name a layer.
        mlp: hidden width of each layer's GELU MLP as a multiple of the width; no MLP if None.
        layer_norm: normalise what attention and MLP read; for all layers or one flag a layer.
        token_clip: clip every entry of every token to [-token_clip, token_clip] after each layer.
    """

    heads: AttentionConfig | tuple[AttentionConfig, ...]
    n_layers: int = 1
    attention: str | tuple[str, ...] = "linear"
    mlp: int | None = None
    layer_norm: bool | tuple[bool, ...] = False
    token_clip: float | None = None

    def __post_init__(self) -> None:
        check_layers(self, registered("attention"), "heads")
        for one in self.each_heads:
            require_instance("heads", one, AttentionConfig)
        if len({one.width for one in self.each_heads}) > 1:
            refuse("heads", "have one width", [one.width for one in self.each_heads], "set AttentionConfig.width")

    @property
    def width(self) -> int:
        """Of a token."""
        return self.each_heads[0].width

    @property
    def each_heads(self) -> tuple[AttentionConfig, ...]:
        """The heads of each layer."""
        return each_layer(self.heads, self.n_layers)

    @property
    def attentions(self) -> tuple[str, ...]:
        """The attention of each layer."""
        return each_layer(self.attention, self.n_layers)

    @property
    def layer_norms(self) -> tuple[bool, ...]:
        """Whether each layer normalises what it reads."""
        return each_layer(self.layer_norm, self.n_layers)


class CausalLayer(Layer):
    """A layer whose attention keeps a state."""

    def forward(
        self,
        tokens: Float[Tensor, "*batch t width"],
        state: AttentionState | None = None,
        mask: Tensor | None = None,
        last: int | None = None,
    ) -> Any:
        """Tokens after the layer, the last ones or all, and where a state is given the state after them too."""
        moved = self.attention(self.norm(tokens), *given(state, mask), **_only(last))
        if state is not None:
            moved, state = moved
        after = self.after(tokens[..., tokens.shape[-2] - moved.shape[-2] :, :], moved)
        return after if state is None else (after, state)


class CausalTransformer(HasPoints, Pretrained):
    """Layers that add to each token what they find in the tokens up to it: ``(*batch, t, width)`` to the same.

    Every part is called as a module, so that hooks see it; `mesascope.nets.points` lists all places by name.

    Args:
        config: the architecture.
        generator: of the initial weights; torch's global one if None.

    >>> net = CausalTransformer(CausalTransformerConfig(AttentionConfig(width=8), 2, ("linear", "mesa")))
    >>> net(torch.ones(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    built_from = CausalTransformerConfig

    def __init__(self, config: CausalTransformerConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        require_instance("config", config, CausalTransformerConfig)
        self.config = config
        scaled = [replace(one, init_scale=one.init_scale / config.n_layers) for one in config.each_heads]
        heads = [scaled[0], *(replace(one, positions=0) for one in scaled[1:])]
        known, width = registered("attention"), config.width
        self.embedded = Point()
        self.layers = nn.ModuleList(
            CausalLayer(
                known[kind](own, generator), width, config.mlp, norm, own.init_scale, generator, config.token_clip
            )
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
        """Tokens after the last layer, and where a state is given the state after them too: see `advance`.

        Args:
            tokens: of the sequence.
            state: of every layer, of the tokens before; the sequence is whole if None.
            mask: ``(*batch, t)``, False for padding before a sequence's first token. No token sees padding, and it
                counts in no position. What comes out at padding has no meaning.
            last: how many of the last tokens are told, all if None; one is all that a prompt is read for.
        """
        if state is None:
            return self._after_layers(tokens, mask, last)[-1]
        self._check_states(state)
        self._check(tokens, mask, state[0].position)
        tokens, after = self.embedded(blanked(tokens, mask)), []
        for layer, before in zip(self.layers, state, strict=True):
            tokens, own = layer(tokens, *given(before, mask), **_only(last if layer is self.layers[-1] else None))
            after.append(own)
        return tokens, tuple(after)

    def tokens(self, tokens: Float[Tensor, "*batch t width"], layers: int | None = None) -> list[Tensor]:
        """Tokens before the first layer and after each layer, the first ``layers`` or all."""
        return self._after_layers(tokens, None, None, layers)

    def __repr__(self) -> str:
        return module_text(self)

    def unrolled(self) -> list[nn.Module]:
        """The layers in the order in which they are applied."""
        return list(self.layers)

    def products(self) -> list[Products]:
        """W_KQ and W_PV of each layer, ``(heads, width, width)``, but for positions in the first layer's W_KQ."""
        return [layer.attention.products() for layer in self.layers]  # type: ignore[operator,union-attr]

    def init_state(self, *batch: int) -> tuple[AttentionState, ...]:
        """The state of every layer before the first token."""
        return tuple(layer.attention.init_state(*batch) for layer in self.layers)  # type: ignore[operator,union-attr]

    def step(
        self, token: Float[Tensor, "*batch width"], state: Sequence[AttentionState]
    ) -> tuple[Float[Tensor, "*batch width"], tuple[AttentionState, ...]]:
        """One token after the last layer, and the state after it."""
        self._check_states(state)
        tokens, state = self.advance(as_sequence("token", token, state[0].batch), state)
        return tokens.squeeze(-2), state

    def advance(
        self,
        tokens: Float[Tensor, "*batch t width"],
        state: Sequence[AttentionState],
        mask: Tensor | None = None,
        last: int | None = None,
    ) -> tuple[Float[Tensor, "*batch last width"], tuple[AttentionState, ...]]:
        """Tokens of a sequence that goes on from ``state`` after the last layer, and the state after them."""
        check_state(state, tuple)
        return self(tokens, state, mask, last)

    def _after_layers(
        self, tokens: Tensor, mask: Tensor | None, last: int | None, layers: int | None = None
    ) -> list[Tensor]:
        """Tokens before the first layer and after each layer, the last ones after the last."""
        self._check(tokens, mask, None)
        steps = [self.embedded(blanked(tokens, mask))]
        for layer in self.layers[:layers]:  # type: ignore[misc]
            own = last if layer is self.layers[-1] else None
            steps.append(layer(steps[-1], *given(None, mask), **_only(own)))
        return steps

    def _check(self, tokens: Tensor, mask: Tensor | None, position: Tensor | None) -> None:
        check_tokens("tokens", tokens, self.config.width, next(self.parameters()), "AttentionConfig.width")
        check_mask(mask, tokens)
        if any(one.check for one in self.config.each_heads):
            check_padding(mask, position)

    def _check_states(self, state: Any) -> None:
        check_state(state, tuple)
        if len(state) != len(self.layers):
            refuse("state", f"be of {len(self.layers)} layers", len(state), "begin with init_state(*batch)")
        for own in state:
            check_state(own, AttentionState)


def _only(last: int | None) -> dict[str, int]:
    """How many of the last tokens are asked for, to be passed on: a module put in a layer's place need not know it."""
    return {} if last is None else {"last": last}
