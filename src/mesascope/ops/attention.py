"""Attention to a context, linear and softmax, and causal softmax attention with forgetting, a window and a cache.

Attention to a context has no mask. It takes q ``(*batch, m, dk)``, k ``(*batch, n, dk)`` and v ``(*batch, n, dv)`` and
returns ``(*batch, m, dv)``; heads are one of the leading axes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.nn import functional

from mesascope.errors import ArgumentTypeError, refuse, require_count, require_instance, require_number
from mesascope.ops.checks import require_attention, require_finite, require_state, require_values
from mesascope.ops.chunks import NOTHING_LEFT
from mesascope.shapes import Float, Tensor


def linear_attention(
    q: Float[Tensor, "*batch m dk"], k: Float[Tensor, "*batch n dk"], v: Float[Tensor, "*batch n dv"]
) -> Float[Tensor, "*batch m dv"]:
    """Attention without the softmax: o_j = sum_i v_i (k_i . q_j), eq. 6 of von Oswald et al. (ICML 2023).

    Products are computed in the cheaper order. For d = dk = dv, the scores cost 2 m n d multiplications, and the fast
    weight matrix sum_i k_i v_i^T costs (n + m) d^2.
    """
    _require_pairs(q, k, v)
    (m, dk), (n, dv) = q.shape[-2:], v.shape[-2:]
    if m * n * (dk + dv) <= (n + m) * dk * dv:
        return (q @ k.mT) @ v
    return q @ (k.mT @ v)


def _require_pairs(q: Tensor, k: Tensor, v: Tensor) -> None:
    for name, part in (("q", q), ("k", k), ("v", v)):
        require_instance(name, part, Tensor)
        if part.ndim < 2:
            refuse(name, "have at least two axes, of rows and entries", tuple(part.shape), "add the missing axes")
    alike = q.dtype == k.dtype == v.dtype or torch.is_autocast_enabled(q.device.type)
    if not (q.is_floating_point() and alike):
        found = f"{q.dtype}, {k.dtype} and {v.dtype}"
        refuse("q, k and v", "share one floating-point dtype", found, "convert them", ArgumentTypeError)
    if q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
        refuse("q, k and v", "be (m, dk), (n, dk) and (n, dv)", shapes, "give q the width of k, and v the rows of k")


def softmax_attention(
    q: Float[Tensor, "*batch m dk"], k: Float[Tensor, "*batch n dk"], v: Float[Tensor, "*batch n dv"]
) -> Float[Tensor, "*batch m dv"]:
    """Softmax attention, o_j = sum_i softmax_i(k_i . q_j / sqrt(dk)) v_i, eq. 1 of von Oswald et al. (ICML 2023).

    Uses matrix products rather than `torch.nn.functional.scaled_dot_product_attention`, as its CPU kernel has no rule
    for `torch.func.vmap` and would run the members of an ensemble one at a time.
    """
    _require_pairs(q, k, v)
    return torch.softmax((q @ k.mT) * k.shape[-1] ** -0.5, dim=-1) @ v


class SoftmaxState(NamedTuple):
    """Keys and values of the previous tokens, and the bias that is added to their scores."""

    k: Float[Tensor, "*batch heads n dk"]
    v: Float[Tensor, "*batch heads n dv"]
    bias: Float[Tensor, "*batch heads n"]


# Number of blocks of queries (four blocks save three eighths of the scores), and the smallest block size.
_BLOCKS, _LEAST = 4, 32
# Stands for log(0). With -inf, a mean over only such pairs would be nan.
_UNSEEN = -1e30


def causal_softmax_attention(
    q: Float[Tensor, "*batch heads t dk"],
    k: Float[Tensor, "*batch heads t dk"],
    v: Float[Tensor, "*batch heads t dv"],
    *,
    scale: float | None = None,
    log_forget: Float[Tensor, "*batch heads t"] | None = None,
    beta: Float[Tensor, "*batch heads t"] | None = None,
    window: int | None = None,
    state: SoftmaxState | None = None,
    return_state: bool = False,
) -> Any:
    """Causal softmax attention: y_t = sum_i w_ti v_i / sum_i w_ti over t - window < i <= t.

    w_ti = beta_i (g_t/g_i) exp(scale q_t . k_i); g_t is the product of the forget factors up to t.

    Args:
        scale: 1 / sqrt(dk) if None.
        log_forget: log of the forget factors, at most 0; -inf forgets everything, None nothing.
        beta: input strength of each pair, in [0, 1], 0 for padding; None is 1. The derivative by a beta of 0 is given
            as 0, as its logarithm is added to scores.
        window: number of tokens that each token attends to, including itself; all if None.
        state: the state after the previous tokens; it contains the last ``window - 1`` of them.
        return_state: also return the state after the last token.

    Forget factors multiply the weights, as in the Forgetting Transformer (Lin et al. 2025). If they multiplied the
    scores (von Oswald 2024, section 3.7.1.2), a forgotten pair would keep the weight of a score of 0. PyTorch's fused
    kernel is not used, as it has no second derivatives on CPU and no rule for `torch.func.vmap`. Memory: O(t (t + n))
    for a state of n tokens. For bfloat16 and float16, the softmax is computed in float32.
    """
    arguments = {"q": q, "k": k, "v": v, "log_forget": log_forget, "beta": beta}
    window = None if window is None else require_count("window", window)
    scale = None if scale is None else require_number("scale", scale)
    require_attention(arguments)
    require_values(arguments, q.shape[-2])
    wide = torch.promote_types(q.dtype, torch.float32)
    biased = beta is not None or state is not None
    bias = q.new_zeros(q.shape[:-1], dtype=wide)
    if beta is not None:
        counts = beta > 0
        bias = torch.where(counts, beta.to(wide).where(counts, 1).log(), _UNSEEN)
    if state is not None:
        _check_state(state, k, v)
        k, v = torch.cat([state.k.to(k.dtype), k], -2), torch.cat([state.v.to(v.dtype), v], -2)
        bias = torch.cat([state.bias.to(wide), bias], -1)
    t, n = q.shape[-2], k.shape[-2]
    age = torch.arange(n - t, n, device=q.device)[:, None] - torch.arange(n, device=q.device)
    unseen = age < 0 if window is None else (age < 0) | (age >= window)
    left = q.new_zeros(unseen.shape, dtype=wide) if log_forget is None else _left(log_forget, n, wide)
    scaled = (q.shape[-1] ** -0.5 if scale is None else scale) * q
    hidden = left.masked_fill(unseen, -torch.inf)
    y = _in_blocks(scaled, k, v, bias[..., None, :] if biased else None, hidden, window)
    require_finite([y])
    if log_forget is not None and t:  # biases in a state include the decay up to its last token
        bias = (bias + left[..., -1, :]).clamp(min=_UNSEEN)
    return (y, _kept(k, v, bias, window)) if return_state else y


def _kept(k: Tensor, v: Tensor, bias: Tensor, window: int | None) -> SoftmaxState:
    """State after the last token; a copy if a window shortens it, so that the whole prompt is not kept in memory."""
    first = 0 if window is None else max(k.shape[-2] - window + 1, 0)
    parts = (k[..., first:, :], v[..., first:, :], bias[..., first:])
    return SoftmaxState(*(part.clone() if first else part for part in parts))


def _left(log_forget: Tensor, n: int, dtype: torch.dtype) -> Float[Tensor, "*batch t n"]:
    """log(g_t / g_i) for each token t and each of n keys i, with g_i = 1 in a state; -inf after a factor of 0.

    Cumulative sums are computed in float64, as their differences would be inaccurate far from the first token. Each sum
    is split into its value rounded to ``dtype`` and a remainder. Differences are computed for both parts and added.
    """
    clean, before = log_forget <= NOTHING_LEFT, (n - log_forget.shape[-1], 0)
    sums, begun = log_forget.double().masked_fill(clean, 0).cumsum(-1), clean.cumsum(-1)
    rounded = sums.to(dtype)
    since, rest = (
        part[..., :, None] - functional.pad(part, before)[..., None, :]
        for part in (rounded, (sums - rounded).detach().to(dtype))
    )
    return (since + rest).masked_fill(begun[..., :, None] > functional.pad(begun, before)[..., None, :], -torch.inf)


def _in_blocks(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, hidden: Tensor, window: int | None) -> Tensor:
    """softmax(q k^T + bias + hidden) v in blocks of queries, each with only the keys that it attends to."""
    t, n = q.shape[-2], k.shape[-2]
    size, rows = max(-(-t // _BLOCKS), _LEAST), []
    if size < t:  # otherwise each block would copy its keys
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    for start in range(0, t, size):
        end = min(start + size, t)
        first, last = 0 if window is None else max(n - t + start - window + 1, 0), n - t + end
        scores = (q[..., start:end, :] @ k[..., first:last, :].mT).to(hidden.dtype)
        scores = scores if bias is None else scores + bias[..., first:last]
        weights = torch.softmax(scores.add_(hidden[..., start:end, first:last]), -1)
        rows.append(weights.to(v.dtype) @ v[..., first:last, :])
    return torch.cat(rows, -2) if len(rows) > 1 else rows[0] if rows else v[..., :0, :]


def _check_state(state: SoftmaxState, k: Tensor, v: Tensor) -> None:
    require_state(state, SoftmaxState)
    n = state.k.shape[-2] if state.k.ndim > 1 else 0
    expected = ((*k.shape[:-2], n, k.shape[-1]), (*v.shape[:-2], n, v.shape[-1]), (*k.shape[:-2], n))
    for name, part, shape in zip(state._fields, state, expected, strict=True):
        if tuple(part.shape) != shape:
            refuse(f"state.{name}", f"have shape {shape}", tuple(part.shape), "begin with a state of this batch")
        if part.device != k.device:
            refuse(f"state.{name}", f"be on k's device {str(k.device)!r}", str(part.device), "move it there")
