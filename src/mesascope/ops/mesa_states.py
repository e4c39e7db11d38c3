"""What a sequence leaves behind in the mesa-layer, by the kind of its ridge, and for decoding."""

from __future__ import annotations

from typing import NamedTuple

import torch

from mesascope.ops.fast_weights import without_values
from mesascope.shapes import Float, Tensor

__all__ = ["FixedRidgeState", "MesaState", "RootedMesaState", "root_of_inverse"]


class RootedMesaState(NamedTuple):
    """A `MesaState` with a root of H^{-1}, for decoding."""

    H: Float[Tensor, "*batch heads dk dk"]
    G: Float[Tensor, "*batch heads dv dk"]
    root: Float[Tensor, "*batch heads dk dk"]

    def emptied(self, width: int) -> RootedMesaState:
        """The state after the same keys, had their values been zeros of this width."""
        return self._replace(G=without_values(self.G, width))


class MesaState(NamedTuple):
    """What a sequence leaves behind where the ridge decays: H with what is left of the ridge in it, and G."""

    H: Float[Tensor, "*batch heads dk dk"]
    G: Float[Tensor, "*batch heads dv dk"]

    def emptied(self, width: int) -> MesaState:
        """The state after the same keys, had their values been zeros of this width."""
        return self._replace(G=without_values(self.G, width))

    def rooted(self) -> RootedMesaState:
        """The same with a root of H^{-1}, from which `mesa_step` goes on at O(d^2); costs O(d^3), once."""
        return RootedMesaState(*self, root_of_inverse(self.H))


class FixedRidgeState(NamedTuple):
    """What a sequence leaves behind where the ridge does not decay: H without it, and G."""

    H: Float[Tensor, "*batch heads dk dk"]
    G: Float[Tensor, "*batch heads dv dk"]

    def emptied(self, width: int) -> FixedRidgeState:
        """The state after the same keys, had their values been zeros of this width."""
        return self._replace(G=without_values(self.G, width))


def root_of_inverse(H: Float[Tensor, "*batch d d"]) -> Float[Tensor, "*batch d d"]:
    """S with S S^T = H^{-1}; not finite where H is singular."""
    root, _ = torch.linalg.cholesky_ex(H)
    identity = torch.eye(H.shape[-1], dtype=H.dtype, device=H.device).expand_as(H)
    return torch.linalg.solve_triangular(root, identity, upper=False).mT.contiguous()
