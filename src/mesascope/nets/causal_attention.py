"""Causal attention layers over sequences: softmax, linear, delta and mesa, with one signature and one way to decode."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional

from mesascope.errors import ArgumentError, require_count, require_instance, require_number
from mesascope.nets.attention_config import AttentionConfig
from mesascope.nets.checks import as_sequence, check_batch, check_finite, check_like, check_tokens
from mesascope.nets.gram import rows_times
from mesascope.nets.layers import (
    Products,
    head_weights,
    initial_weights,
    join_heads,
    module_text,
    products_of,
    split_heads,
)
from mesascope.nets.padding import blanked, check_mask, check_padding, gates_without
from mesascope.nets.points import Point, looked_at
from mesascope.nets.states import AttentionState, check_state
from mesascope.nets.tokens import sinusoidal
from mesascope.ops import (
    DeltaState,
    LinearState,
    SoftmaxState,
    causal_linear_attention,
    causal_softmax_attention,
    delta_attention,
    dpfp,
    linear_attention,
    mesa_attention,
    softmax_attention,
)
from mesascope.records import register
from mesascope.shapes import Float, Tensor

__all__ = [
    "CausalAttention",
    "DeltaAttention",
    "LinearAttention",
    "MesaAttention",
    "SoftmaxAttention",
]

# MesaNet's bound on the forget factor of a pair that counts fully.
_CAP = 0.9975
# What is left of an input strength that underflows, so that its logarithm exists.
_WEAKEST = 1e-30


class CausalAttention(nn.Module, ABC):
    """What a layer of heads adds to each token: sum_h P_h y_h,t, where y_h,t attends to tokens up to t.

    Keys, queries and values are W_K e, W_Q e and W_V e, with weights ``(heads, key, width + positions)`` twice and
    ``(heads, value, width)``, and P is ``(heads, width, value)``. The layer is called with a sequence of tokens.
    `init_state` and `step` decode one token at a time, to the same numbers, and `advance` a part of a sequence. Its
    points ``query``, ``key``, ``value``, ``pattern`` and ``read`` are there to be hooked: see `mesascope.nets.points`.

    Args:
        config: the heads.
        generator: of the initial weights; torch's global one if None.
    """

    normalises: ClassVar[bool] = False
    learns_beta: ClassVar[bool] = False

    inside = False
    """Whether a transformer around it checks padding, once for all of its layers."""

    def __init__(self, config: AttentionConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        require_instance("config", config, AttentionConfig)
        self.config = config
        (key, value, _), heads, width, positions = config.sizes, config.n_heads, config.width, config.positions
        weights = head_weights(heads, width, key, value, config.init_scale, generator, positions)
        self.w_k, self.w_q, self.w_v, self.p = weights
        self.normalise = self.normalises if config.normalise is None else config.normalise
        self.convolution = (
            initial_weights((2, heads, key, config.convolution), 1 / config.convolution, generator)
            if config.convolution
            else None
        )
        horizons = torch.logspace(1, 3, heads)
        self.w_forget = nn.Parameter(torch.zeros(heads, width)) if config.forget else None
        self.b_forget = nn.Parameter((horizons - 1).log()) if config.forget else None
        beta = self.learns_beta if config.beta is None else config.beta
        self.w_beta = nn.Parameter(torch.zeros(heads, width)) if beta else None
        self.b_beta = nn.Parameter(torch.zeros(heads)) if beta else None
        self.norm = nn.Parameter(torch.ones(heads, value)) if config.output_norm else None
        self.w_gate = initial_weights((heads, value, width), 1 / width, generator) if config.output_gate else None
        self.query, self.key, self.value, self.pattern, self.read = (Point() for _ in range(5))

    @abstractmethod
    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, log_forget: Tensor | None, beta: Tensor | None, memory: Any
    ) -> tuple[Float[Tensor, "*batch heads t dv"], Any]:
        """What every head reads at every t, and the memory after the last."""

    @abstractmethod
    def init_memory(self, *batch: int) -> Any:
        """The memory before the first token."""

    def init_state(self, *batch: int) -> AttentionState:
        """The state before the first token, for tokens ``(*batch, width)``."""
        for size in batch:
            require_count("batch", size, least=0)
        key, taps = self.config.sizes[0], max(self.config.convolution - 1, 0)
        recent = self.p.new_zeros((*batch, 2, self.config.n_heads, taps, key))
        position = torch.zeros(batch, dtype=torch.int64, device=self.p.device)
        return AttentionState(position, recent, self.init_memory(*batch))

    def step(
        self, token: Float[Tensor, "*batch width"], state: AttentionState
    ) -> tuple[Float[Tensor, "*batch width"], AttentionState]:
        """What is added to one token, and the state after it."""
        check_state(state, AttentionState)
        moved, state = self.advance(as_sequence("token", token, state.batch), state)
        return moved.squeeze(-2), state

    def advance(
        self, tokens: Float[Tensor, "*batch t width"], state: AttentionState, mask: Tensor | None = None
    ) -> tuple[Float[Tensor, "*batch t width"], AttentionState]:
        """What is added to each token of a sequence that goes on from ``state``, and the state after it."""
        check_state(state, AttentionState)
        return self(tokens, state, mask)

    def forward(
        self,
        tokens: Float[Tensor, "*batch t width"],
        state: AttentionState | None = None,
        mask: Tensor | None = None,
    ) -> Any:
        """What is added to each token of a sequence; with a state, the state after it too: see `advance`.

        Args:
            tokens: of the sequence.
            state: of the tokens before; the sequence is whole if None, and no state is returned.
            mask: ``(*batch, t)``, False for padding, which comes before a sequence's first token.
        """
        self._check(tokens, state, mask)
        start, tokens = self.init_state(*tokens.shape[:-2]) if state is None else state, blanked(tokens, mask)
        q, k, recent = self._asked(tokens, self._times(tokens, state, mask), start.recent, mask)
        q, k = self.query(q), self.key(k)
        v = self.value(split_heads(tokens, self.w_v).to(q.dtype))  # autocast may leave them different
        gates = gates_without(mask, self.config.n_heads, *self._gates(tokens))
        y, memory = self._attended(tokens, q, k, v, *gates, start.memory)
        if looked_at(self.pattern):
            y = self._through_pattern(q, k, v, gates, start.memory)
        y = self.read(y)
        if self.norm is not None:
            y = functional.rms_norm(y, y.shape[-1:]) * self.norm[:, None, :]
        if self.w_gate is not None:
            y = y * functional.silu(split_heads(tokens, self.w_gate))
        moved = join_heads(y, self.p)
        if state is None:
            return moved
        length = tokens.shape[-2] if mask is None else mask.sum(-1)
        return moved, AttentionState(start.position + length, recent, memory)

    def products(self) -> Products:
        """W_KQ = W_K^T W_Q, over tokens and their positions, and W_PV = P W_V.

        They are all that a layer computes with unless it normalises, convolves or makes features of keys and queries.
        """
        return products_of(self)

    def __repr__(self) -> str:
        return module_text(self)

    def _check(self, tokens: Tensor, state: AttentionState | None, mask: Tensor | None) -> None:
        check_tokens("tokens", tokens, self.config.width, self.p, "AttentionConfig.width")
        if state is not None:
            check_state(state, AttentionState)
            check_batch(state.batch, tokens)
            check_like("state", state.recent, "the network", self.p)
        check_mask(mask, tokens)
        if not self.inside:
            check_padding(mask, None if state is None else state.position)

    def _attended(self, tokens: Tensor, *arguments: Any) -> tuple[Tensor, Any]:
        """What `attend` gives; where it refuses what is made of tokens that are not finite, these are blamed."""
        try:
            return self.attend(*arguments)
        except ArgumentError:
            check_finite(tokens, type(self).__name__)
            raise

    def _times(self, tokens: Tensor, state: AttentionState | None, mask: Tensor | None) -> Tensor:
        """How many tokens are before each, ``(t,)`` or ``(*batch, t)``."""
        own = torch.arange(tokens.shape[-2], device=tokens.device) if mask is None else mask.cumsum(-1) - 1
        return own.clamp(min=0) if state is None else own.clamp(min=0) + state.position[..., None]

    def _asked(
        self, tokens: Tensor, times: Tensor, recent: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys, and the last inputs of their convolutions."""
        if self.config.positions:
            places = sinusoidal(times, self.config.positions).to(tokens)
            tokens = torch.cat([tokens, places.expand(*tokens.shape[:-1], -1)], -1)
        both = torch.stack([split_heads(tokens, self.w_q), split_heads(tokens, self.w_k)])
        if mask is not None:  # their positions are no zeros
            both = both.masked_fill(~mask[..., None, :, None], 0)
        both, recent = self._convolved(both, recent)
        if self.config.dpfp:
            both = dpfp(both, self.config.dpfp)
        q, k = _normalised(both) if self.normalise else both
        return q, k, recent

    def _through_pattern(
        self, q: Tensor, k: Tensor, v: Tensor, gates: tuple[Tensor | None, Tensor | None], memory: Any
    ) -> Tensor:
        """What `attend` reads, by the matrix that mixes these values, and what the memory knew before them."""
        one = torch.eye(v.shape[-2]).to(v).expand(*v.shape[:-1], -1)
        emptied = None if memory is None else memory.emptied(v.shape[-2])
        pattern, _ = self.attend(q, k, one, *gates, emptied)
        known, _ = self.attend(q, k, torch.zeros_like(v), *gates, memory)
        return self.pattern(pattern) @ v + known

    def _convolved(self, both: Tensor, recent: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys through their convolutions over time, and the last inputs of these."""
        if self.convolution is None:
            return both, recent
        taps, t = self.convolution.shape[-1], both.shape[-2]
        row = torch.cat([recent.movedim(-4, 0), both], -2)
        kernel = self.convolution.reshape(2, *(1,) * (both.ndim - 4), *self.convolution.shape[1:])
        lagged = (kernel[..., None, :, lag] * row[..., taps - 1 - lag :, :][..., :t, :] for lag in range(taps))
        # A copy, lest the last few inputs hold on to the memory of the whole prompt.
        return functional.silu(functools.reduce(torch.add, lagged)), row[..., t:, :].movedim(0, -4).clone()

    def _gates(self, tokens: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """log gamma and beta, each ``(*batch, heads, t)``, in float32 at least: half precision has them 0 too soon."""
        log_forget = beta = None
        if self.w_beta is not None and self.b_beta is not None:
            beta = torch.sigmoid(_wide(rows_times(tokens, self.w_beta.mT) + self.b_beta)).clamp_min(_WEAKEST).mT
        if self.w_forget is not None and self.b_forget is not None:
            log_forget = functional.logsigmoid(_wide(rows_times(tokens, self.w_forget.mT) + self.b_forget)).mT
            if beta is not None:
                log_forget = log_forget + torch.log1p(-(1 - _CAP) * beta.square())
        return log_forget, beta


@register("attention", "softmax", over_context=softmax_attention)
class SoftmaxAttention(CausalAttention):
    """y_t = sum_i softmax_i(q_t . k_i / sqrt(width of k)) v_i, where forget factors and strengths multiply the weights.

    Decoding keeps the last ``window`` keys and values, or all.
    """

    def attend(self, q, k, v, log_forget, beta, memory):
        scale = q.shape[-1] ** 0.5 if self.normalise else None
        return causal_softmax_attention(
            q, k, v, scale=scale, log_forget=log_forget, beta=beta, window=self.config.window, state=memory,
            return_state=True,
        )  # fmt: skip

    def init_memory(self, *batch: int) -> SoftmaxState:
        _, value, features = self.config.sizes
        empty = (*batch, self.config.n_heads, 0)
        return SoftmaxState(*(self.p.new_zeros(shape) for shape in ((*empty, features), (*empty, value), empty)))


@register("attention", "linear", over_context=linear_attention)
class LinearAttention(CausalAttention):
    """y_t = G_t q_t with G_t = gamma_t G_{t-1} + beta_t v_t k_t^T. Decoding keeps G."""

    def attend(self, q, k, v, log_forget, beta, memory):
        return causal_linear_attention(q, k, v, log_forget=log_forget, beta=beta, state=memory, return_state=True)

    def init_memory(self, *batch: int) -> LinearState:
        return LinearState(self._no_map(*batch))

    def _no_map(self, *batch: int) -> Float[Tensor, "*batch heads dv dk"]:
        _, value, features = self.config.sizes
        return self.p.new_zeros((*batch, self.config.n_heads, value, features))


@register("attention", "delta")
class DeltaAttention(LinearAttention):
    """DeltaNet: G_t = gamma_t G_{t-1} + beta_t (v_t - gamma_t G_{t-1} k_t) k_t^T, gated where ``forget`` is set.

    Source: Schlag, Irie and Schmidhuber (2021); Yang, Kautz and Hatamizadeh (2024).
    """

    normalises = True
    learns_beta = True

    def attend(self, q, k, v, log_forget, beta, memory):
        return delta_attention(q, k, v, log_forget=log_forget, beta=beta, state=memory, return_state=True)

    def init_memory(self, *batch: int) -> DeltaState:
        return DeltaState(self._no_map(*batch))


@register("attention", "mesa")
class MesaAttention(CausalAttention):
    """The mesa-layer: y_t = W_t q_t with W_t the ridge regression of values on keys up to t. Decoding keeps H and G.

    See `mesascope.ops.mesa_attention`. The ridge is ridge_floor + softplus(a), with ``a`` learned.

    >>> layer = MesaAttention(AttentionConfig(width=8, n_heads=2))
    >>> layer(torch.ones(3, 5, 8)).shape
    torch.Size([3, 5, 8])
    """

    normalises = True

    def __init__(self, config: AttentionConfig, generator: torch.Generator | None = None) -> None:
        super().__init__(config, generator)
        shape = (config.n_heads, config.sizes[2]) if config.ridge_per_dimension else (config.n_heads,)
        self.ridge_above = nn.Parameter(torch.empty(shape))
        self.ridge = config.ridge
        self.ridge_decays = not config.forget if config.ridge_decays is None else config.ridge_decays

    @property
    def ridge(self) -> Tensor:
        """1/lambda of every head, or of every head and key dimension."""
        return self.config.ridge_floor + functional.softplus(self.ridge_above)

    @ridge.setter
    def ridge(self, value: float) -> None:
        require_number("ridge", value, above=self.config.ridge_floor)
        above = value - self.config.ridge_floor
        with torch.no_grad():
            self.ridge_above.fill_(above + math.log(-math.expm1(-above)))

    def attend(self, q, k, v, log_forget, beta, memory):
        return mesa_attention(
            q, k, v, ridge=self.ridge, log_forget=log_forget, beta=beta, ridge_decays=self.ridge_decays,
            state=memory, return_state=True,
        )  # fmt: skip

    def init_memory(self, *batch: int) -> None:
        """None, which lets the op begin with the ridge."""
        return


def _wide(tensor: Tensor) -> Tensor:
    """In float32 at least."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _normalised(vectors: Tensor) -> Tensor:
    """Vectors over their norms, and zero for zero, which float16 would not tell from its smallest numbers."""
    return functional.normalize(_wide(vectors), dim=-1).to(vectors.dtype)
