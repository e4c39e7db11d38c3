"""Pairs of a network and the algorithm that it implements."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn

from mesascope.errors import require_count
from mesascope.learners.arguments import Matrix, tensor_of
from mesascope.shapes import Tensor


class Construction(NamedTuple):
    """A network and the algorithm that it implements: both learners, or both predictors.

    The network is an `InContextRegressor` or a `SequencePredictor`.
    """

    network: Any
    algorithm: nn.Module


def require_sizes(**sizes: int) -> None:
    for name, value in sizes.items():
        require_count(name, value)


def initial_weights(w0: Matrix | None, d_out: int, d_in: int) -> Tensor | None:
    """``w0`` as a tensor ``(d_out, d_in)``."""
    return None if w0 is None else tensor_of("w0", w0, "dy dx", (d_out, d_in))
