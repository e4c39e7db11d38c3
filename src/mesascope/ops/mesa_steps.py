"""The mesa-layer a token at a time: the definition, and the thesis' recurrence."""

from __future__ import annotations

from typing import NamedTuple

import torch

from mesascope.errors import NumericalError
from mesascope.ops.mesa_solve import condition_seen, refuse_singular
from mesascope.ops.reading import read
from mesascope.shapes import Float, Tensor

__all__ = ["Problem", "Solution", "scan", "solve"]


class Problem(NamedTuple):
    """A sequence and the states to start from, batch and heads as one axis, heads in turn."""

    q: Float[Tensor, "batch t dk"]
    k: Float[Tensor, "batch t dk"]
    v: Float[Tensor, "batch t dv"]
    log_forget: Float[Tensor, "batch t"]
    H: Float[Tensor, "batch dk dk"]
    G: Float[Tensor, "batch dv dk"]


class Solution(NamedTuple):
    """Outputs, and the states after the last token."""

    y: Float[Tensor, "batch t dv"]
    H: Float[Tensor, "batch dk dk"]
    G: Float[Tensor, "batch dv dk"]


def _grow(
    H: Float[Tensor, "batch dk dk"],
    G: Float[Tensor, "batch dv dk"],
    k: Float[Tensor, "batch dk"],
    v: Float[Tensor, "batch dv"],
    log_forget: Float[Tensor, " batch"],
) -> tuple[Float[Tensor, "batch dk dk"], Float[Tensor, "batch dv dk"]]:
    """H <- gamma H + k k^T and G <- gamma G + v k^T."""
    forget = log_forget.exp()[:, None, None]
    return forget * H + k[:, :, None] * k[:, None, :], forget * G + v[:, :, None] * k[:, None, :]


def solve(problem: Problem, ridge: Float[Tensor, "batch dk"], heads: int) -> Solution:
    """y_t = G_t (H_t + diag(ridge))^{-1} q_t by a dense solve at every t: the definition, at O(T d^3).

    Raises:
        NumericalError: H_t is singular to the precision at hand; ``heads`` is what the error counts in.
    """
    q, k, v, log_forget, H, G = problem
    rows, conditions, limit = [], [], 1 / torch.finfo(q.dtype).eps
    for t in range(q.shape[1]):
        H, G = _grow(H, G, k[:, t], v[:, t], log_forget[:, t])
        whole = H + torch.diag_embed(ridge)
        x, failed = torch.linalg.solve_ex(whole, q[:, t])
        seen = condition_seen(x, q[:, t], whole.diagonal(dim1=-2, dim2=-1)).detach().masked_fill(failed != 0, torch.inf)
        rows.append((G @ x.masked_fill(~(seen <= limit)[:, None], torch.nan)[..., None]).squeeze(-1))
        conditions.append(seen)
    if conditions and q.shape[0] and not torch.compiler.is_compiling():
        _require_definite(torch.stack(conditions, 1), limit, heads)
    return Solution(_stacked(rows, v), H, G)


def _require_definite(conditions: Float[Tensor, "batch t"], limit: float, heads: int) -> None:
    """Refused under `torch.func.vmap` only where every member is singular."""
    if not any(worst <= limit for (worst,) in read(conditions.amax()[None])):
        numbers = read(conditions.flatten())[0]
        refuse_singular(torch.tensor(numbers).view(conditions.shape), heads, 1, conditions.dtype)


def scan(problem: Problem) -> Solution:
    """Recursive least squares: R_t = (R_{t-1} - R k k^T R / (gamma + k^T R k)) / gamma, O(T d^2) and one inverse of H.

    Source: thesis, eq. 3.19. Rounding errors of R add up over time, and derivatives go back through every step.
    """
    q, k, v, log_forget, H, G = problem
    rows, growths, R, most = [], [], torch.linalg.inv_ex(H).inverse, 0.1 / torch.finfo(q.dtype).eps
    for t in range(q.shape[1]):
        forget = log_forget[:, t].exp()[:, None, None]
        Rk = R @ k[:, t, :, None]
        growth = forget + (k[:, t, :, None] * Rk).sum(-2, keepdim=True)
        lost = ~(growth <= most * forget)
        R = ((R - Rk * Rk.mT / growth) / forget).masked_fill(lost, torch.nan)
        H, G = _grow(H, G, k[:, t], v[:, t], log_forget[:, t])
        rows.append((G @ (R @ q[:, t, :, None])).squeeze(-1))
        growths.append(growth / forget)
    _require_digits(growths, most)
    return Solution(_stacked(rows, v), H, G)


def _require_digits(growths: list[Float[Tensor, "batch 1 1"]], most: float) -> None:
    """Each update rounds R relative to what it was before, of which 1/growth is left in the direction of its key."""
    if growths and growths[0].numel() and not torch.compiler.is_compiling():
        seen = [growth for (growth,) in read(torch.stack(growths).amax()[None])]
        if not any(growth <= most for growth in seen):
            raise NumericalError(
                f"a token must not shrink R by more than {most:.2g}, or the recurrence has no digits left, but one "
                f"does by {seen[0]:.2g}: use method='chunk', a larger ridge, shorter keys or float64."
            )


def _stacked(rows: list[Tensor], v: Tensor) -> Tensor:
    return torch.stack(rows, 1) if rows else v[:, :0]
