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

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.nn import functional

from mesascope.errors import NumericalError
from mesascope.ops.mesa_steps import Problem, Solution
from mesascope.shapes import Float, Tensor

__all__ = ["MOST_DECAY", "Chunks", "Factor", "chunks_of", "cut", "exact", "factorise", "fold", "substitute"]

# Decay up to which keys may be scaled by its inverse: rounding grows in proportion to exp(decay).
MOST_DECAY = 4.0
# Condition numbers below it cost so few digits that a correction would add none.
_BENIGN = 30.0


class Chunks(NamedTuple):
    """A sequence in chunks, the states that chunks start from, and the states after the last token."""

    keys: Float[Tensor, "batch chunks size dk"]
    values: Float[Tensor, "batch chunks size dv"]
    log_decay: Float[Tensor, "batch chunks size 1"]
    H: Float[Tensor, "batch chunks dk dk"]
    G: Float[Tensor, "batch chunks dk dv"]
    last_H: Float[Tensor, "batch dk dk"]
    last_G: Float[Tensor, "batch dv dk"]


class Factor(NamedTuple):
    """What every right-hand side of a chunk shares: P, P K and R^{-1}."""

    start: Float[Tensor, "batch chunks dk dk"]
    keys: Float[Tensor, "batch chunks size dk"]
    inner: Float[Tensor, "batch chunks size size"]


def cut(sequence: Float[Tensor, "batch t d"], size: int) -> Float[Tensor, "batch chunks size d"]:
    """The sequence in chunks, at least one, filled up with zeros: tokens that neither add nor forget anything."""
    count = max(math.ceil(sequence.shape[1] / size), 1)
    return functional.pad(sequence, (0, 0, 0, count * size - sequence.shape[1])).unflatten(1, (count, size))


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
    """Outputs and last state. Cost 6 T (C d + d^2) products and T / C factorisations; memory O(T (d + C + d^2 / C))."""
    chunks = chunks_of(problem, size)
    scale = (-0.5 * chunks.log_decay).exp()
    keys = scale * chunks.keys
    x = _Solve.apply(cut(problem.q, size), keys, chunks.H, heads)[0]
    y = x @ chunks.G + torch.tril(x @ keys.mT) @ (scale * chunks.values)
    return Solution(y.flatten(1, 2)[:, : problem.q.shape[1]], chunks.last_H, chunks.last_G)


class _Solve(torch.autograd.Function):
    """x_t = (H_0 + sum_{i<=t} k_i k_i^T)^{-1} q_t, and the factor that found it.

    Derivatives follow from the equation itself (the implicit function theorem), with M_t the matrix in brackets:

        dx_t = M_t^{-1} (dq_t - dM_t x_t),    grad q_t = u_t = M_t^{-1} grad x_t,    grad M_t = -u_t x_t^T.

    The factor of the forward pass serves the backward one. It is no function of the inputs to autograd, so a backward
    pass that is itself differentiated solves again through `_Solve` instead.
    """

    @staticmethod
    def forward(q: Tensor, keys: Tensor, H: Tensor, heads: int) -> tuple[Tensor, ...]:
        factor = factorise(keys, H, heads)
        return _corrected(factor, keys, H, q), *factor

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        _, keys, H, ctx.heads = inputs
        x, *factor = output
        ctx.mark_non_differentiable(*factor)
        ctx.save_for_backward(x, keys, H, *factor)
        ctx.save_for_forward(x, keys, H)

    @staticmethod
    def backward(ctx, grad_x: Tensor, *_):
        x, keys, H, *factor = ctx.saved_tensors
        if torch.is_grad_enabled():
            u = _Solve.apply(grad_x, keys, H, ctx.heads)[0]
        else:
            u = _corrected(Factor(*factor), keys, H, grad_x)
        grad_keys = -(torch.tril(x @ keys.mT).mT @ u + torch.tril(u @ keys.mT).mT @ x)
        outer = u.mT @ x
        return u, grad_keys, -0.5 * (outer + outer.mT), None

    @staticmethod
    def jvp(ctx, q: Tensor | None, keys: Tensor | None, H: Tensor | None, _):
        x, own, start = ctx.saved_tensors
        change = torch.zeros_like(x) if q is None else q
        if H is not None:
            change = change - x @ H.mT
        if keys is not None:
            change = change - torch.tril(x @ own.mT) @ keys - torch.tril(x @ keys.mT) @ own
        return _Solve.apply(change, own, start, ctx.heads)[0], None, None, None

    @staticmethod
    def vmap(info, in_dims, q: Tensor, keys: Tensor, H: Tensor, heads: int):
        """The mapped axis becomes part of the batch, whose heads still come in turn."""
        outputs = _Solve.apply(*fold(info.batch_size, in_dims, (q, keys, H)), heads)
        return tuple(output.unflatten(0, (info.batch_size, -1)) for output in outputs), (0,) * len(outputs)


def fold(size: int, axes: Sequence[int | None], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors with a mapped axis of ``size``, or none, with that axis as the outer part of their first one."""
    return [
        (tensor.expand(size, *tensor.shape) if axis is None else tensor.movedim(axis, 0)).flatten(0, 1)
        for tensor, axis in zip(tensors, axes, strict=False)
    ]


def factorise(keys: Tensor, H: Tensor, heads: int) -> Factor:
    root, broken = torch.linalg.cholesky_ex(H)
    _require_whole(broken, root, heads, keys.shape[-2])
    start = torch.cholesky_inverse(root)
    solved = keys @ start
    gram = keys @ solved.mT
    gram.diagonal(dim1=-2, dim2=-1).add_(1)
    root, broken = torch.linalg.cholesky_ex(gram)
    _require_whole(broken, root, heads, keys.shape[-2])
    identity = torch.eye(keys.shape[-2], dtype=keys.dtype, device=keys.device).expand_as(root)
    return Factor(start, solved, torch.linalg.solve_triangular(root, identity, upper=False))


def _corrected(factor: Factor, keys: Tensor, H: Tensor, rows: Tensor) -> Tensor:
    """A solution, and one correction by its residual where rounding would tell.

    Without it, the gradient of keys loses a thousand times as many digits at a condition number of 3,000.
    """
    x = substitute(factor, rows)
    if not _delicate(factor, H):
        return x
    return x + substitute(factor, rows - x @ H - torch.tril(x @ keys.mT) @ keys)


def _delicate(factor: Factor, H: Tensor) -> bool:
    """Whether some H_0, or its growth within a chunk, has a condition number beyond _BENIGN, by its diagonal."""
    if H.numel() == 0:
        return False
    start = H.diagonal(dim1=-2, dim2=-1).amax(-1) * factor.start.diagonal(dim1=-2, dim2=-1).amax(-1)
    growth = factor.inner.diagonal(dim1=-2, dim2=-1).amin(-1) ** -2
    return not float(torch.maximum(start, growth).max()) < _BENIGN


def substitute(factor: Factor, rows: Tensor) -> Tensor:
    """Every row through the inverse of its own matrix."""
    start, keys, inner = factor
    weights = torch.tril(torch.tril(rows @ keys.mT) @ inner.mT) @ inner
    return rows @ start - weights @ keys


def _require_whole(broken: Tensor, factor: Tensor, heads: int, size: int) -> None:
    """Raise where a factorisation failed, or is of a matrix so near to singular that no digit is left."""
    diagonal = factor.diagonal(dim1=-2, dim2=-1)
    if diagonal.numel() == 0:
        return
    smallest, largest = diagonal.aminmax(dim=-1)
    limit = torch.finfo(factor.dtype).eps ** 0.5
    failed = (broken != 0) | ~(smallest > limit * largest)
    if failed.any():
        row, chunk = failed.nonzero()[0].tolist()
        first = chunk * size
        raise NumericalError(
            f"H must stay positive definite, but is singular to {factor.dtype} in head {row % heads}, chunk {chunk} "
            f"(tokens {first} to {first + size - 1}): use a larger ridge, forget less, ridge_decays=False, shorter "
            "keys or float64."
        )
