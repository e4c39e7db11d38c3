"""Attention and fast weights by their definitions, one token at a time: slow, and compared with `mesascope.ops`."""

import torch
from torch import Tensor

__all__ = [
    "causal_softmax_attention_reference",
    "fast_weights_reference",
    "linear_attention_reference",
    "softmax_attention_reference",
]


def linear_attention_reference(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`linear_attention` by its definition, one pair of tokens at a time."""
    rows = []
    for j in range(q.shape[-2]):
        row = v.new_zeros((*v.shape[:-2], v.shape[-1]))
        for i in range(k.shape[-2]):
            score = (k[..., i, :] * q[..., j, :]).sum(-1, keepdim=True)
            row = row + score * v[..., i, :]
        rows.append(row)
    return torch.stack(rows, dim=-2) if rows else v.new_zeros((*v.shape[:-2], 0, v.shape[-1]))


def softmax_attention_reference(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`softmax_attention` by its definition, one query at a time."""
    rows = []
    for j in range(q.shape[-2]):
        weights = ((k * q[..., j : j + 1, :]).sum(-1) / k.shape[-1] ** 0.5).exp()
        rows.append((weights.unsqueeze(-1) * v).sum(-2) / weights.sum(-1, keepdim=True))
    return torch.stack(rows, dim=-2) if rows else v.new_zeros((*v.shape[:-2], 0, v.shape[-1]))


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


def fast_weights_reference(
    q: Tensor, k: Tensor, v: Tensor, log_forget: Tensor, beta: Tensor, state: Tensor, *, delta: bool
) -> tuple[Tensor, Tensor]:
    """Outputs of either rule by its definition, one token at a time, and G after the last token."""
    rows, G = [], state
    for t in range(q.shape[-2]):
        G = log_forget[..., t, None, None].exp() * G
        written = v[..., t, :] - (G @ k[..., t, :, None]).squeeze(-1) if delta else v[..., t, :]
        G = G + beta[..., t, None, None] * written[..., :, None] * k[..., t, None, :]
        rows.append((G @ q[..., t, :, None]).squeeze(-1))
    return (torch.stack(rows, -2) if rows else v), G
