"""What a construction is: a network beside the algorithm that it equals."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn

__all__ = ["Construction"]


class Construction(NamedTuple):
    """A network and the algorithm that it equals: both learners, or both predictors.

    The network is an `InContextRegressor` or a `SequencePredictor`.
    """

    network: Any
    algorithm: nn.Module
