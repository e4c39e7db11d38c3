"""A sequence in chunks of time, with the state at the start of each chunk.

In a chunk that starts from H and G, with g_t the product of its forget factors up to t and w_ti = beta_i g_t / g_i,

    H_t = g_t H + sum_{i<=t} w_ti k_i k_i^T,    G_t = g_t G + sum_{i<=t} w_ti v_i k_i^T.

No ratio g_t / g_i exceeds 1, so none overflows. States at the starts of chunks are a decayed prefix
sum, without inverses that would amplify errors. Given these states, all chunks run at once.

Tokens are rows, ``(batch, chunks, size, d)``; G at the start of chunks is transposed, ``(batch, chunks, dk, dv)``.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import torch

from mesascope.ops.chunks import cut, decay_weights, decays
from mesascope.ops.mesa.equations import NormalEquations
from mesascope.ops.products import product
from mesascope.shapes import Float, Tensor


class Problem(NamedTuple):
    """A sequence and the initial states of its documents; batch and heads are one axis, heads varying fastest.

    ``ridge`` is the part of the ridge that H does not contain: 0 if it decays, and its ratio to |H_t|_F if it is
    relative. ``new`` is true if no tokens came before. ``lengths`` are those of consecutive documents.
    """

    q: Float[Tensor, "batch t dk"]
    k: Float[Tensor, "batch t dk"]
    v: Float[Tensor, "batch t dv"]
    log_forget: Float[Tensor, "batch t"]
    beta: Float[Tensor, "batch t"]
    H: Float[Tensor, "documents batch dk dk"]
    G: Float[Tensor, "documents batch dv dk"]
    ridge: Float[Tensor, "batch dk"]
    heads: int
    ridge_kind: str
    new: bool
    lengths: list[int]

    @property
    def decaying(self) -> bool:
        """True if the ridge is part of H."""
        return self.ridge_kind == "decaying"

    @property
    def relative(self) -> bool:
        """True if the ridge is proportional to |H_t|_F."""
        return self.ridge_kind == "relative"


class Solution(NamedTuple):
    """Outputs, and the states after the last token of every document."""

    y: Float[Tensor, "batch t dv"]
    H: Float[Tensor, "documents batch dk dk"]
    G: Float[Tensor, "documents batch dv dk"]


class Chunks(NamedTuple):
    """A sequence in chunks, the state at the start of each chunk, and the states after the last tokens."""

    queries: Float[Tensor, "batch chunks size dk"]
    keys: Float[Tensor, "batch chunks size dk"]
    values: Float[Tensor, "batch chunks size dv"]
    log_forget: Float[Tensor, "batch chunks size 1"]
    weights: Float[Tensor, "batch chunks size size"]
    H: Float[Tensor, "batch chunks dk dk"]
    G: Float[Tensor, "batch chunks dk dv"]
    last_H: Float[Tensor, "documents batch dk dk"]
    last_G: Float[Tensor, "documents batch dv dk"]
    positions: Tensor


def chunks_of(problem: Problem, size: int) -> Chunks:
    """Split documents into chunks, and compute the state at the start of each. Every document starts a new chunk."""
    lengths = problem.lengths
    counts = [max(math.ceil(length / size), 1) for length in lengths]
    first = [0, *itertools.accumulate(counts)]
    own = [torch.arange(length, device="cpu") + n * size for length, n in zip(lengths, first, strict=False)]
    positions = torch.cat(own).to(problem.q.device)
    tokens = (part if part.ndim == 3 else part[..., None] for part in problem[:5])
    queries, keys, values, log_forget, strengths = (
        cut(part, size) if len(lengths) == 1 else _scattered(part, size, positions, first[-1]) for part in tokens
    )
    weights = decay_weights(log_forget) * strengths.mT
    own = product((weights[..., -1, :, None] * keys).mT, torch.cat([keys, values], -1)).unbind(1)
    whole = decays(log_forget)[..., -1:, :].unbind(1)
    before, after = [], []
    for state, start, stop in zip(torch.cat([problem.H, problem.G.mT], -1), first, first[1:], strict=False):
        for n in range(start, stop):
            before.append(state)
            state = torch.addcmul(own[n], whole[n], state)
        after.append(state)
    starts, last, dk = torch.stack(before, 1), torch.stack(after), keys.shape[-1]
    return Chunks(
        queries, keys, values, log_forget, weights, starts[..., :dk], starts[..., dk:], last[..., :dk],
        last[..., dk:].mT, positions,
    )  # fmt: skip


def _scattered(
    tokens: Float[Tensor, "batch t d"], size: int, positions: Tensor, count: int
) -> Float[Tensor, "batch chunks size d"]:
    """Tokens at their positions, and zeros elsewhere, which add nothing to a state."""
    padded = tokens.new_zeros(tokens.shape[0], count * size, tokens.shape[2])
    return padded.index_copy(1, positions, tokens).unflatten(1, (count, size))


def equations_of(problem: Problem, chunks: Chunks) -> NormalEquations:
    """The normal equations of all tokens."""
    ridge = problem.ridge[:, None, None, :].expand(-1, chunks.H.shape[1], -1, -1)
    equations = NormalEquations(chunks.keys, chunks.weights, chunks.log_forget, chunks.H, ridge)
    return equations._replace(ridge=ridge * equations.norm()) if problem.relative else equations


def read_out(chunks: Chunks, x: Float[Tensor, "batch chunks size dk"]) -> Solution:
    """y_t = G_t x_t, and the last states."""
    scores = chunks.weights * product(x, chunks.keys.mT)
    y = decays(chunks.log_forget) * product(x, chunks.G) + product(scores, chunks.values)
    y = y.flatten(1, 2)
    y = y[:, : len(chunks.positions)] if len(chunks.last_H) == 1 else y[:, chunks.positions]
    return Solution(y, chunks.last_H, chunks.last_G)
