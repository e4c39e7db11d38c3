"""The normal equations of all tokens of a chunk: products with A_t = H_t + diag(ridge), and a factorisation.

In a chunk that starts from H, with g_t the product of its forget factors up to t and w_ti = beta_i g_t / g_i,

    A_t = g_t H + sum_{i<=t} w_ti k_i k_i^T + diag(ridge).

Let M_t = H + diag(ridge) + sum_{i<=t} kappa_i kappa_i^T, with kappa_i = sqrt(beta_i / g_i) k_i and the ridge of the
first token. A_t equals g_t M_t if H contains the whole ridge; otherwise it is close to g_t M_t unless g_t is tiny. All
M_t of a chunk share one factorisation. With P = (H + diag(ridge))^{-1}, K = [kappa_1 .. kappa_C] and R = chol(I + K^T P
K), the leading blocks of R factorise the leading blocks of I + K^T P K. So with Q = [q_1 .. q_C]

    M_t^{-1} q_t = P Q_t - P K W_t,    W = R^{-T} mask(R^{-1} mask(K^T P Q)),

where mask keeps the rows i <= t of column t. All operations except two factorisations are matrix products. The forget
factor of a chunk's first token is applied to H beforehand, so a chunk of one token is exact for any forget factor.

In the code tokens are rows, ``(*, size, d)``, so the products above are transposed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from mesascope.ops.chunks import causal, decays
from mesascope.ops.products import exact_products, product
from mesascope.shapes import Float, Tensor

# Largest size of a block that LAPACK factorises.
_BLOCK = 16


class NormalEquations(NamedTuple):
    """The parts of A_t; the ridge has one row for all tokens of a chunk, or one row for each token."""

    keys: Float[Tensor, "*chunks size dk"]
    weights: Float[Tensor, "*chunks size size"]
    log_forget: Float[Tensor, "*chunks size 1"]
    H: Float[Tensor, "*chunks dk dk"]
    ridge: Float[Tensor, "*chunks rows dk"]

    def times(self, x: Tensor) -> Float[Tensor, "*chunks size dk"]:
        """A_t x_t."""
        scores = self.weights * product(x, self.keys.mT)
        known = decays(self.log_forget) * product(x, self.H) + product(scores, self.keys)
        return torch.addcmul(known, self.ridge, x)

    def many_times(self) -> Callable[[Tensor], Tensor]:
        """`times` as a function for many calls, without derivatives; the common part is computed once."""
        both, left = torch.cat([self.H, self.keys.mT], -1), decays(self.log_forget)
        sizes = (self.H.shape[-1], self.keys.shape[-2])

        def times(x: Tensor) -> Tensor:
            grown, scores = (x @ both).split(sizes, -1)
            return torch.addcmul(self.ridge * x, left, grown).add_((self.weights * scores) @ self.keys)

        return times

    def diagonal(self) -> Float[Tensor, "*chunks size dk"]:
        """Diagonal of A_t. It costs as much as a product with the keys."""
        start = self.H.diagonal(dim1=-2, dim2=-1)[..., None, :]
        return decays(self.log_forget) * start + self.weights @ self.keys.square() + self.ridge

    def largest(self, entry: Float[Tensor, "*chunks size"]) -> Float[Tensor, "*chunks size"]:
        """A lower bound on A_t's largest eigenvalue: about tr(H_t^2) / tr(H_t), or the diagonal ``entry`` if larger.

        If keys share one direction, the diagonal can be dk times too small. The estimate of tr(H_t^2) leaves out
        products of H with keys, which cost the most; this reduces it at most by half.
        """
        left, trace = decays(self.log_forget), self.trace()
        among = ((self.weights @ (self.keys @ self.keys.mT).square()) * self.weights).sum(-1, keepdim=True)
        square = left.square() * self.H.square().sum((-2, -1))[..., None, None] + among
        mean = (square / trace.where(trace > 0, 1)).nan_to_num(nan=0.0, posinf=0.0)
        return torch.maximum(mean.squeeze(-1), entry)

    def matrices(self) -> Float[Tensor, "*chunks size dk dk"]:
        """A_t."""
        outer = (self.keys[..., :, None] * self.keys[..., None, :]).flatten(-2)
        whole = decays(self.log_forget) * self.H.flatten(-2)[..., None, :] + self.weights @ outer
        return whole.unflatten(-1, self.H.shape[-2:]) + torch.diag_embed(self.ridge)

    def norm(self) -> Float[Tensor, "*chunks size 1"]:
        """|H_t|_F, or 1 if H_t is 0. Computed in float64, so squares of float32 numbers do not overflow."""
        keys, own, log_forget, H, _ = (part.double() for part in self)
        left, before = decays(log_forget), H.square().sum((-2, -1))[..., None, None]
        across = own @ ((keys @ H) * keys).sum(-1, keepdim=True)
        among = ((own @ (keys @ keys.mT).square()) * own).sum(-1, keepdim=True)
        square = left.square() * before + 2 * left * across + among
        return square.where(square > 0, 1).sqrt().to(self.H.dtype)

    def trace(self) -> Float[Tensor, "*chunks size 1"]:
        """Trace of H_t."""
        start = self.H.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
        return decays(self.log_forget) * start + product(self.weights, self.keys.square().sum(-1, keepdim=True))

    def part(self, chosen: Any) -> NormalEquations:
        """The equations of the chosen chunks."""
        return NormalEquations(*(part[chosen] for part in self))

    def halves(self) -> tuple[NormalEquations, NormalEquations]:
        """Equations of the first half of every chunk, and of the second, which starts from the state in between."""
        half = self.keys.shape[-2] // 2
        first, second = slice(None, half), slice(half, None)
        row = self.weights[..., half - 1, first, None]
        between = decays(self.log_forget[..., first, :])[..., -1:, :] * self.H
        between = between + (row * self.keys[..., first, :]).mT @ self.keys[..., first, :]
        each = self.ridge.shape[-2] > 1
        return tuple(  # type: ignore[return-value]
            NormalEquations(
                self.keys[..., own, :], self.weights[..., own, own], self.log_forget[..., own, :], start,
                self.ridge[..., own, :] if each else self.ridge,
            )
            for own, start in ((first, self.H), (second, between))
        )  # fmt: skip


class Factor(NamedTuple):
    """Factorisation of a chunk: [P, P K], R^{-1}, R^{-1} (P K)^T, 1/g_t, and two diagnostics.

    ``condition`` is a lower bound on the condition number of P, from diagonals, and infinite if a factorisation failed.
    The true value is at most d^2 times as large. ``growth`` is the largest factor by which one token increases H in any
    direction.
    """

    start: Float[Tensor, "*chunks dk dk_and_size"]
    inner: Float[Tensor, "*chunks size size"]
    outer: Float[Tensor, "*chunks size dk"]
    inverse_decay: Float[Tensor, "*chunks size 1"]
    condition: Float[Tensor, "*chunks"]
    growth: Float[Tensor, "*chunks"]


def forgotten(log_forget: Float[Tensor, "*chunks size 1"]) -> Float[Tensor, "*chunks"]:
    """-log g_t at the end of each chunk, without its first token."""
    return -log_forget[..., 1:, 0].sum(-1)


@exact_products()
def factorise(equations: NormalEquations) -> Factor:
    """Factorise every chunk. The condition number shows if the factor has any accurate digits."""
    later = torch.cat([torch.zeros_like(equations.log_forget[..., :1, :]), equations.log_forget[..., 1:, :]], -2)
    inverse_decay = (-later.cumsum(-2)).exp()
    H = equations.log_forget[..., :1, :].exp() * equations.H + torch.diag_embed(equations.ridge[..., 0, :])
    keys = (equations.weights.diagonal(dim1=-2, dim2=-1)[..., None] * inverse_decay).sqrt() * equations.keys
    root, broken = _inverse_root(H)
    start = root.mT @ root
    solved = keys @ start
    gram = keys @ solved.mT
    gram.diagonal(dim1=-2, dim2=-1).add_(1)
    inner, too_broken = _inverse_root(gram)
    growth = inner.diagonal(dim1=-2, dim2=-1).amin(-1).square().reciprocal()
    condition = H.diagonal(dim1=-2, dim2=-1).amax(-1) * start.diagonal(dim1=-2, dim2=-1).amax(-1)
    condition = condition.masked_fill((broken + too_broken) != 0, torch.inf).nan_to_num(nan=torch.inf)
    return Factor(torch.cat([start, solved.mT], -1), inner, inner @ solved, inverse_decay, condition, growth)


def lower_inverse(A: Float[Tensor, "*batch n n"]) -> tuple[Float[Tensor, "*batch n n"], Tensor]:
    """L^{-1} with L L^T = A by LAPACK, and a flag that is nonzero if there is no L."""
    root, broken = torch.linalg.cholesky_ex(A)
    identity = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device).expand_as(root)
    return torch.linalg.solve_triangular(root, identity, upper=False), broken


def _inverse_root(A: Float[Tensor, "*batch n n"]) -> tuple[Float[Tensor, "*batch n n"], Tensor]:
    """L^{-1} with L L^T = A, and a flag that is nonzero if there is no L. Recursive; 30 times as fast as LAPACK.

    In blocks, L_21 = A_21 L_11^{-T}, L_22 L_22^T = A_22 - L_21 L_21^T and (L^{-1})_21 = -L_22^{-1} L_21 L_11^{-1}.
    """
    n = A.shape[-1]
    if n <= _BLOCK:
        return lower_inverse(A)
    half = n // 2
    first, broken = _inverse_root(A[..., :half, :half])
    below = A[..., half:, :half] @ first.mT
    second, too_broken = _inverse_root(A[..., half:, half:] - below @ below.mT)
    inverse = torch.zeros_like(A)
    inverse[..., :half, :half], inverse[..., half:, half:] = first, second
    inverse[..., half:, :half] = -second @ (below @ first)
    return inverse, broken + too_broken


def substitute(factor: Factor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Products of each row with (g_t M_t)^{-1}, and with P / g_t, the inverse for the state before the chunk alone."""
    first, scores = (factor.inverse_decay * rows @ factor.start).split(
        factor.outer.shape[-1:] + factor.outer.shape[-2:-1], -1
    )
    return first - causal(causal(scores) @ factor.inner.mT) @ factor.outer, first
