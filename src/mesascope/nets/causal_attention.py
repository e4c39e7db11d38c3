"""Base class of causal attention layers: heads, gates and decoding."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional
from torch.utils._pytree import tree_map_only

from mesascope.errors import ArgumentError, refuse, require_count, require_instance
from mesascope.nets.attention_config import AttentionConfig
from mesascope.nets.causal import CausalNet, positions_of, unpadded_gates, zero_padding
from mesascope.nets.checks import check_batch, check_finite, check_like, check_mask, check_state, check_tokens
from mesascope.nets.layers import (
    Products,
    UndecayedParameter,
    head_weights,
    initial_weights,
    linear,
    module_text,
    products_of,
)
from mesascope.nets.points import HookPoint, must_be_called
from mesascope.nets.states import AttentionState
from mesascope.ops import SoftmaxState, dpfp, rotated, sinusoidal
from mesascope.shapes import Float, Tensor

# Epsilon in the normalisation of outputs, as in other libraries.
_EPS = 1e-5
# Lower bound on beta that keeps its logarithm finite.
_WEAKEST = 1e-30


class CausalAttention(CausalNet, ABC):
    """Causal attention: returns sum_h P_h y_h,t for token t, with y_h,t the output of head h.

    Linear modules ``q_proj``, ``k_proj`` and ``v_proj`` compute queries, keys and values.
    ``o_proj`` sums over heads. ``forget_proj``, ``beta_proj`` and ``gate_proj`` compute gates.

    The layer is called with a sequence of tokens. `init_state` and `step` decode one token at a time with the same
    results, and `advance` processes a part of a sequence. Its points ``query``, ``key``, ``value``, ``pattern`` and
    ``read`` can be hooked: see `mesascope.nets.points`. Optimisers should not decay parameters that have the
    attribute ``_no_weight_decay``.
    """

    state_type = AttentionState
    normalises: ClassVar[bool] = False
    learns_beta: ClassVar[bool] = False

    inside = False
    """True within a transformer, which checks padding once for all of its layers."""

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
            channels = self.q_proj.out_features + self.k_proj.out_features
            self.convolution = initial_weights((channels, config.convolution), 1 / config.convolution, generator)
        idle, horizons = torch.zeros(config.kv_heads, width), torch.logspace(1, 3, config.kv_heads)
        self.forget_proj = linear(idle, (horizons - 1).log()) if config.forget else None
        learned = self.learns_beta if config.beta is None else config.beta
        self.beta_proj = linear(idle, torch.zeros(config.kv_heads)) if learned else None
        for gate in (self.forget_proj, self.beta_proj):
            if gate is not None:
                gate.bias = UndecayedParameter(gate.bias.detach())
        self.norm = nn.Parameter(torch.ones(heads, value)) if config.output_norm else None
        gated = (heads * value, width)
        self.gate_proj = linear(initial_weights(gated, 1 / width, generator)) if config.output_gate else None
        self.query, self.key, self.value, self.pattern, self.read = (HookPoint() for _ in range(5))

    @abstractmethod
    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, log_forget: Tensor | None, beta: Tensor | None, memory: Any, keep: bool
    ) -> tuple[Float[Tensor, "*batch heads t dv"], Any]:
        """Outputs of all heads at every t, and with ``keep`` the memory after the last token.

        ``memory`` is the memory after the previous tokens; None if there are none.
        """

    def attend_last(self, count: int, q: Tensor, *others: Any) -> tuple[Float[Tensor, "*batch heads t dv"], Any]:
        """`attend` for only the last ``count`` tokens."""
        y, memory = self.attend(q, *others)
        return y[..., y.shape[-2] - count :, :], memory

    @abstractmethod
    def init_memory(self, *batch: int) -> Any:
        """The memory before the first token."""

    @property
    def w_q(self) -> Float[Tensor, "heads key width"]:
        """W_Q, as a view of the weights of ``q_proj``; in-place changes to it change the layer."""
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
        """Return the state before the first token, for tokens ``(*batch, width)``."""
        for size in batch:
            require_count("batch", size, least=0)
        recent = self._like.new_zeros((*batch, *self._recent))
        position = torch.zeros(batch, dtype=torch.int64, device=self._like.device)
        return AttentionState(position, recent, self.init_memory(*batch))

    def forward(
        self,
        tokens: Float[Tensor, "*batch t width"],
        state: AttentionState | None = None,
        mask: Tensor | None = None,
        last: int | None = None,
    ) -> Any:
        """Output for each token of a sequence; with a state, also the state after the sequence: see `advance`."""
        self._check(tokens, state, mask, last)
        tokens, length = zero_padding(tokens, mask), tokens.shape[-2]
        times = positions_of(length, mask, None if state is None else state.position, tokens.device)
        q, k, v, recent = self._heads(tokens, times, None if state is None else state.recent, mask)
        q, k, v = self.query(q), self.key(k), self.value(v)
        gates = unpadded_gates(mask, self.config.kv_heads, *self.gates(tokens))
        shared = [*self._shared(q, k, v, *gates, None if state is None else state.memory), state is not None]
        first = 0 if last is None else max(length - last, 0)
        y, memory = self._attended(tokens, first, q, *shared)
        if must_be_called(self.pattern):
            y = self._through_pattern(q, *shared)[..., first:, :]
        moved = self.o_proj(self._read(y, tokens[..., first:, :]).transpose(-3, -2).flatten(-2))
        if state is None:
            return moved
        count = length if mask is None else mask.sum(-1)
        return moved, AttentionState(state.position + count, recent, self._unshared(q, memory))  # type: ignore[arg-type]

    def gates(self, tokens: Float[Tensor, "*batch t width"]) -> tuple[Tensor | None, Tensor | None]:
        """Gates log gamma and beta ``(*batch, kv_heads, t)``, at least float32, as float16 underflows."""
        log_forget = beta = None
        if self.beta_proj is not None:
            beta = torch.sigmoid(_wide(self.beta_proj(tokens))).clamp_min(_WEAKEST).mT
        if self.forget_proj is not None:
            log_forget = functional.logsigmoid(_wide(self.forget_proj(tokens))).mT
            if beta is not None:
                log_forget = log_forget + torch.log1p(-(1 - self.config.forget_cap) * beta.square())
        return log_forget, beta

    def products(self) -> Products:
        """Products W_KQ = W_K^T W_Q, over tokens and their positions, and W_PV = P W_V.

        Linear attention without gates, norms and other options depends on these alone.
        """
        return products_of(self, self.config.group)

    def __repr__(self) -> str:
        return module_text(self)

    @property
    def _recent(self) -> tuple[int, int]:
        """Number and width of the rows that a state keeps for the convolution or the shifted keys."""
        if self.convolution is not None:
            return self.convolution.shape[1] - 1, self.convolution.shape[0]
        return (1, self.k_proj.out_features) if self.config.key_shift else (0, 0)

    @property
    def _like(self) -> Tensor:
        """A weight with the layer's dtype and device, even if other modules replace the linear ones."""
        return next((weight for weight in self.parameters() if weight.is_floating_point()), torch.empty(0))

    def _check(self, tokens: Tensor, state: AttentionState | None, mask: Tensor | None, last: int | None) -> None:
        if last is not None:
            last = require_count("last", last, least=0)
        check_tokens("tokens", tokens, self.config.width, self._like, "AttentionConfig.width")
        if state is not None:
            check_state(state, AttentionState)
            check_batch(state.batch, tokens)
            if state.recent.shape[-2:] != self._recent:
                found = tuple(state.recent.shape[-2:])
                refuse("state", f"be of this layer, with {self._recent} recent rows", found, "begin with init_state")
            check_like("state", state.recent, "the network", self._like)
        check_mask(mask, tokens, None if state is None else state.position, gaps=not self.inside)

    def _attended(self, tokens: Tensor, first: int, *arguments: Any) -> tuple[Tensor, Any]:
        """`attend` from ``first`` on; if it fails because tokens are not finite, the error states this."""
        try:
            return self.attend_last(tokens.shape[-2] - first, *arguments) if first else self.attend(*arguments)
        except ArgumentError:
            check_finite(tokens, type(self).__name__)
            raise

    def _heads(
        self, tokens: Tensor, times: Tensor, recent: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Queries, keys and values, and the last inputs of the convolution or the last key (None without a state)."""
        positioned = tokens
        if self.config.positions:
            positions = sinusoidal(times, self.config.positions).to(tokens)
            positioned = torch.cat([tokens, positions.expand(*tokens.shape[:-1], -1)], -1)
        made = [self.q_proj(positioned), self.k_proj(positioned), self.v_proj(tokens)]
        if mask is not None:  # position encodings at padding are not zero
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
        return q, k.to(q.dtype), v.to(q.dtype), recent  # under autocast dtypes may differ

    def _shifted(self, made: list[Tensor], recent: Tensor | None) -> tuple[list[Tensor], Tensor | None]:
        """Queries, keys of the previous tokens, and values; and the last key."""
        q, k, v = made
        row, recent = _continued(k, recent, 1, self._like.dtype)
        return [q, row[..., :-1, :], v], recent

    def _convolved(self, made: list[Tensor], recent: Tensor | None) -> tuple[list[Tensor], Tensor | None]:
        """Queries and keys after the convolution (if any), and values; and its last inputs."""
        if self.convolution is None:
            return made, recent
        q, k, v = made
        taps, t = self.convolution.shape[-1], q.shape[-2]
        row, recent = _continued(torch.cat([q, k], -1), recent, taps - 1, self._like.dtype)
        lagged = (self.convolution[:, lag] * row[..., taps - 1 - lag :, :][..., :t, :] for lag in range(taps))
        convolved = functional.silu(functools.reduce(torch.add, lagged))
        return [*convolved.split([q.shape[-1], k.shape[-1]], -1), v], recent

    def _shared(self, q: Tensor, *own: Any) -> list[Any]:
        """Keys, values, gates and a memory, repeated for all query heads of a group."""
        group, axis = self.config.group, q.ndim - 3
        if group == 1:
            return list(own)
        return tree_map_only(Tensor, lambda part: part.repeat_interleave(group, axis), list(own))

    def _unshared(self, q: Tensor, memory: Any) -> Any:
        """Inverse of `_shared` for a memory: one head for each group."""
        group, axis = self.config.group, q.ndim - 3
        if group == 1:
            return memory
        return tree_map_only(Tensor, lambda part: part.unflatten(axis, (-1, group)).select(axis + 1, 0), memory)

    def _read(self, y: Float[Tensor, "*batch heads t dv"], tokens: Tensor) -> Float[Tensor, "*batch heads t dv"]:
        """Outputs of all heads, normalised and gated."""
        y = self.read(y)
        if self.norm is not None:
            y = functional.rms_norm(y, y.shape[-1:], eps=_EPS) * self.norm[:, None, :]
        if self.gate_proj is not None:
            y = y * functional.silu(self.gate_proj(tokens)).unflatten(-1, (y.shape[-3], -1)).transpose(-3, -2)
        return y

    def _through_pattern(
        self, q: Tensor, k: Tensor, v: Tensor, log_forget: Tensor | None, beta: Tensor | None, memory: Any, keep: bool
    ) -> Tensor:
        """`attend` computed as the attention pattern times the values, plus the contribution of the memory."""
        one = torch.eye(v.shape[-2]).to(v).expand(*v.shape[:-1], -1)
        emptied = memory  # without values
        if isinstance(memory, SoftmaxState):
            emptied = memory._replace(v=memory.v.new_zeros((*memory.v.shape[:-1], v.shape[-2])))
        elif memory is not None:
            emptied = memory._replace(G=memory.G.new_zeros((*memory.G.shape[:-2], v.shape[-2], memory.G.shape[-1])))
        pattern, _ = self.attend(q, k, one, log_forget, beta, emptied, False)
        known, _ = self.attend(q, k, torch.zeros_like(v), log_forget, beta, memory, False)
        return self.pattern(pattern) @ v + known


def _continued(own: Tensor, recent: Tensor | None, count: int, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Prepend ``count`` recent rows, and return the result and its last ``count`` rows.

    Without recent rows, prepend zeros, and return None for the last rows. The last rows are a copy, so that the whole
    prompt is not kept in memory. Under autocast, the dtype of ``own`` may differ from ``dtype``, that of recent rows.
    """
    if recent is None:
        return functional.pad(own.to(torch.promote_types(own.dtype, dtype)), (0, 0, count, 0)), None
    row = torch.cat([recent, own], -2)
    return row, row[..., row.shape[-2] - count :, :].clone()


def _wide(tensor: Tensor) -> Tensor:
    """Convert to float32 if the precision is lower."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _normalised(vectors: Tensor) -> Tensor:
    """Vectors divided by their norms; zero vectors stay zero. Computed at least in float32, as float16 underflows."""
    return functional.normalize(_wide(vectors), dim=-1).to(vectors.dtype)
