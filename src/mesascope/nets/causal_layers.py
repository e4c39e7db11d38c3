"""Causal attention layers by name: softmax, linear, delta and mesa."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch.nn import functional

from mesascope import ops
from mesascope.errors import require_number
from mesascope.nets.attention_config import AttentionConfig
from mesascope.nets.causal_attention import CausalAttention
from mesascope.nets.layers import UndecayedParameter
from mesascope.records import register
from mesascope.shapes import Tensor


@register("attention", "softmax", over_context=ops.softmax_attention)
class SoftmaxAttention(CausalAttention):
    """Softmax attention: y_t = sum_i softmax_i(q_t . k_i / sqrt(dk)) v_i.

    For normalised keys, scores are q_t . k_i sqrt(dk). Forget factors and input strengths multiply
    the weights. The state contains all keys and values, or the last ``window - 1``.
    """

    def attend(self, q, k, v, log_forget, beta, memory, keep):
        scale = q.shape[-1] ** 0.5 if self.normalise else None
        options = {"scale": scale, "log_forget": log_forget, "beta": beta, "window": self.config.window}
        return _pair(ops.causal_softmax_attention(q, k, v, state=memory, return_state=keep, **options), keep)

    def init_memory(self, *batch: int) -> ops.SoftmaxState:
        _, value, features = self.config.sizes
        empty = (*batch, self.config.kv_heads, 0)
        shapes = ((*empty, features), (*empty, value), empty)
        return ops.SoftmaxState(*(self._like.new_zeros(shape) for shape in shapes))


@register("attention", "linear", over_context=ops.linear_attention)
class LinearAttention(CausalAttention):
    """y_t = G_t q_t with G_t = gamma_t G_{t-1} + beta_t v_t k_t^T. The state contains G."""

    operation: ClassVar[Any] = staticmethod(ops.causal_linear_attention)
    memory: ClassVar[type[ops.LinearState] | type[ops.DeltaState]] = ops.LinearState

    def attend(self, q, k, v, log_forget, beta, memory, keep):
        options = {"log_forget": log_forget, "beta": beta, "state": memory}
        return _pair(self.operation(q, k, v, return_state=keep, **options), keep)

    def init_memory(self, *batch: int) -> ops.LinearState | ops.DeltaState:
        _, value, features = self.config.sizes
        return self.memory(self._like.new_zeros((*batch, self.config.kv_heads, value, features)))


@register("attention", "delta")
class DeltaAttention(LinearAttention):
    """DeltaNet: G_t = gamma_t G_{t-1} + beta_t (v_t - gamma_t G_{t-1} k_t) k_t^T, gated if ``forget`` is set.

    Source: Schlag, Irie and Schmidhuber (2021); Yang, Kautz and Hatamizadeh (2024).
    """

    normalises = True
    learns_beta = True
    operation = staticmethod(ops.delta_attention)
    memory = ops.DeltaState


@register("attention", "mesa")
class MesaAttention(CausalAttention):
    """The mesa-layer: y_t = W_t q_t, with W_t the ridge regression of values on keys up to t.

    The state contains H and G: see `mesascope.ops.mesa_attention`. The ridge is ridge_floor + softplus(a), with ``a``
    learned.

    >>> layer = MesaAttention(AttentionConfig(width=8, n_heads=2))
    >>> layer(torch.ones(3, 5, 8)).shape
    torch.Size([3, 5, 8])
    """

    normalises = True

    def __init__(self, config: AttentionConfig, generator: torch.Generator | None = None) -> None:
        super().__init__(config, generator)
        shape = (config.kv_heads, config.sizes[2]) if config.ridge_per_dimension else (config.kv_heads,)
        self.ridge_above = UndecayedParameter(torch.empty(shape))
        self.ridge = config.ridge
        self.ridge_kind = config.ridge_kind or ("constant" if config.forget else "decaying")

    @property
    def ridge(self) -> Tensor:
        """Ridge 1/lambda of every head, or of every head and key dimension."""
        return self.config.ridge_floor + functional.softplus(self.ridge_above)

    @ridge.setter
    def ridge(self, value: float) -> None:
        require_number("ridge", value, above=self.config.ridge_floor, most=1e30)
        above = value - self.config.ridge_floor
        with torch.no_grad():
            self.ridge_above.fill_(above + math.log(-math.expm1(-above)))

    def attend(self, q, k, v, log_forget, beta, memory, keep):
        if q.shape[-2] == 1 and isinstance(memory, ops.MesaState | ops.RootedMesaState):
            return self._attend_once(q, k, v, log_forget, beta, memory)
        return self._attend_many(q, k, v, log_forget, beta, memory, keep)

    def _attend_once(self, q, k, v, log_forget, beta, memory):
        """Decode one token from a root of H^{-1}, which is part of the state from then on."""
        gates = {"log_forget": log_forget, "beta": beta}
        once = {name: None if gate is None else gate.squeeze(-1) for name, gate in gates.items()}
        state = memory.rooted() if isinstance(memory, ops.MesaState) else memory
        y, after = ops.mesa_step(q.squeeze(-2), k.squeeze(-2), v.squeeze(-2), state, **once, **self._solving())
        return y[..., None, :], after

    def attend_last(self, count, q, k, v, log_forget, beta, memory, keep):
        """`attend` for the last ``count`` tokens; earlier tokens are only added to sums, without solving systems."""
        first = q.shape[-2] - count
        (_, q), (old_k, k), (old_v, v) = (part.tensor_split([first], -2) for part in (q, k, v))
        (old_forget, log_forget), (old_beta, beta) = (
            (None, None) if gate is None else gate.tensor_split([first], -1) for gate in (log_forget, beta)
        )
        options = {"log_forget": old_forget, "beta": old_beta, "state": memory, **self._solving()}
        return self._attend_many(q, k, v, log_forget, beta, ops.mesa_state(old_k, old_v, **options), keep)

    def _attend_many(self, q, k, v, log_forget, beta, memory, keep):
        options = {"log_forget": log_forget, "beta": beta, "state": memory, **self._solving()}
        return _pair(ops.mesa_attention(q, k, v, return_state=keep, **options), keep)

    def _solving(self) -> dict[str, Any]:
        ridge = self.ridge.repeat_interleave(self.config.group, 0)
        return {"ridge": ridge, "ridge_kind": self.ridge_kind}

    def init_memory(self, *batch: int) -> None:
        """None: `mesa_attention` then starts from the ridge."""
        return


def _pair(outputs: Any, keep: bool) -> tuple[Tensor, Any]:
    """Outputs and a state, which is None if it was not kept."""
    return outputs if keep else (outputs, None)
