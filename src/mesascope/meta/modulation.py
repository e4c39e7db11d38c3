"""What the gradient of an inner step is multiplied by, entry by entry: functions of numbers that are learned."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from mesascope.shapes import Tensor

__all__ = ["MODULATIONS", "Modulation"]


class _Step(torch.autograd.Function):
    """1 where a number is at least 0, and 0 elsewhere; differentiated as if it were the number itself."""

    @staticmethod
    def forward(ctx: Any, numbers: Tensor) -> Tensor:
        return (numbers >= 0).to(numbers)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class _Positive(torch.autograd.Function):
    """The positive part of a number, differentiated as if it were the number itself."""

    @staticmethod
    def forward(ctx: Any, numbers: Tensor) -> Tensor:
        return numbers.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


@dataclass(frozen=True)
class Modulation:
    """A factor on each entry of a gradient, and the numbers m that it is a function of, one an entry.

    Args:
        factor: of m; its derivative is what the outer loop learns m by, straight through where it has none.
        start: the first m of a parameter, from it, the inner learning rate and a generator.
        times_rate: whether the inner learning rate multiplies the factor, or is what m starts from.
    """

    factor: Callable[[Tensor], Tensor]
    start: Callable[[Tensor, float, torch.Generator], Tensor]
    times_rate: bool = False


def _centred(parameter: Tensor, rate: float, generator: torch.Generator) -> Tensor:
    """U(-b, b) with b = 1 / root of the fan-in, as torch's layers start their weights: half of them below 0."""
    fan_in = parameter[0].numel() if parameter.ndim > 1 else parameter.numel()
    draw = torch.rand(parameter.shape, generator=generator, device=generator.device, dtype=torch.float64)
    return ((2 * draw - 1) / math.sqrt(fan_in)).to(parameter)


def _at(value: Callable[[float], float]) -> Callable[[Tensor, float, torch.Generator], Tensor]:
    return lambda parameter, rate, generator: torch.full_like(parameter, value(rate), requires_grad=False)


# By name. Source: thesis, sections 4.2 and 4.3.3.
MODULATIONS: dict[str, Modulation] = {
    "binary": Modulation(_Step.apply, _centred, times_rate=True),
    "relu": Modulation(_Positive.apply, _at(lambda rate: rate)),
    "exp": Modulation(torch.exp, _at(math.log)),
    "identity": Modulation(lambda numbers: numbers, _at(lambda rate: rate)),
}
