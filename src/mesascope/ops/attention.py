"""Attention of queries to keys and values: linear and softmax.

Both take q ``(*batch, m, dk)``, k ``(*batch, n, dk)`` and v ``(*batch, n, dv)`` and return ``(*batch, m, dv)``; heads
are one of the leading axes. There is no mask: keys and values come from the context only.
"""

from __future__ import annotations

import torch

from mesascope.shapes import Float, Tensor


def linear_attention(
    q: Float[Tensor, "*batch m dk"], k: Float[Tensor, "*batch n dk"], v: Float[Tensor, "*batch n dv"]
) -> Float[Tensor, "*batch m dv"]:
    """Attention without the softmax: o_j = sum_i v_i (k_i . q_j), eq. 6 of von Oswald et al. (ICML 2023).

    Products are computed in the cheaper order. For d = dk = dv, the scores cost 2 m n d multiplications, and the fast
    weight matrix sum_i k_i v_i^T costs (n + m) d^2.
    """
    (m, dk), (n, dv) = q.shape[-2:], v.shape[-2:]
    if m * n * (dk + dv) <= (n + m) * dk * dv:
        return (q @ k.mT) @ v
    return q @ (k.mT @ v)


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


def softmax_attention(
    q: Float[Tensor, "*batch m dk"], k: Float[Tensor, "*batch n dk"], v: Float[Tensor, "*batch n dv"]
) -> Float[Tensor, "*batch m dv"]:
    """Softmax attention, o_j = sum_i softmax_i(k_i . q_j / sqrt(dk)) v_i, eq. 1 of von Oswald et al. (ICML 2023).

    Uses matrix products rather than `torch.nn.functional.scaled_dot_product_attention`, as its CPU kernel has no rule
    for `torch.func.vmap` and would run the members of an ensemble one at a time.
    """
    return torch.softmax((q @ k.mT) * k.shape[-1] ** -0.5, dim=-1) @ v


def softmax_attention_reference(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`softmax_attention` by its definition, one query at a time."""
    rows = []
    for j in range(q.shape[-2]):
        weights = ((k * q[..., j : j + 1, :]).sum(-1) / k.shape[-1] ** 0.5).exp()
        rows.append((weights.unsqueeze(-1) * v).sum(-2) / weights.sum(-1, keepdim=True))
    return torch.stack(rows, dim=-2) if rows else v.new_zeros((*v.shape[:-2], 0, v.shape[-1]))
