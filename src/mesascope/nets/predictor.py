"""A causal transformer as a predictor: elements become tokens, and predictions are read from tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from mesascope.errors import ArgumentError, refuse, require_instance
from mesascope.nets.attention_config import AttentionConfig
from mesascope.nets.causal import CausalNet, given, zero_padding
from mesascope.nets.causal_transformer import CausalTransformer, CausalTransformerConfig
from mesascope.nets.checks import check_batch, check_like, check_mask, check_start, check_state
from mesascope.nets.layers import Products, initial_weights, rows_times, set_products
from mesascope.nets.points import HookedModule
from mesascope.nets.pretrained import Pretrained
from mesascope.nets.states import PredictorState
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.tasks import check_sequence
from mesascope.validate import Count, NonEmpty

# Contents of a token's channels: -W_0 s_t (minus the prediction after the last layer), s_t, or s_{t-1}.
Channel = Literal["blank", "now", "before"]
# Fields of heads that do not change the function of linear attention, given its products.
_FREE = {"width", "n_heads", "n_kv_heads", "key_size", "value_size", "init_scale"}
_FREE |= {"ridge", "ridge_floor", "ridge_per_dimension", "ridge_kind"}


@register("net", "sequence-predictor", of="predictor")
@dataclass(frozen=True)
class SequencePredictorConfig:
    """Config of a `SequencePredictor`.

    Args:
        transformer: config of the transformer; its width is ``len(channels) * d``, or any width for raw tokens.
        d: width of an element.
        channels: names in `Channel`; raw tokens if None.
    """

    transformer: CausalTransformerConfig
    d: Count
    channels: NonEmpty[Channel] | None = None

    def __post_init__(self) -> None:
        if self.channels is None:
            return
        width, needed = self.transformer.width, len(self.channels) * self.d
        if width != needed:
            refuse("transformer", f"have width {needed}, {self.d} per channel", width, "set AttentionConfig.width")

    def build(self, generator: torch.Generator | None = None) -> SequencePredictor:
        return SequencePredictor(self, generator)


class SequencePredictor(HookedModule, CausalNet, Pretrained):
    """A causal transformer as a predictor: ``predictor(sequence)`` returns each next element, ``(*batch, t, d)``.

    Raw tokens are W_in s_t, and predictions W_out e_t, with e_t the token after the last layer and
    learned W_in and W_out. With ``channels``, a token concatenates -W_0 s_t (blank), s_t (now) and
    s_{t-1} (before, zero at the start) in the given order, without learned weights. The prediction
    is then minus the first channel after the last layer. von Oswald (2024) uses
    (blank, now, before) and (blank, now, now, before).

    `init_state` and `step` decode element by element with the same results.

    Args:
        w0: initial weights ``(d, d)`` of the regression that a construction implements; zero if None.

    Source: von Oswald (2024), sections 3.3 and 3.5.1.

    >>> from mesascope.nets import AttentionConfig
    >>> transformer = CausalTransformerConfig(AttentionConfig(width=8), 2, ("softmax", "mesa"))
    >>> net = SequencePredictorConfig(transformer, d=3).build()
    >>> prediction, state = net.step(torch.ones(2, 3), net.init_state(2))
    >>> prediction.shape
    torch.Size([2, 3])
    """

    state_type = PredictorState
    element = "element"
    w0: Tensor | None

    def __init__(
        self,
        config: SequencePredictorConfig,
        generator: torch.Generator | None = None,
        w0: Float[Tensor, "d d"] | None = None,
    ) -> None:
        super().__init__(config, SequencePredictorConfig)
        d, width = config.d, config.transformer.width
        if w0 is not None and config.channels is None:
            refuse("w0", "be None for raw tokens", tuple(w0.shape), "pass channels, or leave w0 out")
        check_start(w0, (d, d), "d")
        self.transformer = CausalTransformer(config.transformer, generator)
        raw = config.channels is None
        self.w_in = initial_weights((width, d), 1 / d, generator) if raw else None
        self.w_out = initial_weights((d, width), 1 / width, generator) if raw else None
        self.register_buffer("w0", None if w0 is None else w0.clone())

    def forward(
        self,
        sequence: Float[Tensor, "*batch t d"],
        state: PredictorState | None = None,
        mask: Tensor | None = None,
        last: int | None = None,
    ) -> Any:
        """Predictions along a sequence, and with a state also the state after it: see `advance`."""
        self._check(sequence, state)
        check_mask(mask, sequence)
        sequence = zero_padding(sequence, mask)
        tokens = self._embedded(sequence, self._before(sequence, state))
        after = self.transformer(tokens, *given(None if state is None else state.layers, mask, last))
        if state is None:
            return self._read(after)
        tokens, layers = after
        last_element = sequence[..., -1, :].clone() if sequence.shape[-2] else state.last
        return self._read(tokens), PredictorState(last_element, layers)

    def init_state(self, *batch: int) -> PredictorState:
        """Return the state before the first element."""
        layers = self.transformer.init_state(*batch)
        return PredictorState(next(self.parameters()).new_zeros((*batch, self.config.d)), layers)

    @property
    def on_channels(self) -> bool:
        """True if tokens consist of channels, and predictions depend only on the products of the layers."""
        config = self.config.transformer
        linear = config.mlp is None and not any(config.layer_norms) and set(config.attentions) == {"linear"}
        fields = [field for field in dataclasses.fields(AttentionConfig) if field.name not in _FREE]
        plain = all(getattr(one, field.name) == field.default for one in config.each_heads for field in fields)
        return self.config.channels is not None and linear and plain

    def products(self) -> list[Products]:
        """W_KQ and W_PV of each layer, each ``(heads, width, width)``."""
        return self.transformer.products()

    def with_products(self, products: Sequence[Products]) -> SequencePredictor:
        """A linear-attention network whose layers have exactly these products, with keys as wide as tokens.

        Raises:
            ArgumentError: this network does not depend on its products alone, or has another number of layers.
        """
        require_instance("products", products, Sequence)
        config = self.config.transformer
        if not self.on_channels:
            raise ArgumentError(
                "with_products must be called on a network of channels and plain linear attention, "
                "but this one has raw tokens, other layers or options such as gates: build another."
            )
        if len(products) != config.n_layers:
            refuse("products", f"be of length {config.n_layers}", len(products), "pass one pair per layer")
        heads, width, _ = products[0].w_kq.shape
        sizes = {"n_heads": heads, "n_kv_heads": None, "key_size": width, "value_size": width}
        own = dataclasses.replace(config.each_heads[0], **sizes)
        whole = dataclasses.replace(self.config, transformer=dataclasses.replace(config, heads=own))
        other = SequencePredictor(whole, torch.Generator(), self.w0).to(products[0].w_kq)
        for layer, pair in zip(other.transformer.layers, products, strict=True):
            set_products(layer.attention, pair)  # type: ignore[arg-type]
        return other

    def activations(self, sequence: Float[Tensor, "*batch t d"], layers: int | None = None) -> list[Tensor]:
        """Tokens ``(*batch, t, width)`` before the first layer and after each of the first ``layers`` (or all)."""
        self._check(sequence, None)
        return self.transformer.tokens(self._embedded(sequence, self._before(sequence, None)), layers)

    def trajectory(self, sequence: Float[Tensor, "*batch t d"]) -> Float[Tensor, "k *batch t d"]:
        """Predictions read before the first layer and after each layer."""
        return torch.stack([self._read(after) for after in self.activations(sequence)])

    def _check(self, sequence: Tensor, state: PredictorState | None) -> None:
        check_sequence(sequence)
        if sequence.shape[-1] != self.config.d:
            refuse("sequence", f"have width {self.config.d}", sequence.shape[-1], "build the net with this d")
        check_like("sequence", sequence, "the network", next(self.parameters()))
        if state is not None:
            check_state(state, PredictorState)
            check_batch(state.batch, sequence)

    def _before(self, sequence: Tensor, state: PredictorState | None) -> Tensor:
        """The element before each element; zero before the first."""
        last = sequence.new_zeros((*sequence.shape[:-2], self.config.d)) if state is None else state.last
        return torch.cat([last[..., None, :], sequence[..., :-1, :]], -2)[..., : sequence.shape[-2], :]

    def _embedded(self, sequence: Tensor, before: Tensor) -> Tensor:
        if self.w_in is not None:
            return rows_times(sequence, self.w_in.mT)
        blank = torch.zeros_like(sequence) if self.w0 is None else -rows_times(sequence, self.w0.to(sequence).mT)
        parts = {"blank": blank, "now": sequence, "before": before}
        return torch.cat([parts[channel] for channel in self.config.channels or ()], -1)

    def _read(self, tokens: Tensor) -> Tensor:
        return -tokens[..., : self.config.d] if self.w_out is None else rows_times(tokens, self.w_out.mT)
