"""Reading numbers off tensors, as checks must, through whatever `torch.func` transforms surround them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from mesascope.shapes import Float, Tensor

__all__ = ["read"]


def read(vector: Float[Tensor, " n"]) -> list[list[float]]:
    """Its numbers, one row for every member of a mapped axis."""
    try:
        return [vector.tolist()]
    except RuntimeError:  # within `torch.func.vmap`
        pass
    seen: list[list[list[float]]] = []
    _Show.apply(vector.detach(), seen.append)
    return seen[0]


class _Show(torch.autograd.Function):
    """Hand a vector's numbers to a function, through whatever `torch.func` transforms surround it."""

    @staticmethod
    def forward(vector: Tensor, take: Callable[[list[list[float]]], None]) -> Tensor:
        take(vector.reshape(-1, vector.shape[-1]).tolist())
        return vector.new_zeros(())

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(info, in_dims, vector: Tensor, take: Callable[[list[list[float]]], None]):
        return _Show.apply(vector.movedim(in_dims[0], 0), take), None
