"""Causal softmax attention with forgetting, a window and a cache."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.nn import functional

from mesascope.errors import refuse, require_count, require_instance
from mesascope.ops.checks import require_attention, require_finite, require_values
from mesascope.ops.chunks import NOTHING_LEFT
from mesascope.shapes import Float, Tensor


class SoftmaxState(NamedTuple):
    """Keys and values of the tokens before, and what is added to their scores."""

    k: Float[Tensor, "*batch heads n dk"]
    v: Float[Tensor, "*batch heads n dv"]
    bias: Float[Tensor, "*batch heads n"]


# Number of blocks of queries, which saves three eighths of the scores, and the smallest block.
_BLOCKS, _LEAST = 4, 32
# Logarithm of a weight of 0. With -inf the mean over such pairs alone would be no number.
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
    """y_t = sum_i w_ti v_i / sum_i w_ti with w_ti = beta_i (g_t/g_i) exp(scale q_t . k_i), for t - window < i <= t.

    Args:
        scale: 1 / sqrt(dk) if None.
        log_forget: logarithm of the forget factors, whose product up to t is g_t, -inf to forget everything; None
            forgets nothing.
        beta: input strength of each pair, in [0, 1], 0 for padding; None is 1.
        window: number of tokens that each token sees, itself included; all if None.
        state: the state of the tokens before, which holds the last ``window - 1`` of them.
        return_state: return the state after the last token, too.

    Forget factors multiply weights, as in the Forgetting Transformer (Lin et al. 2025). They could multiply scores
    (thesis, section 3.7.1.2), but would then give a forgotten pair the weight of a score of 0. Plain products rather
    than PyTorch's fused kernel, which has neither second derivatives on CPU nor a rule for `torch.func.vmap`; memory
    O(T (T + n)). For bfloat16 and float16 weights are computed in float32.
    """
    arguments = {"q": q, "k": k, "v": v, "log_forget": log_forget, "beta": beta}
    window = None if window is None else require_count("window", window)
    require_attention(arguments)
    require_values(arguments, q.shape[-2])
    wide = torch.promote_types(q.dtype, torch.float32)
    biased = beta is not None or state is not None
    bias = q.new_zeros(q.shape[:-1], dtype=wide) if beta is None else _log_strength(beta.to(wide))
    if state is not None:
        _check_state(state, k, v)
        k, v = torch.cat([state.k, k], -2), torch.cat([state.v, v], -2)
        bias = torch.cat([state.bias, bias], -1)
    t, n = q.shape[-2], k.shape[-2]
    age = torch.arange(n - t, n, device=q.device)[:, None] - torch.arange(n, device=q.device)
    unseen = age < 0 if window is None else (age < 0) | (age >= window)
    left = q.new_zeros(unseen.shape, dtype=wide) if log_forget is None else _left(log_forget, n, wide)
    scaled = (q.shape[-1] ** -0.5 if scale is None else scale) * q
    hidden = left.masked_fill(unseen, -torch.inf)
    y = _in_blocks(scaled, k, v, bias[..., None, :] if biased else None, hidden, window)
    require_finite([y])
    if log_forget is not None and t:  # from here on, decay counts from the last token
        bias = (bias + left[..., -1, :]).clamp(min=_UNSEEN)
    return (y, _kept(k, v, bias, window)) if return_state else y


def _kept(k: Tensor, v: Tensor, bias: Tensor, window: int | None) -> SoftmaxState:
    """The state after the last token: copies where a window cuts it, so that it does not hold the whole prompt."""
    first = 0 if window is None else max(k.shape[-2] - window + 1, 0)
    parts = (k[..., first:, :], v[..., first:, :], bias[..., first:])
    return SoftmaxState(*(part.clone() if first else part for part in parts))


def _left(log_forget: Tensor, n: int, dtype: torch.dtype) -> Float[Tensor, "*batch t n"]:
    """log g_t / g_i for every token t and the n up to the last, -inf where all was forgotten between.

    Sums are in float64, as their differences would lose the digits of tokens far from the first. Each is rounded to the
    dtype, and differences of the rounded parts and of the rests are added.
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
    """softmax(q k^T + bias + hidden) v, one block of queries at a time, each with the keys that it may see."""
    t, n = q.shape[-2], k.shape[-2]
    size, rows = max(-(-t // _BLOCKS), _LEAST), []
    if size < t:  # or each block would copy its keys
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
    require_instance("state", state, SoftmaxState)
    n = state.k.shape[-2] if state.k.ndim > 1 else 0
    expected = ((*k.shape[:-2], n, k.shape[-1]), (*v.shape[:-2], n, v.shape[-1]), (*k.shape[:-2], n))
    for name, part, shape in zip(state._fields, state, expected, strict=True):
        if tuple(part.shape) != shape:
            refuse(f"state.{name}", f"have shape {shape}", tuple(part.shape), "begin with a state of this batch")
        if part.device != k.device:
            refuse(f"state.{name}", f"be on k's device {str(k.device)!r}", str(part.device), "move it there")


def _log_strength(beta: Tensor) -> Tensor:
    counts = beta > 0
    return torch.where(counts, beta.where(counts, 1).log(), _UNSEEN)


def causal_softmax_attention_reference(
    q: Tensor, k: Tensor, v: Tensor, log_forget: Tensor, beta: Tensor, window: int | None = None
) -> Tensor:
    """`causal_softmax_attention` by its definition, one token at a time."""
    rows = []
    for t in range(q.shape[-2]):
        seen = slice(0 if window is None else max(t - window + 1, 0), t + 1)
        forgotten = log_forget[..., : t + 1].flip(-1).cumsum(-1).flip(-1) - log_forget[..., : t + 1]
        weights = beta[..., seen] * forgotten[..., seen].exp()
        weights = weights * ((k[..., seen, :] @ q[..., t, :, None]).squeeze(-1) / q.shape[-1] ** 0.5).exp()
        rows.append((weights[..., None] * v[..., seen, :]).sum(-2) / weights.sum(-1, keepdim=True))
    return torch.stack(rows, -2) if rows else v
