"""The mesa-layer's solve for all tokens of a chunk as one Triton kernel, and its gradients as another.

The algebra is that of `mesascope.ops.mesa_normal`: what a chunk needs stays on chip from the states it starts from to
the answers, one correction included. Both matrices are factorised by elimination without pivots, one rank-one update
for each of their rows.

Nothing here was timed on a GPU yet: its numbers are checked in Triton's interpreter, and it compiles for sm_90, with 80
KB of shared memory for chunks of 64 tokens and keys of 64 entries. This module needs Triton, and is imported where it
is asked for alone.
"""

# pyright: reportMissingImports=false, reportIndexIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from mesascope.ops.mesa_normal import Normal
from mesascope.shapes import Tensor

__all__ = ["gradients", "solve"]


@triton.jit
def _inverse(A, size: tl.constexpr):
    """That of a symmetric positive definite matrix, by Gauss-Jordan elimination."""
    index = tl.arange(0, size)
    for j in range(size):
        at = index == j
        row = tl.sum(tl.where(at[:, None], A, 0.0), 0)
        column = tl.sum(tl.where(at[None, :], A, 0.0), 1)
        pivot = 1.0 / tl.sum(tl.where(at, row, 0.0), 0)
        A = A - column[:, None] * (pivot * row)[None, :]
        A = tl.where(at[:, None], (pivot * row)[None, :], A)
        A = tl.where(at[None, :], (-pivot * column)[:, None], A)
        A = tl.where(at[:, None] & at[None, :], pivot, A)
    return A


@triton.jit
def _inverse_root(A, size: tl.constexpr):
    """R^{-1} with R R^T = A, lower triangular."""
    index = tl.arange(0, size)
    root = tl.where(index[:, None] == index[None, :], 1.0, 0.0).to(A.dtype)
    for j in range(size):
        at = index == j
        row = tl.sum(tl.where(at[:, None], A, 0.0), 0)
        own = tl.sum(tl.where(at[:, None], root, 0.0), 0)
        pivot = tl.sum(tl.where(at, row, 0.0), 0)
        factor = tl.where(index > j, tl.sum(tl.where(at[None, :], A, 0.0), 1), 0.0) / pivot
        A = A - factor[:, None] * row[None, :]
        root = root - factor[:, None] * own[None, :]
        root = tl.where(at[:, None], (own / tl.sqrt(pivot))[None, :], root)
    return root


@triton.jit
def _product(a, b):
    return tl.dot(a, b, input_precision="ieee", out_dtype=a.dtype)


@triton.jit
def _substitute(rows, lift, start, solved, inner, outer, causal):
    """(g_t M_t)^{-1} for every row."""
    rows = lift[:, None] * rows
    scores = tl.where(causal, _product(rows, tl.trans(solved)), 0.0)
    known = tl.where(causal, _product(scores, tl.trans(inner)), 0.0)
    return _product(rows, start) - _product(known, outer)


@triton.jit
def _times(x, keys, weights, left, H, ridge):
    """A_t x_t."""
    own = _product(weights * _product(x, tl.trans(keys)), keys)
    return left[:, None] * _product(x, H) + own + ridge[None, :] * x


@triton.jit
def _load(pointer, chunk, rows: tl.constexpr, columns: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """One chunk's matrix, filled up with zeros."""
    i, j = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    return tl.load(pointer + chunk * rows * columns + i * columns + j, (i < rows) & (j < columns), 0.0)


@triton.jit
def _store(
    pointer, chunk, matrix, rows: tl.constexpr, columns: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    i, j = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    tl.store(pointer + chunk * rows * columns + i * columns + j, matrix, (i < rows) & (j < columns))


@triton.jit
def _solve(
    q, keys, weights, log_forget, H, ridge, x, size: tl.constexpr, d: tl.constexpr, SIZE: tl.constexpr, D: tl.constexpr
):
    chunk = tl.program_id(0).to(tl.int64)
    t, c = tl.arange(0, SIZE), tl.arange(0, D)
    q_, k = _load(q, chunk, size, d, SIZE, D), _load(keys, chunk, size, d, SIZE, D)
    w, h = _load(weights, chunk, size, size, SIZE, SIZE), _load(H, chunk, d, d, D, D)
    forget = tl.load(log_forget + chunk * size + t, t < size, 0.0)
    r = tl.load(ridge + chunk * d + c, c < d, 0.0)
    left = tl.exp(tl.cumsum(forget, 0))
    lift = tl.exp(-tl.cumsum(tl.where(t > 0, forget, 0.0), 0))
    first = tl.exp(tl.sum(tl.where(t == 0, forget, 0.0), 0))
    diagonal = tl.where(c < d, r, 1.0)
    start = _inverse(first * h + tl.where(c[:, None] == c[None, :], diagonal[None, :], 0.0), D)
    strength = tl.sum(tl.where(t[:, None] == t[None, :], w, 0.0), 1)
    scaled = tl.sqrt(strength * lift)[:, None] * k
    solved = _product(scaled, start)
    gram = _product(scaled, tl.trans(solved)) + tl.where(t[:, None] == t[None, :], 1.0, 0.0)
    inner = _inverse_root(gram, SIZE)
    outer = _product(inner, solved)
    causal = t[:, None] >= t[None, :]
    answer = _substitute(q_, lift, start, solved, inner, outer, causal)
    residual = q_ - _times(answer, k, w, left, h, r)
    answer += _substitute(residual, lift, start, solved, inner, outer, causal)
    _store(x, chunk, answer, size, d, SIZE, D)


@triton.jit
def _gradients(
    x, u, keys, weights, log_forget, H, grad_keys, grad_weights, grad_forget, grad_H, grad_ridge,
    size: tl.constexpr, d: tl.constexpr, SIZE: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    chunk = tl.program_id(0).to(tl.int64)
    t, c = tl.arange(0, SIZE), tl.arange(0, D)
    x_, u_ = _load(x, chunk, size, d, SIZE, D), _load(u, chunk, size, d, SIZE, D)
    k, w = _load(keys, chunk, size, d, SIZE, D), _load(weights, chunk, size, size, SIZE, SIZE)
    h = _load(H, chunk, d, d, D, D)
    left = tl.exp(tl.cumsum(tl.load(log_forget + chunk * size + t, t < size, 0.0), 0))
    scores, others = _product(x_, tl.trans(k)), _product(u_, tl.trans(k))
    both = _product(tl.trans(w * scores), u_) + _product(tl.trans(w * others), x_)
    _store(grad_keys, chunk, -both, size, d, SIZE, D)
    _store(grad_weights, chunk, -scores * others, size, size, SIZE, SIZE)
    decay = -left * tl.sum(u_ * _product(x_, h), 1)
    later = tl.sum(tl.where(t[:, None] >= t[None, :], decay[:, None], 0.0), 0)
    tl.store(grad_forget + chunk * size + t, later, t < size)
    outer = _product(tl.trans(left[:, None] * u_), x_)
    _store(grad_H, chunk, -0.5 * (outer + tl.trans(outer)), d, d, D, D)
    tl.store(grad_ridge + chunk * d + c, -tl.sum(u_ * x_, 0), c < d)


def solve(normal: Normal, q: Tensor) -> Tensor:
    """x_t = A_t^{-1} q_t of every chunk, after one correction; what cannot be solved is not finite."""
    q, *parts = _contiguous(q, *normal)
    x = q.new_empty(q.shape)
    _solve[(q.shape[:-2].numel(),)](q, *parts, x, *_sizes(q))
    return x


def gradients(normal: Normal, x: Tensor, u: Tensor) -> tuple[Tensor, ...]:
    """Of keys, weights, log_forget, H and ridge, from x and u = A^{-1} grad_x."""
    x, u, *parts = _contiguous(x, u, *normal)
    found = tuple(part.new_empty(part.shape) for part in parts)
    _gradients[(x.shape[:-2].numel(),)](x, u, *parts[:4], *found, *_sizes(x))
    return found


def _contiguous(*tensors: Tensor) -> list[Tensor]:
    return [tensor.contiguous() for tensor in tensors]


def _sizes(q: Tensor) -> tuple[int, int, int, int]:
    """Tokens and width of a chunk, and the powers of two, 16 at least, that products are made of."""
    size, d = q.shape[-2:]
    return size, d, max(triton.next_power_of_2(size), 16), max(triton.next_power_of_2(d), 16)
