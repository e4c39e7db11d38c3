"""A causal transformer whose layers are picked by name, and the predictor of sequences it makes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from mesascope.errors import refuse, require_choice, require_count, require_instance, require_number
from mesascope.nets.causal_attention import CAUSAL_ATTENTIONS, AttentionConfig, AttentionState, CausalAttention
from mesascope.nets.gram import rows_times
from mesascope.nets.transformer import MLP, Products, initial_weights
from mesascope.shapes import Float, Tensor
from mesascope.streams import stream
from mesascope.tasks import check_sequence

__all__ = ["CHANNELS", "CausalTransformer", "CausalTransformerConfig", "PredictorState", "SequencePredictor"]

# What a channel of a token can begin with: -W_0 s_t, where the prediction grows, s_t, or s_{t-1}.
CHANNELS = ("blank", "now", "before")


@dataclass(frozen=True)
class CausalTransformerConfig:
    """A causal transformer from tokens to tokens.

    Args:
        heads: of every layer; positions are read by the first layer alone.
        attention: one name in `CAUSAL_ATTENTIONS` a layer.
        mlp: hidden width of each layer's GELU MLP as a multiple of the width; no MLP if None.
        layer_norm: normalise what attention and MLP read.
        token_clip: clip every entry of every token to [-token_clip, token_clip] after each layer.
    """

    heads: AttentionConfig
    attention: tuple[str, ...] = ("softmax", "mesa")
    mlp: int | None = None
    layer_norm: bool = False
    token_clip: float | None = None

    def __post_init__(self) -> None:
        require_instance("heads", self.heads, AttentionConfig)
        if isinstance(self.attention, str) or not self.attention:
            refuse("attention", "be a tuple of one name a layer", self.attention, "pass ('softmax', 'mesa') say")
        object.__setattr__(self, "attention", tuple(self.attention))
        for name in self.attention:
            require_choice("attention", name, CAUSAL_ATTENTIONS)
        if self.mlp is not None:
            require_count("mlp", self.mlp)
        if self.token_clip is not None:
            require_number("token_clip", self.token_clip, above=0)


class CausalLayer(nn.Module):
    """One layer: attention, and an MLP where there is one."""

    def __init__(
        self, attention: CausalAttention, mlp: int | None, layer_norm: bool, generator: torch.Generator
    ) -> None:
        super().__init__()
        width, scale = attention.config.width, attention.config.init_scale
        self.attention = attention
        self.mlp = MLP(width, mlp * width, scale, generator) if mlp else None
        self.norm = nn.LayerNorm(width) if layer_norm else nn.Identity()
        self.mlp_norm = nn.LayerNorm(width) if layer_norm and mlp else nn.Identity()

    def advance(self, tokens: Tensor, state: AttentionState) -> tuple[Tensor, AttentionState]:
        """Tokens after the layer, and what it keeps of them."""
        moved, state = self.attention.advance(self.norm(tokens), state)
        tokens = tokens + moved
        return tokens if self.mlp is None else tokens + self.mlp(self.mlp_norm(tokens)), state


class CausalTransformer(nn.Module):
    """Layers that add to each token what they find in the tokens up to it: ``(*batch, t, width)`` to the same.

    Args:
        config: the architecture.
        generator: of the initial weights; the stream ``init`` of seed 0 if None.

    >>> net = CausalTransformer(CausalTransformerConfig(AttentionConfig(width=8), ("linear", "mesa")))
    >>> net(torch.ones(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(self, config: CausalTransformerConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        require_instance("config", config, CausalTransformerConfig)
        self.config = config
        generator = generator or stream(0, "init")
        rest = dataclasses.replace(config.heads, positions=0)
        heads = [config.heads] + [rest] * (len(config.attention) - 1)
        made = [CAUSAL_ATTENTIONS[name](own, generator) for name, own in zip(config.attention, heads, strict=True)]
        self.layers = nn.ModuleList(CausalLayer(each, config.mlp, config.layer_norm, generator) for each in made)

    def forward(self, tokens: Float[Tensor, "*batch t width"]) -> Float[Tensor, "*batch t width"]:
        return self.advance(tokens, self.init_state(*tokens.shape[:-2]))[0]

    def tokens(self, tokens: Float[Tensor, "*batch t width"]) -> list[Tensor]:
        """Tokens before the first layer and after each layer."""
        return [tokens, *(after for after, _ in self._layer_by_layer(tokens, self.init_state(*tokens.shape[:-2])))]

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
        tokens, state = self.advance(token[..., None, :], state)
        return tokens.squeeze(-2), state

    def advance(
        self, tokens: Float[Tensor, "*batch t width"], state: Sequence[AttentionState]
    ) -> tuple[Float[Tensor, "*batch t width"], tuple[AttentionState, ...]]:
        """Tokens of a sequence that goes on from ``state`` after the last layer, and the state after them."""
        steps = self._layer_by_layer(tokens, state)
        return steps[-1][0], tuple(after for _, after in steps)

    def _layer_by_layer(self, tokens: Tensor, state: Sequence[AttentionState]) -> list[tuple[Tensor, AttentionState]]:
        steps, clip = [], self.config.token_clip
        if len(state) != len(self.layers):
            refuse("state", f"be of {len(self.layers)} layers", len(state), "begin with init_state(*batch)")
        for layer, before in zip(self.layers, state, strict=True):
            tokens, after = layer.advance(tokens, before)  # type: ignore[operator]
            tokens = tokens if clip is None else tokens.clamp(-clip, clip)
            steps.append((tokens, after))
        return steps


class PredictorState(NamedTuple):
    """What decoding keeps: the last element, and the state of every layer."""

    last: Float[Tensor, "*batch d"]
    layers: tuple[AttentionState, ...]


class SequencePredictor(nn.Module):
    """A causal transformer that predicts: ``predictor(sequence)`` gives each next element, ``(*batch, t, d)``.

    Raw tokens are W_in s_t and predictions W_out e_t, both learned. Tokens of ``channels`` are put together from s_t
    and the element before it (zero at the start) with nothing to learn, and the prediction is minus the first channel,
    which begins at -W_0 s_t: (blank, now, before) and (blank, now, now, before) in the thesis.

    `init_state` and `step` decode element by element, to the same numbers.

    Args:
        config: of the transformer, whose width is that of raw tokens, or ``len(channels) * d``.
        d: width of an element.
        channels: names in `CHANNELS`; raw tokens if None.
        w0: initial weights ``(d, d)`` of the regression that a construction runs; zero if None.
        generator: of the initial weights; the stream ``init`` of seed 0 if None.

    Source: thesis, sections 3.3 and 3.5.1.

    >>> net = SequencePredictor(CausalTransformerConfig(AttentionConfig(width=8), ("softmax", "mesa")), d=3)
    >>> prediction, state = net.step(torch.ones(2, 3), net.init_state(2))
    >>> prediction.shape
    torch.Size([2, 3])
    """

    w0: Tensor | None

    def __init__(
        self,
        config: CausalTransformerConfig,
        d: int,
        channels: Sequence[str] | None = None,
        w0: Float[Tensor, "d d"] | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        require_instance("config", config, CausalTransformerConfig)
        require_count("d", d)
        width = config.heads.width
        if isinstance(channels, str) or (channels is not None and not channels):
            refuse("channels", "be a tuple of names", channels, "pass ('blank', 'now', 'before') say")
        for channel in channels or ():
            require_choice("channels", channel, CHANNELS)
        if channels is not None and width != len(channels) * d:
            refuse("config", f"have width {len(channels) * d}, {d} a channel", width, "set AttentionConfig.width")
        if w0 is not None and channels is None:
            refuse("w0", "be None for raw tokens", tuple(w0.shape), "pass channels, or leave w0 out")
        if w0 is not None and w0.shape != (d, d):
            refuse("w0", f"have shape ({d}, {d})", tuple(w0.shape), "match it to d")
        generator = generator or stream(0, "init")
        self.transformer, self.d = CausalTransformer(config, generator), d
        self.channels = None if channels is None else tuple(channels)
        self.w_in = initial_weights((width, d), 1 / d, generator) if channels is None else None
        self.w_out = initial_weights((d, width), 1 / width, generator) if channels is None else None
        self.register_buffer("w0", w0)

    def forward(self, sequence: Float[Tensor, "*batch t d"]) -> Float[Tensor, "*batch t d"]:
        return self.advance(sequence, self.init_state(*sequence.shape[:-2]))[0]

    def init_state(self, *batch: int) -> PredictorState:
        """The state before the first element."""
        weight = next(self.parameters())
        return PredictorState(weight.new_zeros((*batch, self.d)), self.transformer.init_state(*batch))

    def step(
        self, element: Float[Tensor, "*batch d"], state: PredictorState
    ) -> tuple[Float[Tensor, "*batch d"], PredictorState]:
        """The prediction of what follows one element, and the state after it."""
        prediction, state = self.advance(element[..., None, :], state)
        return prediction.squeeze(-2), state

    def advance(
        self, sequence: Float[Tensor, "*batch t d"], state: PredictorState
    ) -> tuple[Float[Tensor, "*batch t d"], PredictorState]:
        """Predictions along a sequence that goes on from ``state``, and the state after it: how a prompt is read."""
        require_instance("state", state, PredictorState)
        before = self._before(sequence, state.last)
        tokens, layers = self.transformer.advance(self._embedded(sequence, before), state.layers)
        last = sequence[..., -1, :].clone() if sequence.shape[-2] else state.last
        return self._read(tokens), PredictorState(last, layers)

    def trajectory(self, sequence: Float[Tensor, "*batch t d"]) -> Float[Tensor, "k *batch t d"]:
        """Predictions read before the first layer and after each layer."""
        before = self._before(sequence, self.init_state(*sequence.shape[:-2]).last)
        return torch.stack([self._read(tokens) for tokens in self.transformer.tokens(self._embedded(sequence, before))])

    def _before(self, sequence: Tensor, last: Tensor) -> Tensor:
        check_sequence(sequence)
        if sequence.shape[-1] != self.d:
            refuse("sequence", f"have width {self.d}", sequence.shape[-1], "build the net with this d")
        if sequence.dtype != last.dtype:
            refuse("sequence", f"have the network's dtype {last.dtype}", sequence.dtype, "convert it, or the network")
        if sequence.shape[:-2] != last.shape[:-1]:
            batch = tuple(sequence.shape[:-2])
            refuse("state", f"be of batch {batch}", tuple(last.shape[:-1]), "begin with init_state(*batch)")
        return torch.cat([last[..., None, :], sequence[..., :-1, :]], -2)[..., : sequence.shape[-2], :]

    def _embedded(self, sequence: Tensor, before: Tensor) -> Tensor:
        if self.w_in is not None:
            return rows_times(sequence, self.w_in.mT)
        blank = torch.zeros_like(sequence) if self.w0 is None else -rows_times(sequence, self.w0.to(sequence).mT)
        parts = {"blank": blank, "now": sequence, "before": before}
        return torch.cat([parts[channel] for channel in self.channels or ()], -1)

    def _read(self, tokens: Tensor) -> Tensor:
        return -tokens[..., : self.d] if self.w_out is None else rows_times(tokens, self.w_out.mT)
