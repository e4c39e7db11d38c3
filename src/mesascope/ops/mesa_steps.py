"""The mesa-layer a token at a time: its definition."""

from __future__ import annotations

import torch

from mesascope.ops.mesa_answers import condition_seen, dense_solve
from mesascope.ops.mesa_chunks import Problem, Solution
from mesascope.ops.mesa_solve import refuse_singular
from mesascope.ops.products import product
from mesascope.ops.reading import read
from mesascope.shapes import Float, Tensor

__all__ = ["require_known", "solve"]


def solve(problem: Problem, heads: int, check: bool) -> Solution:
    """y_t = G_t (H_t + diag(ridge))^{-1} q_t by a dense solve at every t: the definition, at O(T d^3).

    Raises:
        NumericalError: H_t is singular to the precision at hand, and ``check`` asks; ``heads`` is what the error counts
            in.
    """
    q, k, v, log_forget, beta, (H,), (G,), ridge, relative = problem
    rows, conditions, limit = [], [], 1 / torch.finfo(q.dtype).eps
    for t in range(q.shape[1]):
        forget = log_forget[:, t].exp()[:, None, None]
        counted = beta[:, t, None] * k[:, t]
        H = forget * H + counted[:, :, None] * k[:, t, None, :]
        G = forget * G + v[:, t, :, None] * counted[:, None, :]
        whole = H + torch.diag_embed(ridge * _size(H) if relative else ridge)
        x, seen = dense_solve(whole, q[:, t])
        known = x.masked_fill(~(seen <= limit)[:, None], torch.nan)
        rows.append(product(G, known[..., None]).squeeze(-1))
        conditions.append(seen)
    if check and conditions and q.shape[0] and not torch.compiler.is_compiling():
        _require_definite(torch.stack(conditions, 1), limit, heads)
    return Solution(torch.stack(rows, 1) if rows else v[:, :0], H[None], G[None])


def require_known(H: Float[Tensor, "*batch heads d d"], x: Tensor, q: Tensor) -> None:
    """Refuse one token's answers of which no digit is known, as `solve` does."""
    seen = condition_seen(x, q, H.diagonal(dim1=-2, dim2=-1)).detach()
    if seen.numel() and not torch.compiler.is_compiling():
        _require_definite(seen.reshape(-1, 1), 1 / torch.finfo(H.dtype).eps, H.shape[-3])


def _size(H: Float[Tensor, "batch dk dk"]) -> Float[Tensor, "batch 1"]:
    """|H|_F, and 1 where H is 0: see `mesascope.ops.mesa_normal.Normal.norm`."""
    square = H.double().square().sum((-2, -1))[:, None]
    return square.where(square > 0, 1).sqrt().to(H.dtype)


def _require_definite(conditions: Float[Tensor, "batch t"], limit: float, heads: int) -> None:
    """Refused under `torch.func.vmap` only where every member is singular."""
    if not any(worst <= limit for (worst,) in read(conditions.amax()[None])):
        numbers = read(conditions.flatten())[0]
        refuse_singular(torch.tensor(numbers, device="cpu").view(conditions.shape), heads, 1, conditions.dtype)
