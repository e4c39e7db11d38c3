"""What causal attention layers over sequences share: one signature and one way to decode."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional

from mesascope.errors import ArgumentError, require_count, require_instance
from mesascope.nets.attention_config import AttentionConfig
from mesascope.nets.checks import as_sequence, check_batch, check_finite, check_like, check_tokens
from mesascope.nets.layers import (
    Products,
    head_weights,
    initial_weights,
    linear,
    module_text,
    products_of,
)
from mesascope.nets.padding import blanked, check_mask, check_padding, gates_without, places
from mesascope.nets.points import Point, looked_at
from mesascope.nets.states import AttentionState, check_state
from mesascope.nets.tokens import rotated, sinusoidal
from mesascope.ops import dpfp
from mesascope.shapes import Float, Tensor

__all__ = ["CausalAttention", "UndecayedParameter"]

# Of the normalisation of outputs, as in other libraries.
_EPS = 1e-5
# What is left of an input strength that underflows, so that its logarithm exists.
_WEAKEST = 1e-30


class CausalAttention(nn.Module, ABC):
    """What a layer of heads adds to each token: sum_h P_h y_h,t, where y_h,t attends to tokens up to t.

    Queries, keys and values are made by the linear modules ``q_proj``, ``k_proj`` and ``v_proj``, and ``o_proj`` sums
    what heads read; where they are learned, ``forget_proj`` and ``beta_proj`` make the gates and ``gate_proj`` the
    output's. The layer is called with a sequence of tokens. `init_state` and `step` decode one token at a time, to the
    same numbers, and `advance` a part of a sequence. Its points ``query``, ``key``, ``value``, ``pattern`` and ``read``
    are there to be hooked: see `mesascope.nets.points`. Parameters with ``_no_weight_decay`` set should not decay.

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
        (key, value, _), heads, width = config.sizes, config.n_heads, config.width
        w_k, w_q, w_v, p = head_weights(heads, width, key, value, config.init_scale, generator, config.positions)
        own = config.kv_heads
        self.q_proj, self.k_proj, self.v_proj = (linear(w.flatten(0, 1)) for w in (w_q, w_k[:own], w_v[:own]))
        self.o_proj = linear(p.transpose(0, 1).flatten(1))
        self.normalise = self.normalises if config.normalise is None else config.normalise
        self.convolution = None
        if config.convolution:
            convolved = [self.q_proj, self.k_proj, self.v_proj][: 3 if config.convolve_values else 2]
            channels = sum(part.out_features for part in convolved)
            self.convolution = initial_weights((channels, config.convolution), 1 / config.convolution, generator)
        idle, horizons = torch.zeros(config.kv_heads, width), torch.logspace(1, 3, config.kv_heads)
        self.forget_proj = linear(idle, (horizons - 1).log()) if config.forget else None
        learned = self.learns_beta if config.beta is None else config.beta
        self.beta_proj = linear(idle, idle[:, 0].clone()) if learned else None
        for gate in (self.forget_proj, self.beta_proj):
            if gate is not None:
                gate.bias = UndecayedParameter(gate.bias.detach())
        self.norm = nn.Parameter(torch.ones(heads, value)) if config.output_norm else None
        gated = (heads * value, width)
        self.gate_proj = linear(initial_weights(gated, 1 / width, generator)) if config.output_gate else None
        self.query, self.key, self.value, self.pattern, self.read = (Point() for _ in range(5))

    @abstractmethod
    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, log_forget: Tensor | None, beta: Tensor | None, memory: Any, keep: bool
    ) -> tuple[Float[Tensor, "*batch heads t dv"], Any]:
        """What every head reads at every t, and the memory after the last, if it is to be kept.

        ``memory`` is what the tokens before left, None where there are none.
        """

    def attend_last(self, count: int, q: Tensor, *others: Any) -> tuple[Float[Tensor, "*batch heads t dv"], Any]:
        """`attend`, for the last ``count`` tokens alone."""
        y, memory = self.attend(q, *others)
        return y[..., y.shape[-2] - count :, :], memory

    @abstractmethod
    def init_memory(self, *batch: int) -> Any:
        """The memory before the first token."""

    @property
    def w_q(self) -> Float[Tensor, "heads key width"]:
        """W_Q, as a view of the weights of ``q_proj``; changes to it are changes of these."""
        return self.q_proj.weight.unflatten(0, (self.config.n_heads, -1))

    @property
    def w_k(self) -> Float[Tensor, "kv_heads key width"]:
        """W_K, as a view of the weights of ``k_proj``."""
        return self.k_proj.weight.unflatten(0, (self.config.kv_heads, -1))

    @property
    def w_v(self) -> Float[Tensor, "kv_heads value width"]:
        """W_V, as a view of the weights of ``v_proj``."""
        return self.v_proj.weight.unflatten(0, (self.config.kv_heads, -1))

    @property
    def p(self) -> Float[Tensor, "heads width value"]:
        """P, as a view of the weights of ``o_proj``."""
        return self.o_proj.weight.unflatten(1, (self.config.n_heads, -1)).transpose(0, 1)

    def init_state(self, *batch: int) -> AttentionState:
        """The state before the first token, for tokens ``(*batch, width)``."""
        for size in batch:
            require_count("batch", size, least=0)
        taps, channels = (1, self.k_proj.out_features) if self.config.key_shift else (0, 0)
        if self.convolution is not None:
            channels, taps = self.convolution.shape[0], self.convolution.shape[1] - 1
        recent = self._like.new_zeros((*batch, taps, channels))
        position = torch.zeros(batch, dtype=torch.int64, device=self._like.device)
        return AttentionState(position, recent, self.init_memory(*batch))

    def step(
        self, token: Float[Tensor, "*batch width"], state: AttentionState
    ) -> tuple[Float[Tensor, "*batch width"], AttentionState]:
        """What is added to one token, and the state after it."""
        check_state(state, AttentionState)
        moved, state = self.advance(as_sequence("token", token, state.batch), state)
        return moved.squeeze(-2), state

    def advance(
        self,
        tokens: Float[Tensor, "*batch t width"],
        state: AttentionState,
        mask: Tensor | None = None,
        last: int | None = None,
    ) -> tuple[Float[Tensor, "*batch last width"], AttentionState]:
        """What is added to each token of a sequence that goes on from ``state``, and the state after it."""
        check_state(state, AttentionState)
        return self(tokens, state, mask, last)

    def forward(
        self,
        tokens: Float[Tensor, "*batch t width"],
        state: AttentionState | None = None,
        mask: Tensor | None = None,
        last: int | None = None,
    ) -> Any:
        """What is added to each token of a sequence; with a state, the state after it too: see `advance`.

        Args:
            tokens: of the sequence.
            state: of the tokens before; the sequence is whole if None, and no state is returned.
            mask: ``(*batch, t)``, False for padding, which comes before a sequence's first token.
            last: how many of the last tokens are told; all if None.
        """
        self._check(tokens, state, mask, last)
        start, tokens = self.init_state(*tokens.shape[:-2]) if state is None else state, blanked(tokens, mask)
        times = places(tokens.shape[-2], mask, None if state is None else state.position, tokens.device)
        q, k, v, recent = self._heads(tokens, times, start.recent, mask)
        q, k, v = self.query(q), self.key(k), self.value(v)
        gates = gates_without(mask, self.config.kv_heads, *self.gates(tokens))
        keep = state is not None
        shared = [*self._shared(q, k, v, *gates, start.memory if keep else None), keep]
        told = slice(0 if last is None else max(tokens.shape[-2] - last, 0), None)
        y, memory = self._attended(tokens, told.start, q, *shared)
        if looked_at(self.pattern):
            y = self._through_pattern(q, *shared)[..., told, :]
        moved = self.o_proj(self._read(y, tokens[..., told, :]).transpose(-3, -2).flatten(-2))
        if state is None:
            return moved
        length = tokens.shape[-2] if mask is None else mask.sum(-1)
        return moved, AttentionState(start.position + length, recent, self._unshared(q, memory))

    def gates(self, tokens: Float[Tensor, "*batch t width"]) -> tuple[Tensor | None, Tensor | None]:
        """log gamma and beta, each ``(*batch, heads, t)``, in float32 at least: half precision has them 0 too soon."""
        log_forget = beta = None
        if self.beta_proj is not None:
            beta = torch.sigmoid(_wide(self.beta_proj(tokens))).clamp_min(_WEAKEST).mT
        if self.forget_proj is not None:
            log_forget = functional.logsigmoid(_wide(self.forget_proj(tokens))).mT
            if beta is not None:
                log_forget = log_forget + torch.log1p(-(1 - self.config.forget_cap) * beta.square())
        return log_forget, beta

    def products(self) -> Products:
        """W_KQ = W_K^T W_Q, over tokens and their positions, and W_PV = P W_V.

        They are all that a layer computes with unless it normalises, convolves or makes features of keys and queries.
        """
        return products_of(self, self.config.group)

    def __repr__(self) -> str:
        return module_text(self)

    @property
    def _like(self) -> Tensor:
        """Of the dtype and on the device of the weights, whatever stands in for the linear modules."""
        return next((weight for weight in self.parameters() if weight.is_floating_point()), torch.empty(0))

    def _check(self, tokens: Tensor, state: AttentionState | None, mask: Tensor | None, last: int | None) -> None:
        if last is not None:
            last = require_count("last", last, least=0)
        check_tokens("tokens", tokens, self.config.width, self._like, "AttentionConfig.width")
        if state is not None:
            check_state(state, AttentionState)
            check_batch(state.batch, tokens)
            check_like("state", state.recent, "the network", self._like)
        check_mask(mask, tokens)
        if self.config.check and not self.inside:
            check_padding(mask, None if state is None else state.position)

    def _attended(self, tokens: Tensor, first: int, *arguments: Any) -> tuple[Tensor, Any]:
        """What `attend` gives from ``first`` on; if it refuses what is made of tokens not finite, these are blamed."""
        try:
            return self.attend_last(tokens.shape[-2] - first, *arguments) if first else self.attend(*arguments)
        except ArgumentError:
            check_finite(tokens, type(self).__name__)
            raise

    def _heads(
        self, tokens: Tensor, times: Tensor, recent: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries, keys and values, and the last inputs of their convolutions."""
        placed = tokens
        if self.config.positions:
            places = sinusoidal(times, self.config.positions).to(tokens)
            placed = torch.cat([tokens, places.expand(*tokens.shape[:-1], -1)], -1)
        made = [self.q_proj(placed), self.k_proj(placed), self.v_proj(tokens)]
        if mask is not None:  # their positions are no zeros
            made = [part.masked_fill(~mask[..., None], 0) for part in made]
        made, recent = self._shifted(made, recent) if self.config.key_shift else self._convolved(made, recent)
        counts = (self.config.n_heads, self.config.kv_heads, self.config.kv_heads)
        q, k, v = (part.unflatten(-1, (n, -1)).transpose(-3, -2) for part, n in zip(made, counts, strict=True))
        if self.config.rotary:
            q, k = rotated(q, times), rotated(k, times)
        if self.config.dpfp:
            q, k = dpfp(q, self.config.dpfp), dpfp(k, self.config.dpfp)
        if self.normalise:
            q, k = _normalised(q), _normalised(k)
        return q, k, v.to(q.dtype), recent  # autocast may leave them different

    def _shifted(self, made: list[Tensor], recent: Tensor) -> tuple[list[Tensor], Tensor]:
        """Queries, the keys of the tokens before, and values; and the last key."""
        q, k, v = made
        row = torch.cat([recent, k], -2)
        return [q, row[..., :-1, :], v], row[..., -1:, :].clone()

    def _convolved(self, made: list[Tensor], recent: Tensor) -> tuple[list[Tensor], Tensor]:
        """Queries, keys and perhaps values through their convolutions over time, and the last inputs of these."""
        if self.convolution is None:
            return made, recent
        count, taps, t = 3 if self.config.convolve_values else 2, self.convolution.shape[-1], made[0].shape[-2]
        row = torch.cat([recent, torch.cat(made[:count], -1)], -2)
        lagged = (self.convolution[:, lag] * row[..., taps - 1 - lag :, :][..., :t, :] for lag in range(taps))
        convolved = functional.silu(functools.reduce(torch.add, lagged)).split(
            [part.shape[-1] for part in made[:count]], -1
        )
        # A copy, lest the last few inputs hold on to the memory of the whole prompt.
        return [*convolved, *made[count:]], row[..., t:, :].clone()

    def _shared(self, q: Tensor, *own: Any) -> list[Any]:
        """Keys, values, gates and a memory, as each query head's own: those of a group are the same."""
        group, axis = self.config.group, q.ndim - 3

        def repeated(part: Any) -> Any:
            if isinstance(part, tuple):
                return type(part)(*map(repeated, part))
            return None if part is None else part.repeat_interleave(group, axis)

        return [repeated(part) for part in own] if group > 1 else list(own)

    def _unshared(self, q: Tensor, memory: Any) -> Any:
        """A memory of every query head, as one of each group."""
        group, axis = self.config.group, q.ndim - 3
        if group == 1:
            return memory
        return type(memory)(*(part.unflatten(axis, (-1, group)).select(axis + 1, 0) for part in memory))

    def _read(self, y: Float[Tensor, "*batch heads t dv"], tokens: Tensor) -> Float[Tensor, "*batch heads t dv"]:
        """What heads read, normalised and gated."""
        y = self.read(y)
        if self.norm is not None:
            y = functional.rms_norm(y, y.shape[-1:], eps=_EPS) * self.norm[:, None, :]
        if self.gate_proj is not None:
            y = y * functional.silu(self.gate_proj(tokens)).unflatten(-1, (y.shape[-3], -1)).transpose(-3, -2)
        return y

    def _through_pattern(
        self, q: Tensor, k: Tensor, v: Tensor, log_forget: Tensor | None, beta: Tensor | None, memory: Any, keep: bool
    ) -> Tensor:
        """What `attend` reads, by the matrix that mixes these values, and what the memory knew before them."""
        one = torch.eye(v.shape[-2]).to(v).expand(*v.shape[:-1], -1)
        emptied = None if memory is None else memory.emptied(v.shape[-2])
        pattern, _ = self.attend(q, k, one, log_forget, beta, emptied, False)
        known, _ = self.attend(q, k, torch.zeros_like(v), log_forget, beta, memory, False)
        return self.pattern(pattern) @ v + known


class UndecayedParameter(nn.Parameter):
    """A parameter that weight decay would move away from where it should start, and that trainers leave out of it.

    They know it by ``_no_weight_decay``, as that of other libraries; copies keep it.
    """

    _no_weight_decay = True


def _wide(tensor: Tensor) -> Tensor:
    """In float32 at least."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _normalised(vectors: Tensor) -> Tensor:
    """Vectors over their norms, and zero for zero, which float16 would not tell from its smallest numbers."""
    return functional.normalize(_wide(vectors), dim=-1).to(vectors.dtype)
