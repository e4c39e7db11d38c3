"""States of the mesa-layer, for each kind of ridge and for decoding."""

from __future__ import annotations

from typing import NamedTuple

import torch

from mesascope.shapes import Float, Tensor


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
    root, _ = torch.linalg.cholesky_ex(H)
    identity = torch.eye(H.shape[-1], dtype=H.dtype, device=H.device).expand_as(H)
    return torch.linalg.solve_triangular(root, identity, upper=False).mT.contiguous()
