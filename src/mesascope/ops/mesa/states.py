"""States of the mesa-layer, by the kind of its ridge, and for decoding."""

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
    """The state after a sequence whose ridge decays: H, which contains what is left of the ridge, and G."""

    H: Float[Tensor, "*batch heads dk dk"]
    G: Float[Tensor, "*batch heads dv dk"]

    def rooted(self) -> RootedMesaState:
        """The state with a root of H^{-1}, from which `mesa_step` costs O(d^2); making it costs O(d^3), once."""
        return RootedMesaState(*self, root_of_inverse(self.H))


class FixedRidgeState(NamedTuple):
    """The state after a sequence whose ridge does not decay: H without the ridge, and G."""

    H: Float[Tensor, "*batch heads dk dk"]
    G: Float[Tensor, "*batch heads dv dk"]


def root_of_inverse(H: Float[Tensor, "*batch d d"]) -> Float[Tensor, "*batch d d"]:
    """S with S S^T = H^{-1}; not finite where H is singular."""
    root, _ = torch.linalg.cholesky_ex(H)
    identity = torch.eye(H.shape[-1], dtype=H.dtype, device=H.device).expand_as(H)
    return torch.linalg.solve_triangular(root, identity, upper=False).mT.contiguous()
