"""One token of the mesa-layer at O(d^2), from a root of H^{-1} that goes along with H.

With H^{-1} = S S^T before a token of key k, strength b and forget factor g, and f = S^T k,

    H_t = g H + b k k^T,    S_t = (S - c (S f) f^T) / sqrt(g),    c = a / (1 + sqrt(g a / b)),    a = b / (g + b |f|^2).

S_t S_t^T has no negative eigenvalue whatever rounding does (Potter's form of recursive least squares). Rounding adds up
over tokens all the same, so that each answer is corrected once by H itself, and S made anew where it had drifted.
"""

from __future__ import annotations

import torch

from mesascope.ops.mesa_states import RootedMesaState, root_of_inverse
from mesascope.ops.products import product
from mesascope.ops.reading import read
from mesascope.shapes import Float, Tensor

__all__ = ["rooted_step"]

# A residual of S S^T q, relative to q, at which S is made anew; one correction squares what is below.
_DRIFTED = 1e-3


def rooted_step(
    q: Float[Tensor, "*batch d"],
    k: Float[Tensor, "*batch d"],
    v: Float[Tensor, "*batch dv"],
    forget: Float[Tensor, "*batch"],
    beta: Float[Tensor, "*batch"],
    state: RootedMesaState,
    check: bool,
) -> tuple[Float[Tensor, "*batch dv"], Float[Tensor, "*batch d"], RootedMesaState]:
    """y_t, x_t = H_t^{-1} q_t, and the state after the token."""
    g, b = forget[..., None], beta[..., None]
    counted, kept = b * k, g[..., None]
    H = torch.addcmul(counted[..., :, None] * k[..., None, :], kept, state.H)
    G = torch.addcmul(v[..., :, None] * counted[..., None, :], kept, state.G)
    f = _row_times(k, state.root)
    size = g + b * f.square().sum(-1, keepdim=True)
    c = b / (size + (g * size).sqrt())
    root = torch.addcmul(state.root, (-c * _times(state.root, f))[..., :, None], f[..., None, :]) / kept.sqrt()
    x, left = _answered(H, root, q)
    looked_at = check and left.numel() and not torch.compiler.is_compiling()
    if looked_at and any(not row[0] < _DRIFTED for row in read(left.amax()[None])):
        root = root_of_inverse(H)
        x, _ = _answered(H, root, q)
    return _times(G, x), x, RootedMesaState(H, G, root)


def _answered(H: Tensor, root: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """H^{-1} q, corrected once, and the residual of what was corrected, relative to q."""
    x = _times(root, _row_times(q, root))
    residual = q - _row_times(x, H)
    asked = q.norm(dim=-1)
    left = residual.detach().norm(dim=-1) / asked.where(asked > 0, 1)
    return x + _times(root, _row_times(residual, root)), left


def _row_times(row: Float[Tensor, "*batch d"], matrix: Float[Tensor, "*batch d e"]) -> Float[Tensor, "*batch e"]:
    """A product of a batch of rows and matrices; on CPU six times as fast as that of matrices and columns."""
    return product(row[..., None, :], matrix).squeeze(-2)


def _times(matrix: Float[Tensor, "*batch d e"], column: Float[Tensor, "*batch e"]) -> Float[Tensor, "*batch d"]:
    return (matrix * column[..., None, :]).sum(-1)
