"""Fast weights: causal attention whose memory is one matrix G per head, updated by an additive or a delta rule.

    linear   G_t = gamma_t G_{t-1} + beta_t v_t k_t^T
    delta    G_t = gamma_t G_{t-1} + beta_t (v_t - gamma_t G_{t-1} k_t) k_t^T                y_t = G_t q_t

In a chunk that starts from G_0, with g_t the product of its forget factors, both rules have the form

    G_t = g_t G_0 + sum_{i<=t} (g_t/g_i) u_i k_i^T,

with u_i = beta_i v_i for the linear rule. For the delta rule, u_i + beta_i sum_{j<i} (g_i/g_j) (k_j . k_i) u_j =
beta_i (v_i - g_i G_0 k_i), a triangular system. Ratios g_t/g_i are at most 1 and cannot overflow.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from mesascope.errors import require_count
from mesascope.ops.checks import require_attention, require_finite, require_state, require_values
from mesascope.ops.chunks import cut, decay_weights, decays
from mesascope.shapes import Float, Tensor


class LinearState(NamedTuple):
    """State after a sequence under the additive rule."""

    G: Float[Tensor, "*batch heads dv dk"]


class DeltaState(NamedTuple):
    """State after a sequence under the delta rule."""

    G: Float[Tensor, "*batch heads dv dk"]


def causal_linear_attention(
    q: Float[Tensor, "*batch heads t dk"],
    k: Float[Tensor, "*batch heads t dk"],
    v: Float[Tensor, "*batch heads t dv"],
    *,
    log_forget: Float[Tensor, "*batch heads t"] | None = None,
    beta: Float[Tensor, "*batch heads t"] | None = None,
    chunk: int = 64,
    state: LinearState | None = None,
    return_state: bool = False,
) -> Any:
    """Linear attention: y_t = G_t q_t, G_t = gamma_t G_{t-1} + beta_t v_t k_t^T, in chunks of time.

    Args:
        q, k, v: bfloat16 and float16 are computed in float32.
        log_forget: logarithm of the forget factors gamma, at most 0, -inf to forget everything; None forgets nothing.
        beta: input strength of each pair, in [0, 1], 0 for padding; None is 1.
        chunk: number C of tokens in a chunk; the cost is 2 T (C + d) d multiplications.
        state: the state after the previous tokens.
        return_state: also return the `LinearState` after the last token.

    Source: von Oswald (2024), eq. 3.2, and section 3.7.1 for forgetting.

    >>> q = k = torch.eye(2)[None]
    >>> causal_linear_attention(q, k, torch.tensor([[[3.0], [5.0]]]))
    tensor([[[3.],
             [5.]]])
    """
    return _fast_weights(q, k, v, log_forget, beta, chunk, state, return_state, LinearState)


def delta_attention(
    q: Float[Tensor, "*batch heads t dk"],
    k: Float[Tensor, "*batch heads t dk"],
    v: Float[Tensor, "*batch heads t dv"],
    *,
    log_forget: Float[Tensor, "*batch heads t"] | None = None,
    beta: Float[Tensor, "*batch heads t"] | None = None,
    chunk: int = 64,
    state: DeltaState | None = None,
    return_state: bool = False,
) -> Any:
    """Delta rule: y_t = G_t q_t, G_t = gamma_t G_{t-1} + beta_t (v_t - gamma_t G_{t-1} k_t) k_t^T.

    Each token takes one gradient step of size beta_t on 1/2 |v_t - G k_t|^2. With |k_t| = 1 the step is stable, and
    with beta_t = 1 it replaces the value stored for k_t. Arguments are those of `causal_linear_attention`, with a
    `DeltaState`. Cost: 3 T (C + d) d multiplications and a triangular system for each chunk.

    Raises:
        NumericalError: an output or state is not finite; the rule can diverge if |k_t| > 1.

    Source: Schlag, Irie and Schmidhuber (2021); with forgetting Yang, Kautz and Hatamizadeh (2024).

    >>> k = torch.tensor([[[1.0, 0.0], [1.0, 0.0]]])
    >>> delta_attention(k, k, torch.tensor([[[3.0], [5.0]]]))
    tensor([[[3.],
             [5.]]])
    """
    return _fast_weights(q, k, v, log_forget, beta, chunk, state, return_state, DeltaState)


def _fast_weights(
    q: Tensor, k: Tensor, v: Tensor, log_forget: Tensor | None, beta: Tensor | None, chunk: int, state: Any,
    return_state: bool, kind: type[LinearState] | type[DeltaState],
) -> Any:  # fmt: skip
    chunk = require_count("chunk", chunk)
    if state is not None:
        require_state(state, kind)
    start = None if state is None else state.G
    arguments = {"q": q, "k": k, "v": v, "log_forget": log_forget, "beta": beta, "state.G": start}
    require_attention(arguments)
    require_values(arguments, q.shape[-2])
    dtype = torch.promote_types(q.dtype, torch.float32)
    with torch.autocast(q.device.type, enabled=False):
        parts = (None if part is None else part.to(dtype) for part in (q, k, v, log_forget, beta, start))
        y, G = _in_chunks(*parts, chunk, delta=kind is DeltaState, keep=return_state)  # type: ignore[arg-type]
    y = y.to(v.dtype)
    require_finite([y, G] if return_state else [y])
    return (y, kind(G)) if return_state else y


def _in_chunks(
    q: Tensor, k: Tensor, v: Tensor, log_forget: Tensor | None, beta: Tensor | None, state: Tensor | None, chunk: int,
    *, delta: bool, keep: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Outputs and, if ``keep``, G after the last token."""
    t, dk, dv = q.shape[-2], q.shape[-1], v.shape[-1]
    size = min(chunk, max(t, 1))
    queries, keys, values = (cut(part.flatten(0, -3), size) for part in (q, k, v))
    gates, strengths = (
        keys.new_full((1, 1, size, 1), idle) if part is None else cut(part.flatten(0, -2)[..., None], size)
        for part, idle in ((log_forget, 0.0), (beta, 1.0))
    )
    weights, decay = decay_weights(gates), decays(gates)
    written, against = values if beta is None else strengths * values, None
    if delta:
        system = strengths * weights * (keys @ keys.mT)  # the solver reads only entries below the diagonal
        both = torch.cat([written, strengths * decay * keys], -1)
        solved = torch.linalg.solve_triangular(system, both, upper=False, unitriangular=True)
        written, against = solved.split((dv, dk), -1)
    count, G = keys.shape[1], q.new_zeros(keys.shape[0], dv, dk) if state is None else state.flatten(0, -3)
    whole, left = (part.expand(-1, count, -1, -1) for part in (decay[:, :, -1:], weights[:, :, -1, :, None]))
    starts, additions = [], []
    for n in range(count):
        added = written[:, n] if against is None else written[:, n] - against[:, n] @ G.mT
        starts.append(G)
        additions.append(added)
        if keep or n + 1 < count:
            G = whole[:, n] * G + added.mT @ (left[:, n] * keys[:, n])
    y = (weights * (queries @ keys.mT)) @ (written if against is None else torch.stack(additions, 1))
    if state is not None or count > 1:
        y = y + decay * (queries @ torch.stack(starts, 1).mT)
    return y.flatten(1, 2)[:, :t].reshape(v.shape), G.reshape(*q.shape[:-2], dv, dk)
