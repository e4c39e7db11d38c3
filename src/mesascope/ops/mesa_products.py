"""The mesa-layer by products with A_t = H_t + diag(ridge) alone: conjugate gradients, Neumann and Chebyshev series.

For all t of a chunk that starts from H_0, with g_t the product of its forget factors,

    A_t x_t = g_t H_0 x_t + sum_{i<=t} (g_t/g_i) k_i (k_i . x_t) + ridge x_t,

which is three matrix products a chunk. No factor g_t/g_i exceeds 1, so that any forgetting is safe. Tokens are rows,
``(batch, chunks, size, d)``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from mesascope.errors import NumericalError
from mesascope.ops.chunks import cut, decay_weights
from mesascope.ops.mesa_chunks import chunks_of
from mesascope.ops.mesa_solve import MOST_DECAY, condition_seen, factorise, fold, refuse_singular, substitute
from mesascope.ops.mesa_steps import Problem, Solution
from mesascope.shapes import Float, Tensor

__all__ = ["Solver", "iterated"]


class Normal(NamedTuple):
    """What A_t is made of."""

    keys: Float[Tensor, "batch chunks size dk"]
    log_decay: Float[Tensor, "batch chunks size 1"]
    H: Float[Tensor, "batch chunks dk dk"]
    ridge: Float[Tensor, "batch 1 1 dk"]

    def grown(self, x: Tensor, weights: Tensor) -> Float[Tensor, "batch chunks size dk"]:
        """H_t x_t."""
        return self.log_decay.exp() * (x @ self.H) + (weights * (x @ self.keys.mT)) @ self.keys

    def times(self, x: Tensor, weights: Tensor) -> Float[Tensor, "batch chunks size dk"]:
        """A_t x_t."""
        return self.grown(x, weights) + self.ridge * x

    def diagonal(self, weights: Tensor) -> Float[Tensor, "batch chunks size dk"]:
        """That of A_t."""
        start = self.H.diagonal(dim1=-2, dim2=-1)[:, :, None]
        return self.log_decay.exp() * start + weights @ self.keys.square() + self.ridge

    def bound(self, weights: Tensor) -> Float[Tensor, "batch chunks size 1"]:
        """An upper bound of A_t's largest eigenvalue: the trace of H_t, and the largest ridge."""
        start = self.H.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
        own = weights @ self.keys.square().sum(-1, keepdim=True)
        return self.log_decay.exp() * start + own + self.ridge.amax(-1, keepdim=True)


class Solver(NamedTuple):
    """Which method, how exact, how long at most, the number of heads that errors count in, and whether H is a ridge."""

    method: str
    tolerance: float | None
    iterations: int | None
    heads: int
    stateless: bool


def iterated(
    problem: Problem, ridge: Float[Tensor, "batch dk"], size: int, solver: Solver
) -> tuple[Solution, Float[Tensor, " batch"], int]:
    """The solution, the largest residual of every row of the batch, and the number of products with A."""
    chunks = chunks_of(problem, size)
    normal = Normal(chunks.keys, chunks.log_decay, chunks.H, ridge[:, None, None, :])
    q = problem.q
    targets, weights = cut(q, size), decay_weights(normal.log_decay)
    if solver.method == "cg":
        tolerance = 8 * torch.finfo(q.dtype).eps if solver.tolerance is None else solver.tolerance
        most = 2 * q.shape[-1] + 50 if solver.iterations is None else solver.iterations
        x, count = _Conjugate.apply(targets, *normal, tolerance, most, solver.heads, True)
    else:
        count = 30 if solver.iterations is None else solver.iterations
        if solver.method == "neumann":
            x = neumann(normal, weights, targets, count)
        else:
            x = chebyshev(normal, weights, targets, count, _floor(problem.H, normal, solver.stateless))
    residual = _relative(targets - normal.times(x.detach(), weights), targets).detach()
    y = normal.log_decay.exp() * (x @ chunks.G) + (weights * (x @ chunks.keys.mT)) @ chunks.values
    solution = Solution(y.flatten(1, 2)[:, : q.shape[1]], chunks.last_H, chunks.last_G)
    return solution, residual.flatten(1).amax(1), int(count)


def neumann(normal: Normal, weights: Tensor, q: Tensor, terms: int) -> Float[Tensor, "batch chunks size dk"]:
    """x = sum_{j<=terms} (I - A/c)^j q / c, with c the bound of A's largest eigenvalue.

    Its error falls as (1 - smallest eigenvalue / c)^terms. Source: thesis, section 3.7.2.3.
    """
    bound = normal.bound(weights)
    x = scaled = q / bound
    for _ in range(terms):
        x = scaled + x - normal.times(x, weights) / bound
    return x


def chebyshev(
    normal: Normal, weights: Tensor, q: Tensor, terms: int, smallest: Tensor
) -> Float[Tensor, "batch chunks size dk"]:
    """The Chebyshev semi-iteration for eigenvalues between ``smallest`` and the bound.

    Its error falls as ((sqrt(r) - 1) / (sqrt(r) + 1))^terms, with r the bound over ``smallest``.
    """
    bound = normal.bound(weights)
    centre, radius = (bound + smallest) / 2, (bound - smallest) / 2
    rho = radius / centre
    x = step = q / centre
    for _ in range(terms):
        pace = 1 / (2 * centre - rho * radius)
        step = pace * radius * rho * step + 2 * pace * (q - normal.times(x, weights))
        x, rho = x + step, pace * radius
    return x


def _floor(H: Tensor, normal: Normal, stateless: bool) -> Float[Tensor, "batch chunks size 1"]:
    """A lower bound of A_t's smallest eigenvalue: what the first state keeps of its own, and the smallest ridge.

    Without a state H is diagonal, the ridge. With one its eigenvalues count as constants in derivatives: theirs do not
    exist where two are equal.
    """
    smallest = H.diagonal(dim1=-2, dim2=-1).amin(-1) if stateless else torch.linalg.eigvalsh(H.detach())[:, 0]
    whole = normal.log_decay[..., -1:, :]
    kept = (whole.cumsum(1) - whole + normal.log_decay).exp()
    return kept * smallest[:, None, None, None] + normal.ridge.amin(-1, keepdim=True)


class _Conjugate(torch.autograd.Function):
    """x_t = A_t^{-1} q_t by conjugate gradients, how many of them, and derivatives by as many systems again.

    They follow from the equation, not from the iteration: grad q = u = A^{-1} grad x and grad A_t = -u_t x_t^T.
    """

    @staticmethod
    def forward(q, keys, log_decay, H, ridge, tolerance, iterations, heads, strict):
        return _iterate(Normal(keys, log_decay, H, ridge), q, tolerance, iterations, heads, strict)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        _, *normal, ctx.tolerance, ctx.iterations, ctx.heads, ctx.strict = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[0], *normal)
        ctx.save_for_forward(output[0], *normal)

    @staticmethod
    def backward(ctx, grad_x: Tensor, *_):
        x, *parts = ctx.saved_tensors
        normal = Normal(*parts)
        u = _Conjugate.apply(grad_x, *normal, ctx.tolerance, ctx.iterations, ctx.heads, ctx.strict)[0]
        weights = decay_weights(normal.log_decay)
        scores, other = (weights * (rows @ normal.keys.mT) for rows in (x, u))
        grad_keys = -(scores.mT @ u + other.mT @ x)
        as_query = -(u * normal.grown(x, weights)).sum(-1, keepdim=True)
        as_key = -0.5 * (normal.keys * grad_keys).sum(-1, keepdim=True)
        outer = (normal.log_decay.exp() * u).mT @ x
        grad_ridge = -(u * x).sum((1, 2), keepdim=True)
        return u, grad_keys, as_query + as_key, -0.5 * (outer + outer.mT), grad_ridge, None, None, None, None

    @staticmethod
    def jvp(ctx, q, keys, log_decay, H, ridge, *_):
        x, *parts = ctx.saved_tensors
        normal = Normal(*parts)
        weights = decay_weights(normal.log_decay)
        change = torch.zeros_like(x) if q is None else q
        if keys is not None:
            change = change - (weights * (x @ keys.mT)) @ normal.keys - (weights * (x @ normal.keys.mT)) @ keys
        if log_decay is not None:
            turned = weights * (log_decay - log_decay.mT)
            moved = log_decay * normal.log_decay.exp() * (x @ normal.H) + (turned * (x @ normal.keys.mT)) @ normal.keys
            change = change - moved
        if H is not None:
            change = change - normal.log_decay.exp() * (x @ H.mT)
        if ridge is not None:
            change = change - ridge * x
        return _Conjugate.apply(change, *normal, ctx.tolerance, ctx.iterations, ctx.heads, ctx.strict)[0], None

    @staticmethod
    def vmap(info, in_dims, *inputs):
        """The mapped axis becomes part of the batch, whose heads still come in turn."""
        x, count = _Conjugate.apply(*fold(info.batch_size, in_dims[:5], inputs[:5]), *inputs[5:8], False)
        return (x.unflatten(0, (info.batch_size, -1)), count), (0, None)


def _iterate(
    normal: Normal, q: Tensor, tolerance: float, iterations: int, heads: int, strict: bool
) -> tuple[Tensor, Tensor]:
    """x with |A x - q| <= tolerance |q| by the recurrence's residual, and how many iterations that took.

    What does not arrive starts again in float64. What does not arrive there, or has a condition number beyond the
    precision of ``q``, is refused, or NaN where not ``strict``; any result will do for a tolerance of 0.
    """
    weights = decay_weights(normal.log_decay)
    x, relative, count = _recurrence(normal, weights, q, tolerance, iterations)
    failed = ~(relative <= tolerance) & (tolerance > 0)
    if q.dtype != torch.float64 and bool(failed.any()):
        wide = Normal(*(part.double() for part in normal))
        x, relative, more = _recurrence(wide, decay_weights(wide.log_decay), q.double(), tolerance, iterations)
        x, failed, count = x.to(q.dtype), ~(relative <= tolerance), count + more
    if tolerance > 0:
        condition = condition_seen(x, q, normal.diagonal(weights))
        singular = ~(condition <= 1 / torch.finfo(q.dtype).eps)
        if strict and bool(singular.any()):
            refuse_singular(condition.amax(-1), heads, q.shape[2], q.dtype)
        if strict and bool(failed.any()):
            raise NumericalError(
                f"the relative residual must reach {tolerance:g}, but is {float(relative.max()):.2g} after {count} "
                "iterations of conjugate gradients: use a larger tolerance, ridge or number of iterations, or float64."
            )
        x = x.masked_fill((singular | failed)[..., None], torch.nan)
    return x, torch.tensor(count)


def _recurrence(
    normal: Normal, weights: Tensor, q: Tensor, tolerance: float, iterations: int
) -> tuple[Tensor, Tensor, int]:
    """x, the recurrence's relative residual and the number of iterations.

    Preconditioned by the factor of a chunk's A without, or with less, forgetting: exact where nothing is forgotten.
    """
    scale = (-0.5 * normal.log_decay.clamp(min=-MOST_DECAY)).exp()
    factor = factorise(scale * normal.keys, normal.H + torch.diag_embed(normal.ridge.squeeze(1)))
    x, residual, direction, energy = torch.zeros_like(q), q, torch.zeros_like(q), q.new_ones(())
    relative, count = _relative(residual, q), 0
    while count < iterations and bool((relative > tolerance).any()):
        better = substitute(factor, residual)
        before, energy = energy, _dot(residual, better)
        direction = better + energy / before.where(before > 0, 1) * direction
        image = normal.times(direction, weights)
        along = _dot(direction, image)
        step = torch.where(along > 0, energy / along.where(along > 0, 1), 0)
        x, residual, count = x + step * direction, residual - step * image, count + 1
        relative = _relative(residual, q)
    return x, relative, count


def _relative(residual: Tensor, q: Tensor) -> Float[Tensor, "batch chunks size"]:
    size = q.norm(dim=-1)
    return residual.norm(dim=-1) / size.where(size > 0, 1)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(-1, keepdim=True)
