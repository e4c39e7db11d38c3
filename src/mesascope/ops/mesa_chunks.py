"""The mesa-layer a chunk of time at once: exact, in matrix products.

Within a chunk that starts from H_0 and G_0, let g_t be the product of its forget factors up to t. With keys and values
divided by sqrt(g_t), forgetting leaves the equations but for that scale:

    (H_0 + sum_{i<=t} k_i k_i^T) x_t = q_t,    y_t = (G_0 + sum_{i<=t} v_i k_i^T) x_t.

All t of a chunk share one factorisation. With P = H_0^{-1}, K = [k_1 .. k_C] and R = chol(I + K^T P K), the leading
blocks of R factorise the leading blocks of I + K^T P K, and so with Q = [q_1 .. q_C]

    x_t = P Q_t - P K W_t,    W = R^{-T} mask(R^{-1} mask(K^T P Q)),

where mask keeps the rows i <= t of column t. Everything but two factorisations is products; what rounding the explicit
inverses add, one correction by the residual takes away.

The states at the starts of chunks are a decayed prefix sum, in which nothing is inverted and so no error grows; given
them, all chunks run at once.

Tokens are rows here, ``(batch, chunks, size, d)``, so that the products above stand transposed; G too is kept as its
transpose, ``(batch, chunks, dk, dv)``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from mesascope.ops.chunks import causal, cut
from mesascope.ops.mesa_solve import solve_chunks
from mesascope.ops.mesa_steps import Problem, Solution
from mesascope.shapes import Float, Tensor

__all__ = ["Chunks", "chunks_of", "exact"]


class Chunks(NamedTuple):
    """A sequence in chunks, the states that chunks start from, and the states after the last token."""

    keys: Float[Tensor, "batch chunks size dk"]
    values: Float[Tensor, "batch chunks size dv"]
    log_decay: Float[Tensor, "batch chunks size 1"]
    H: Float[Tensor, "batch chunks dk dk"]
    G: Float[Tensor, "batch chunks dk dv"]
    last_H: Float[Tensor, "batch dk dk"]
    last_G: Float[Tensor, "batch dv dk"]


def chunks_of(problem: Problem, size: int) -> Chunks:
    """Cut keys and values, and carry the states from chunk to chunk."""
    _, k, v, log_forget, H, G = problem
    keys, values, log_decay = cut(k, size), cut(v, size), cut(log_forget[..., None], size).cumsum(-2)
    whole = log_decay[..., -1:, :]
    own = ((whole - log_decay).exp() * keys).mT @ torch.cat([keys, values], -1)
    states = [torch.cat([H, G.mT], -1)]
    for added, decay in zip(own.unbind(1), whole.exp().unbind(1), strict=True):
        states.append(torch.addcmul(added, decay, states[-1]))
    starts, last, dk = torch.stack(states[:-1], 1), states[-1], k.shape[-1]
    return Chunks(keys, values, log_decay, starts[..., :dk], starts[..., dk:], last[..., :dk], last[..., dk:].mT)


def exact(problem: Problem, size: int, heads: int) -> Solution:
    """Outputs and last state: 6 T (C d + d^2) multiplications, 2 T / C factorisations, memory O(T (d + C + d^2/C))."""
    chunks = chunks_of(problem, size)
    scale = (-0.5 * chunks.log_decay).exp()
    keys = scale * chunks.keys
    x = solve_chunks(cut(problem.q, size), keys, chunks.H, chunks.log_decay, heads)
    y = x @ chunks.G + causal(x @ keys.mT) @ (scale * chunks.values)
    return Solution(y.flatten(1, 2)[:, : problem.q.shape[1]], chunks.last_H, chunks.last_G)
