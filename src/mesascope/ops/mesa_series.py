"""The mesa-layer by a fixed number of terms of a series, for A_t of small condition number."""

from __future__ import annotations

import torch

from mesascope.ops.chunks import decays
from mesascope.ops.mesa_normal import Normal
from mesascope.shapes import Float, Tensor

__all__ = ["chebyshev", "lower_bound", "neumann"]


def neumann(normal: Normal, q: Tensor, terms: int) -> Float[Tensor, "batch chunks size dk"]:
    """x = sum_{j<=terms} (I - A/c)^j q / c, with c the bound of A's largest eigenvalue.

    Its error falls as (1 - smallest eigenvalue / c)^terms. Source: thesis, section 3.7.2.3.
    """
    bound = normal.bound()
    x = scaled = q / bound
    for _ in range(terms):
        x = scaled + x - normal.times(x) / bound
    return x


def chebyshev(normal: Normal, q: Tensor, terms: int, smallest: Tensor) -> Float[Tensor, "batch chunks size dk"]:
    """The Chebyshev semi-iteration for eigenvalues between ``smallest`` and the bound.

    Its error falls as ((sqrt(r) - 1) / (sqrt(r) + 1))^terms, with r the bound over ``smallest``.
    """
    bound = normal.bound()
    centre, radius = (bound + smallest) / 2, (bound - smallest) / 2
    rho = radius / centre
    x = step = q / centre
    for _ in range(terms):
        pace = 1 / (2 * centre - rho * radius)
        step = pace * radius * rho * step + 2 * pace * (q - normal.times(x))
        x, rho = x + step, pace * radius
    return x


def lower_bound(
    H: Float[Tensor, "batch dk dk"], normal: Normal, stateless: bool
) -> Float[Tensor, "batch chunks size 1"]:
    """A lower bound of A_t's smallest eigenvalue: what the first state keeps of its own, and the smallest ridge.

    Without a state H is diagonal, the ridge. With one its eigenvalues count as constants in derivatives: theirs do not
    exist where two are equal.
    """
    smallest = H.diagonal(dim1=-2, dim2=-1).amin(-1) if stateless else torch.linalg.eigvalsh(H.detach())[:, 0]
    left = decays(normal.log_forget)
    before = torch.cat([torch.ones_like(left[:, :1, :1]), left[:, :-1, -1:].cumprod(1)], 1)
    return before * left * smallest[:, None, None, None] + normal.ridge.amin(-1, keepdim=True)
