"""A sequence in chunks of time, with the states that chunks start from.

In a chunk that starts from H and G, with g_t the product of its forget factors up to t and w_ti = beta_i g_t / g_i,

    H_t = g_t H + sum_{i<=t} w_ti k_i k_i^T,    G_t = g_t G + sum_{i<=t} w_ti v_i k_i^T.

No factor exceeds 1, so that any forgetting is safe. The states at the starts of chunks are a decayed prefix sum, in
which nothing is inverted and so no error grows; given them, all chunks run at once.

Tokens are rows, ``(batch, chunks, size, d)``; G is kept as its transpose, ``(batch, chunks, dk, dv)``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from mesascope.ops.chunks import cut, decay_weights, decays
from mesascope.shapes import Float, Tensor

__all__ = ["Chunks", "Problem", "Solution", "chunks_of", "read_out"]


class Problem(NamedTuple):
    """A sequence and the states to start from, batch and heads as one axis, heads in turn."""

    q: Float[Tensor, "batch t dk"]
    k: Float[Tensor, "batch t dk"]
    v: Float[Tensor, "batch t dv"]
    log_forget: Float[Tensor, "batch t"]
    beta: Float[Tensor, "batch t"]
    H: Float[Tensor, "batch dk dk"]
    G: Float[Tensor, "batch dv dk"]
    ridge: Float[Tensor, "batch dk"]


class Solution(NamedTuple):
    """Outputs, and the states after the last token."""

    y: Float[Tensor, "batch t dv"]
    H: Float[Tensor, "batch dk dk"]
    G: Float[Tensor, "batch dv dk"]


class Chunks(NamedTuple):
    """A sequence in chunks, the states that chunks start from, and the states after the last token."""

    queries: Float[Tensor, "batch chunks size dk"]
    keys: Float[Tensor, "batch chunks size dk"]
    values: Float[Tensor, "batch chunks size dv"]
    log_forget: Float[Tensor, "batch chunks size 1"]
    weights: Float[Tensor, "batch chunks size size"]
    H: Float[Tensor, "batch chunks dk dk"]
    G: Float[Tensor, "batch chunks dk dv"]
    last_H: Float[Tensor, "batch dk dk"]
    last_G: Float[Tensor, "batch dv dk"]


def chunks_of(problem: Problem, size: int) -> Chunks:
    """Cut the sequence, and carry the states from chunk to chunk."""
    queries, keys, values, log_forget, strengths = (
        cut(part if part.ndim == 3 else part[..., None], size) for part in problem[:5]
    )
    weights = decay_weights(log_forget) * strengths.mT
    own = (weights[..., -1, :, None] * keys).mT @ torch.cat([keys, values], -1)
    whole = decays(log_forget)[..., -1:, :]
    states = [torch.cat([problem.H, problem.G.mT], -1)]
    for added, decay in zip(own.unbind(1), whole.unbind(1), strict=True):
        states.append(torch.addcmul(added, decay, states[-1]))
    starts, last, dk = torch.stack(states[:-1], 1), states[-1], keys.shape[-1]
    H, G = starts[..., :dk], starts[..., dk:]
    return Chunks(queries, keys, values, log_forget, weights, H, G, last[..., :dk], last[..., dk:].mT)


def read_out(chunks: Chunks, x: Float[Tensor, "batch chunks size dk"], t: int) -> Solution:
    """y_t = G_t x_t, and the last states."""
    y = decays(chunks.log_forget) * (x @ chunks.G) + (chunks.weights * (x @ chunks.keys.mT)) @ chunks.values
    return Solution(y.flatten(1, 2)[:, :t], chunks.last_H, chunks.last_G)
