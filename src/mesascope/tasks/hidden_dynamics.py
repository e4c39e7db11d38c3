"""Partly observed and nonlinear dynamics, which no linear model of the last element predicts."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

import torch
from torch.nn import functional

from mesascope.errors import refuse
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.streams import stream
from mesascope.tasks.draws import STARTS, Noise, Scale, applied, check_draw, normal, orthogonal, unrolled
from mesascope.validate import Count, Whole

__all__ = ["NonlinearDynamics", "ObservedDynamics"]


@register("family", "observed-dynamics")
@dataclass(frozen=True)
class ObservedDynamics:
    """Linear systems seen in part: h_{t+1} = W h_t + noise * eps of width ``hidden``, and s_t = C h_t of width ``d``.

    W is a random orthogonal matrix and the rows of C are orthonormal; each task has its own. An element shows ``d`` of
    ``hidden`` directions: a linear model of the last hidden / d elements predicts the next one, and a linear model of
    the last element alone does not.

    Args:
        d: width of an element.
        hidden: width of the state, d or more.
        length: elements of a sequence (T).
        noise: standard deviation of the noise that is added to the state at each step.
        start: law of h_1: ``"normal"``, N(0, I), or ``"uniform"``, U(-1, 1).

    Source: the extended paper behind thesis ch. 3 (von Oswald et al. 2023).

    >>> ObservedDynamics(d=2, hidden=4, length=7).sample(3, stream(0, "doc")).shape
    torch.Size([3, 7, 2])
    """

    d: Count = 5
    hidden: Count = 15
    length: Count = 50
    noise: Noise = 0.01
    start: Literal["normal", "uniform"] = "normal"

    def __post_init__(self) -> None:
        if self.hidden < self.d:
            refuse("hidden", f"be at least d = {self.d}", self.hidden, "widen the state")

    def sample(self, batch: int, generator: torch.Generator) -> Float[Tensor, "batch t d"]:
        """Draw ``batch`` sequences on the generator's device, in float32."""
        check_draw(batch, generator)
        matrix, seen = (orthogonal((batch,), self.hidden, generator) for _ in range(2))
        first = STARTS[self.start]((batch, self.hidden), generator)
        noise = self.noise * normal((self.length - 1, batch, self.hidden), generator)
        return unrolled(first, noise, lambda last, added: applied(matrix, last) + added) @ seen[:, : self.d].mT


@register("family", "nonlinear-dynamics")
@dataclass(frozen=True)
class NonlinearDynamics:
    """Dynamics that are linear in features: s_{t+1} = W f(s_t) + noise * eps with |f(s)| = sqrt(d).

    W ``(d, d)`` is a random orthogonal matrix of the task. The features f(s) = sqrt(d) g/|g| of g = B tanh(gain A s),
    with A ``(hidden, d)`` and B ``(d, hidden)``, are the same for all tasks, so that a network can learn them while it
    trains, and W in context.

    Args:
        d: width of an element.
        hidden: units of the features' hidden layer.
        gain: scale of the inputs of tanh: larger is less linear. With gain 1 most sequences fall into a fixed point.
        length: elements of a sequence (T).
        noise: standard deviation of the noise that is added at each step.
        feature_seed: seed of A and B, which are the same for all training seeds.

    Source: the extended paper behind thesis ch. 3 (von Oswald et al. 2023); widths, gain and normalisation are ours.

    >>> NonlinearDynamics(d=3, length=7).sample(2, stream(0, "doc")).shape
    torch.Size([2, 7, 3])
    """

    d: Count = 10
    hidden: Count = 40
    length: Count = 50
    noise: Noise = 0.01
    gain: Scale = 4.0
    feature_seed: Whole = 0

    @functools.cached_property
    def _weights(self) -> tuple[Tensor, Tensor]:
        generator = stream(self.feature_seed, "features")
        first, second = (normal(shape, generator) for shape in ((self.hidden, self.d), (self.d, self.hidden)))
        return first / self.d**0.5, second / self.hidden**0.5

    def features(self, elements: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """f(s), in which the next element is linear."""
        first, second = (weight.to(elements) for weight in self._weights)
        return self._unit(torch.tanh(self.gain * elements @ first.mT) @ second.mT)

    def sample(self, batch: int, generator: torch.Generator) -> Float[Tensor, "batch t d"]:
        """Draw ``batch`` sequences on the generator's device, in float32."""
        check_draw(batch, generator)
        matrix = orthogonal((batch,), self.d, generator)
        first = self._unit(normal((batch, self.d), generator))
        noise = self.noise * normal((self.length - 1, batch, self.d), generator)
        return unrolled(first, noise, lambda last, added: applied(matrix, self.features(last)) + added)

    def _unit(self, vectors: Tensor) -> Tensor:
        return self.d**0.5 * functional.normalize(vectors, dim=-1)
