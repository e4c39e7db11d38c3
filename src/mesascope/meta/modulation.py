"""Masks and learning rates: factors on the gradient's entries in an inner step.

Each factor is computed from a learned number per entry.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from mesascope.shapes import Tensor


def straight_through(numbers: Tensor, value: Tensor) -> Tensor:
    """``value``, with derivative 1 by ``numbers``."""
    return value.detach() + (numbers - numbers.detach())


def _mask(numbers: Tensor) -> Tensor:
    return straight_through(numbers, (numbers >= 0).to(numbers))


def _rectified(numbers: Tensor) -> Tensor:
    return straight_through(numbers, numbers.clamp(min=0))


@dataclass(frozen=True)
class Modulation:
    """A factor on each entry of a gradient, as a function of a learned number m for that entry.

    Args:
        factor: the function of m. Its derivative for the outer loop may be replaced by 1 (straight through).
        start: function from a parameter, the inner learning rate and a generator to the initial m.
        times_rate: True if the factor is multiplied by the inner learning rate; otherwise m is initialised from it.
    """

    factor: Callable[[Tensor], Tensor]
    start: Callable[[Tensor, float, torch.Generator], Tensor]
    times_rate: bool = False


def binary(closed: float = 0.5) -> Modulation:
    """Masks 1[m >= 0] learned straight through; a share ``closed`` of them is initially 0.

    Initially m ~ U(-2 closed b, 2 (1 - closed) b) with b = 1 / sqrt(fan-in), or 1 / sqrt(length) for biases. At
    closed = 1/2, these are torch's bounds for weights.
    """

    return Modulation(_mask, functools.partial(_drawn, closed), times_rate=True)


def _drawn(closed: float, parameter: Tensor, rate: float, generator: torch.Generator) -> Tensor:
    fan_in = parameter[0].numel() if parameter.ndim > 1 else parameter.numel()
    draw = torch.rand(parameter.shape, generator=generator, device=generator.device, dtype=torch.float64)
    return (2 * (draw - closed) / math.sqrt(fan_in)).to(parameter)


def _at(value: Callable[[float], float]) -> Callable[[Tensor, float, torch.Generator], Tensor]:
    return lambda parameter, rate, generator: torch.full_like(parameter, value(rate))


# Modulations by name. Source: von Oswald (2024), sections 4.2 and 4.3.3.
MODULATIONS: dict[str, Modulation] = {
    "binary": binary(),
    "relu": Modulation(_rectified, _at(lambda rate: rate)),
    "exp": Modulation(torch.exp, _at(math.log)),
    "identity": Modulation(lambda numbers: numbers, _at(lambda rate: rate)),
}
