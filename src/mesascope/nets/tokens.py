"""Layouts: how a context and its queries become tokens."""

from __future__ import annotations

from collections.abc import Callable

import torch

from mesascope.shapes import Float, Tensor
from mesascope.tasks import Context

__all__ = ["LAYOUTS", "Layout", "concatenated"]

Layout = Callable[[Context, Tensor], tuple[Tensor, Tensor]]


def concatenated(
    context: Context, xq: Float[Tensor, "*batch m dx"]
) -> tuple[Float[Tensor, "*batch n width"], Float[Tensor, "*batch m width"]]:
    """Context tokens (x_i, y_i) and query tokens (x_q, 0), of width dx + dy: section 3 of the ICML paper."""
    blank = xq.new_zeros((*xq.shape[:-1], context.y.shape[-1]))
    return torch.cat([context.x, context.y], dim=-1), torch.cat([xq, blank], dim=-1)


LAYOUTS: dict[str, Layout] = {"concatenated": concatenated}
