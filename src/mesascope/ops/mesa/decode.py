"""States of the mesa-layer, and decoding by a dense solve (the definition) or, at O(d^2), by a root of H^{-1}.

With H^{-1} = S S^T before a token of key k, strength b and forget factor g, and f = S^T k,

    H_t = g H + b k k^T,    S_t = (S - c (S f) f^T) / sqrt(g),    c = a / (1 + sqrt(g a / b)),    a = b / (g + b |f|^2).

S_t S_t^T has no negative eigenvalue, even with rounding (Potter's form of recursive least squares). Rounding errors
still accumulate over tokens, so each solution is corrected once with H, and S is recomputed if the residual is large.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from mesascope.ops.mesa.chunks import Problem, Solution
from mesascope.ops.mesa.equations import lower_inverse
from mesascope.ops.mesa.solve import condition_seen, dense_solve, refuse_singular
from mesascope.ops.products import product
from mesascope.ops.reading import may_read, read
from mesascope.shapes import Float, Tensor

# Residual of S S^T q relative to q at which S is recomputed; one correction squares a smaller residual.
_DRIFTED = 1e-3


class RootedMesaState(NamedTuple):
    """A `MesaState` with a root S of H^{-1} = S S^T, for decoding."""

    H: Float[Tensor, "*batch heads dk dk"]
    G: Float[Tensor, "*batch heads dv dk"]
    root: Float[Tensor, "*batch heads dk dk"]


class MesaState(NamedTuple):
    """State after a sequence whose ridge decays: H, which includes the decayed ridge, and G."""

    H: Float[Tensor, "*batch heads dk dk"]
    G: Float[Tensor, "*batch heads dv dk"]

    def rooted(self) -> RootedMesaState:
        """The state with a root of H^{-1}, computed once at O(d^3); each `mesa_step` then costs O(d^2)."""
        return RootedMesaState(*self, root_of_inverse(self.H))


class FixedRidgeState(NamedTuple):
    """State after a sequence whose ridge does not decay: H without the ridge, and G."""

    H: Float[Tensor, "*batch heads dk dk"]
    G: Float[Tensor, "*batch heads dv dk"]


def root_of_inverse(H: Float[Tensor, "*batch d d"]) -> Float[Tensor, "*batch d d"]:
    """Matrix S with S S^T = H^{-1}; not finite if H is singular."""
    return lower_inverse(H)[0].mT.contiguous()


def solve_tokens(problem: Problem) -> Solution:
    """y_t = G_t (H_t + diag(ridge))^{-1} q_t by a dense solve at every t: the definition, at O(T d^3)."""
    (q, k, v, log_forget, beta, (H,), (G,), ridge), limit = problem[:8], 1 / torch.finfo(problem.q.dtype).eps
    rows, conditions = [], []
    for t in range(q.shape[1]):
        forget = log_forget[:, t].exp()[:, None, None]
        counted = beta[:, t, None] * k[:, t]
        H = forget * H + counted[:, :, None] * k[:, t, None, :]
        G = forget * G + v[:, t, :, None] * counted[:, None, :]
        whole = H + torch.diag_embed(ridge * _size(H) if problem.relative else ridge)
        x, seen = dense_solve(whole, q[:, t])
        known = x.masked_fill(~(seen <= limit)[:, None], torch.nan)
        rows.append(product(G, known[..., None]).squeeze(-1))
        conditions.append(seen)
    if conditions:
        _require_definite(torch.stack(conditions, 1), problem.heads)
    return Solution(torch.stack(rows, 1) if rows else v[:, :0] + 0 * (H.sum() + G.sum()), H[None], G[None])


def require_known(H: Float[Tensor, "*batch heads d d"], x: Tensor, q: Tensor) -> None:
    """Raise if the solution for one token has no accurate digit, as `solve_tokens` does."""
    seen = condition_seen(x, q, H.diagonal(dim1=-2, dim2=-1).amax(-1)).detach()
    _require_definite(seen.reshape(-1, 1), H.shape[-3])


def _size(H: Float[Tensor, "batch dk dk"]) -> Float[Tensor, "batch 1"]:
    """|H|_F, or 1 if H is 0: see `mesascope.ops.mesa.equations.NormalEquations.norm`."""
    square = H.double().square().sum((-2, -1))[:, None]
    return square.where(square > 0, 1).sqrt().to(H.dtype)


def _require_definite(conditions: Float[Tensor, "rows t"], heads: int) -> None:
    """Raise if a matrix is singular; under `torch.func.vmap`, only if every member has a singular matrix."""
    if not conditions.numel() or torch.compiler.is_compiling() or not may_read(conditions.device):
        return
    limit = 1 / torch.finfo(conditions.dtype).eps
    if not any(worst <= limit for (worst,) in read(conditions.amax()[None])):
        numbers = read(conditions.flatten())[0]
        refuse_singular(torch.tensor(numbers, device="cpu").view(conditions.shape), heads, 1, conditions.dtype)


def rooted_step(
    q: Float[Tensor, "*batch d"],
    k: Float[Tensor, "*batch d"],
    v: Float[Tensor, "*batch dv"],
    forget: Float[Tensor, "*batch"],
    beta: Float[Tensor, "*batch"],
    state: RootedMesaState,
) -> tuple[Float[Tensor, "*batch dv"], Float[Tensor, "*batch d"], RootedMesaState]:
    """Output y_t, solution x_t = H_t^{-1} q_t, and the state after the token."""
    g, b = forget[..., None], beta[..., None]
    counted, kept = b * k, g[..., None]
    H = torch.addcmul(counted[..., :, None] * k[..., None, :], kept, state.H)
    G = torch.addcmul(v[..., :, None] * counted[..., None, :], kept, state.G)
    f = _row_times(k, state.root)
    size = g + b * f.square().sum(-1, keepdim=True)
    c = b / (size + (g * size).sqrt())
    root = torch.addcmul(state.root, (-c * _times(state.root, f))[..., :, None], f[..., None, :]) / kept.sqrt()
    x, left = _answered(H, root, q)
    must_be_called = left.numel() and may_read(q.device) and not torch.compiler.is_compiling()
    if must_be_called and any(not row[0] < _DRIFTED for row in read(left.amax()[None])):
        root = root_of_inverse(H)
        x, _ = _answered(H, root, q)
    return _times(G, x), x, RootedMesaState(H, G, root)


def _answered(H: Tensor, root: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """H^{-1} q after one correction, and the relative residual before the correction."""
    x = _times(root, _row_times(q, root))
    residual = q - _row_times(x, H)
    asked = q.norm(dim=-1)
    left = residual.detach().norm(dim=-1) / asked.where(asked > 0, 1)
    return x + _times(root, _row_times(residual, root)), left


def _row_times(row: Float[Tensor, "*batch d"], matrix: Float[Tensor, "*batch d e"]) -> Float[Tensor, "*batch e"]:
    """Rows times matrices, on CPU six times as fast as matrices times columns."""
    return product(row[..., None, :], matrix).squeeze(-2)


def _times(matrix: Float[Tensor, "*batch d e"], column: Float[Tensor, "*batch e"]) -> Float[Tensor, "*batch d"]:
    return (matrix * column[..., None, :]).sum(-1)
